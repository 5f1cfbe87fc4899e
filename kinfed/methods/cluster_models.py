"""Several models: which one each client is served, and which clients are averaged into each.

Disjoint clusters are a block matrix of contributors; FLT's case I is the distinct rows of its related-clients matrix:
clients with the same neighbours share one model instead of holding copies.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from kinfed.aggregation import Sent
from kinfed.capabilities import NONE_SUMMED, TRAIN_SUMMED, Exportable, FindsClusters, MergesClients, RelatesClients
from kinfed.client import Client, Reply, client_task
from kinfed.client_tasks import score_each, train_update
from kinfed.clustering.hierarchy import Dendrogram, components, cut
from kinfed.clustering.micro_clusters import link
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import ConfigError, NetworkError, RoleError
from kinfed.federation import Federation, Offer, Replies
from kinfed.keys import base_key
from kinfed.method import Method
from kinfed.models import Model
from kinfed.params import (
    NOTHING,
    Params,
    Stack,
    count,
    each_leaf,
    interpolate,
    join,
    mix,
    one_hot,
    put,
    repeat,
    select,
    stack,
)
from kinfed.per_client import Contributors, Labels, LastTrained
from kinfed.ranges import LARGEST

log = logging.getLogger("kinfed")
Stale = Literal["aggregated", "last_local", "exclude"]


class Unused:
    """Clients are not admitted by their merges, so that exported states have none."""

    def cut(self, value: Tensor, clients: Tensor) -> Dendrogram:
        return Dendrogram.none(clients.device)


Merges = Annotated[Dendrogram, Unused()]


@dataclass(frozen=True)
class ClusterModels:
    """The models of clusters: which one each client is served, and which clients are averaged into each."""

    models: Stack  # [C]
    assignment: Labels  # [clients] the model that each is served; -1: none yet
    contributors: Contributors  # [C, clients] bool: the clients that are averaged into each model
    last_trained: LastTrained  # [clients] what each trained last; empty unless stale="last_local"

    @staticmethod
    def init(model: Model, stale: Stale, fed: Federation, clusters: int = 1) -> "ClusterModels":
        """The same first model for every cluster; all clients that train are served the first cluster's."""
        check_clusters(clusters, fed)
        first = select(draw_models(model, 1, fed.device), 0)
        assignment = torch.full((fed.count,), -1, device=fed.device).index_fill(0, fed.clients, 0)
        last_trained = repeat(first, fed.count) if stale == "last_local" else {}
        return ClusterModels(repeat(first, clusters), assignment, one_hot(assignment, clusters).bool(), last_trained)

    def offer(self, cohort: Tensor) -> Offer:
        """The model of each of these clients."""
        return offer_assigned(self.models, self.assignment, cohort)

    def average(self, replies: Replies, fed: Federation, stale: Stale) -> "ClusterModels":
        """Each model becomes the mean of its contributors' models, weighted by their samples.

        `stale` is what a contributor that did not reply holds (FLT's code averages all clients every round): the model
        it is served ("aggregated"), what it trained last ("last_local"), or nothing ("exclude").
        """
        if fed.privacy.training.is_on:
            return replace(self, models=self.release(replies, fed, stale))
        there = torch.isin(fed.everyone, fed.clients)  # others have left, and count no more
        weights, trained = self.contributors * there * fed.weights.float(), replies.stack("params")
        update, cohort = partial(fed.aggregation.mix_contributors, self.models), replies.cohort
        if self.last_trained:
            held = put(self.last_trained, cohort, trained)
            return replace(self, last_trained=held, models=update(weights, Sent(self.models, self.assignment), held))
        sent = Sent(self.models, self.assignment[cohort])
        if stale == "aggregated":
            rest = ~torch.isin(fed.everyone, cohort)
            served = weights[:, rest] @ one_hot(self.assignment[rest], len(weights)).T
            both = torch.cat([weights[:, cohort], served], 1)
            return replace(self, models=update(both, sent, trained, self.models))
        return replace(self, models=update(weights[:, cohort], sent, trained))

    def release(self, replies: Replies, fed: Federation, stale: Stale) -> Stack:
        """The models after private means; clients weigh the same, and those that are not drawn hold what is served."""
        if stale == "last_local" or bool((self.contributors.sum(0) > 1).any()):
            raise ConfigError(
                "privacy.training hides a client in one cluster and one round: use stale other than 'last_local', and "
                "for flt case = 'clusters'"
            )
        members = self.contributors[:, fed.clients].sum(1)
        expected = members * (1.0 if stale == "aggregated" else fed.fraction)
        expected = expected.where(members >= fed.privacy.min_cluster, 0.0)
        return fed.release(self.models, self.assignment[replies.cohort], replies, "params", expected)

    def assign(self, clients: Tensor, replied: Tensor, labels: Tensor, fed: Federation) -> "ClusterModels":
        """Those of these clients that replied get these clusters, the others the largest one."""
        assignment = self.assignment.index_fill(0, clients, -1).index_copy(0, replied, labels)
        silent = clients[torch.isin(clients, replied, invert=True)]
        largest = one_hot(assignment, len(self.contributors)).sum(1).argmax()
        assignment = assignment.index_copy(0, silent, largest.repeat(len(silent)))
        own = one_hot(assignment[clients], len(self.contributors)).bool() & torch.isin(clients, fed.clients)
        contributors = self.contributors.index_copy(1, clients, own)
        return replace(self, assignment=assignment, contributors=contributors)._start_training(clients)

    def serve(self, labels: Tensor, models: Stack) -> "ClusterModels":
        """These models, each for the clients with its label ([clients]; -1: none), and averaged over them."""
        return replace(self, models=models, assignment=labels, contributors=one_hot(labels, count(models)).bool())

    def part(self, models: Tensor) -> "ClusterModels":
        """Each client of these models (bool [C]) goes on with a copy of its own."""
        clients = ((self.assignment >= 0) & models[self.assignment]).nonzero()[:, 0]
        own = count(self.models) + torch.arange(len(clients), device=clients.device)
        copies = select(self.models, self.assignment[clients])
        return self.serve(self.assignment.index_copy(0, clients, own), join(self.models, copies))

    def relate(self, clients: Tensor, related: NeighbourSets, fed: Federation) -> "ClusterModels":
        """One model for each different set of neighbours; other training clients are averaged with nobody.

        A model starts as the mean of what its clients were served before; where all are new, of what their neighbours
        are served, and without neighbours of what every client is.
        """
        sets, alone = related.to(fed.device), fed.clients[torch.isin(fed.clients, clients, invert=True)]
        rows = torch.zeros(len(sets.rows) + len(alone), fed.count, dtype=torch.bool, device=fed.device)
        further = len(sets.rows) + torch.arange(len(alone), device=fed.device)
        rows[: len(sets.rows), clients], rows[further, alone] = sets.rows, True
        rows &= torch.isin(fed.everyone, fed.clients)  # a client that does not train contributes to no model
        contributors, row = torch.unique(rows, dim=0, return_inverse=True)
        assigned = torch.cat([clients, alone])
        labels = row[torch.cat([sets.whose, further])]
        assignment = torch.full_like(self.assignment, -1).index_copy(0, assigned, labels)
        before = one_hot(self.assignment, len(self.contributors)).T * fed.weights[:, None]  # [clients, C before]
        weights = before.sum(0).expand(len(contributors), -1)
        for nearer in (contributors.float() @ before, one_hot(assignment, len(contributors)) @ before):
            weights = torch.where(nearer.sum(1, keepdim=True) > 0, nearer, weights)
        models = mix(weights / weights.sum(1, keepdim=True), self.models)
        after = replace(self, models=models, assignment=assignment, contributors=contributors)
        return after._start_training(assigned[self.assignment[assigned] < 0])

    def pool(self, clusters: Tensor, sizes: Tensor) -> "ClusterModels":
        """One model for each of these clusters ([clients]; -1: in none), which all its clients are served.

        It is the model that just this cluster contributes to, where there is one, and else the mean of what its clients
        were served.
        """
        names = clusters[clusters >= 0].unique()
        contributors = clusters == names[:, None]
        weights = (contributors * sizes).float() @ one_hot(self.assignment, len(self.contributors)).T
        for cluster, members in enumerate(contributors):
            same = (self.contributors == members).all(1)
            weights[cluster] = torch.where(same.any(), same.float(), weights[cluster])
        models = mix(weights / weights.sum(1, keepdim=True), self.models)
        assignment = torch.searchsorted(names, clusters).where(clusters >= 0, -1)
        return ClusterModels(models, assignment, contributors, {})

    def neighbours(self) -> NeighbourSets:
        """The clients that are averaged into the model that each is served."""
        nobody = torch.zeros_like(self.contributors[:1])
        row = self.assignment.where(self.assignment >= 0, len(self.contributors))
        return NeighbourSets(torch.cat([self.contributors, nobody]), row)

    def _start_training(self, clients: Tensor) -> "ClusterModels":
        """New clients hold the model they are served until they train."""
        if not self.last_trained:
            return self
        held = put(self.last_trained, clients, select(self.models, self.assignment[clients]))
        return replace(self, last_trained=held)


class ClusteredState(Protocol):
    """A server state with one model per cluster."""

    @property
    def served(self) -> ClusterModels: ...


S = TypeVar("S", bound=ClusteredState)


class Clustered(Method[S], FindsClusters[S], RelatesClients[S], Exportable[S]):
    """Clients train the model of their cluster, and use it as it is; a method says which clients form one."""

    stale: Stale
    summed_tasks: ClassVar[Mapping[str, str]] = TRAIN_SUMMED
    hides_clients: ClassVar[bool] = True

    def offer(self, state: S, cohort: Tensor, fed: Federation) -> Offer:
        return state.served.offer(cohort)

    def train_clusters(self, served: ClusterModels, cohort: Tensor, fed: Federation) -> ClusterModels:
        """Server: the models after this cohort trained, each averaged over its contributors."""
        return served.average(fed.run(self.train, cohort, served.offer(cohort)), fed, self.stale)

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from the model it is served."""
        return Reply({"params": self.local(client, params, self.model.gradient)[0]})

    @client_task
    def differ(self, client: Client, params: Params) -> Reply:
        """Client task: Δw, what local training changes in the model it is sent."""
        return train_update(self.local.outside_rounds, client, params, self.model)

    def cluster_assignment(self, state: S) -> Tensor:
        return state.served.assignment

    def neighbours(self, state: S) -> NeighbourSets:
        return state.served.neighbours()


class MergedState(ClusteredState, Protocol):
    """A server state whose clusters were merged once."""

    @property
    def merges(self) -> Dendrogram: ...

    @property
    def members(self) -> Tensor: ...  # [m] ids of the clients that unseen ones are compared with


G = TypeVar("G", bound=MergedState)


class ClusteredOnce(Clustered[G], MergesClients[G]):
    """Clients are clustered once, by merging, and unseen ones are compared with the members."""

    summed_tasks: ClassVar[Mapping[str, str]] = NONE_SUMMED  # clients are merged by what each of them trained

    def dendrogram(self, state: G) -> Dendrogram:
        return state.merges

    def export_state(self, state: G, clients: Tensor, sizes: Tensor) -> G:
        if not len(state.members):
            raise RoleError(
                "the run kept nothing that an unseen client could be compared with: either its clients were not "
                "clustered yet, or all trained from the start; run it again with one that does not, such as "
                "roles.holdout=0.1"
            )
        return super().export_state(state, clients, sizes)


def offer_assigned(models: Stack, assignment: Tensor, cohort: Tensor) -> Offer:
    """The model of each of these clients; RoleError where one has none."""
    labels = assignment[cohort]
    if bool((labels < 0).any()):
        raise RoleError(
            f"clients {cohort[labels < 0].tolist()} have no model yet: the method's `admit` must assign them"
        )
    return Offer(each={"params": models}, pick=labels)


def add_to_mean(mean: Stack, models: Stack, rounds: int) -> Stack:
    """The mean of models over rounds, of which there were so many before this one; empty: there were none."""
    return interpolate(mean or models, models, 1 / (rounds + 1))


def check_clusters(clusters: int, fed: Federation) -> None:
    """Raises ConfigError where there are more clusters than clients that train, or none."""
    if not 1 <= clusters <= len(fed.clients):
        raise ConfigError(
            f"clusters must be 1..{len(fed.clients)}, the clients that train, got {clusters}: set methods.NAME.clusters"
        )


def draw_models(model: Model, number: int, device: torch.device, attempt: int = 0) -> Stack:
    """Independent first models, others at each attempt; the very first is the one that every method starts from."""
    seeds = [base_key("init", model.seed, i, attempt) % 2**32 for i in range(number)]
    first = [model.seed, *seeds[1:]] if attempt == 0 else seeds
    models = stack([model.init(seed) for seed in first])
    if number > 1 and not attempt and all(bool((w == w[:1]).all()) for w in models.values()):
        log.warning(
            "all %d first models are equal, for the model is built with the same weights whatever the seed: models "
            "that clients select stay equal; let the weights be drawn by torch's generator, or use a method that "
            "begins with one model, such as flt", number,
        )  # fmt: skip
    return each_leaf(lambda w: w.to(device), models)


def require_signatures(clients: Tensor) -> None:
    """Raise NetworkError where no client is among those that sent what clusters are formed by."""
    if not len(clients):
        raise NetworkError(
            "no client sent a finite signature, and clusters are formed by these: no client replied, samples or "
            f"targets are beyond {LARGEST:.0e} in size (scale them; targets by task.mean and task.std), what computes "
            "it has diverged (a smaller training.lr helps), or a client lies, which aggregation.name = 'norm_clipping' "
            "bounds"
        )


def drop_outlying(replies: Replies, points: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
    """The replies without those whose points ([replies, ...]) are far from all others; such a client trains alone."""
    require_signatures(replies.cohort)
    usual = (~fed.find_outliers(replies.cohort, points.flatten(1))).nonzero()[:, 0]
    return (replies, points) if len(usual) == len(points) else (replies.select(usual), points[usual])


def link_within(apart: Tensor, radius: float, sizes: Tensor, fed: Federation) -> Tensor:
    """Clusters of groups of so many clients that are at most a radius apart, or linked by others that are: [groups].

    With robust aggregation by the mean distance of their clients: one between two clusters would join both.
    """
    if not fed.aggregation.is_robust:
        return components(apart <= radius).to(apart.device)
    return cut(link(apart, sizes, "average"), math.nextafter(radius, math.inf)).to(apart.device)


def find_components(graph: Tensor) -> Tensor:
    """The connected component of each client of a relatedness graph: [clients]; -1 for a client without an edge."""
    return torch.where(graph.any(1), components(graph).to(graph.device), -1)


State = TypeVar("State")
ATTEMPTS = 100  # to draw first models
SelectOn = Literal["train_loss", "test_accuracy"]  # the second looks at test samples: only to compare with such papers


def select_model(
    client: Client, model: Model, models: Stack, select_on: SelectOn, body: Mapping[str, Tensor] = NOTHING
) -> Tensor:
    """Client: the model with the least loss on its training samples, or with the best main metric on its test samples.

    The models may be some layers, and `body` the others; ties go to the first.
    """
    own = client.test if select_on == "test_accuracy" else client.train
    found = score_each(model, models, own, body)
    if select_on == "test_accuracy":
        return found["metric"].argmin() if model.task.metric().lower_is_better else found["metric"].argmax()
    return found["loss"].argmin()


def model_at(models: Stack, choice: Tensor) -> Params:
    """One model of a stack; the choice may be a client task's."""
    return each_leaf(lambda w: w.index_select(0, choice[None])[0], models)


def redraw(draw: Callable[[int], State], share: Callable[[State], float], least: float) -> State:
    """The first of some drawn states in which each model is selected by this share of the clients at least."""
    for attempt in range(ATTEMPTS):
        state = draw(attempt)
        if not least or share(state) >= least:
            return state
    raise ConfigError(
        f"in {ATTEMPTS} draws of first models there was always one that fewer than {least:g} selected: set least_share "
        "lower"
    )
