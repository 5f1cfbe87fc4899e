"""FeSEM, multi-centre federated learning (Xie et al., WWW journal 2023; arXiv 2005.01026), Algorithm 1.

Default is FLT's implementation: k-means on the latest models of all clients, warm-started at the last centres; all
start from one model. `assignment="nearest"` is the paper's E-step: the nearest of centres that start from different
inits; each client's first model is one of them at random (they are far apart: clients hardly ever change sides).
Deviation: centres are means weighted by samples (paper: plain). Not in the paper: `start="updates"`, where all clients
train the first model once, and clusters begin as k-means of the directions of their updates, each with the mean of its
clients' models; an unseen client trains the mean of all centres once and joins the one nearest to what it gets; holdout
clients do so again when others change sides.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinfed.aggregation import Sent
from kinfed.capabilities import NONE_SUMMED, require_labels
from kinfed.checks import at_least, seed_of_numpy
from kinfed.client_tasks import flatten_updates, select_weights
from kinfed.clustering.hierarchy import distances
from kinfed.clustering.kmeans import cluster_again, place_models
from kinfed.federation import Federation, Offer, Replies
from kinfed.keys import base_key, uniform
from kinfed.methods.cluster_models import Clustered, ClusterModels, Stale, draw_models, drop_outlying
from kinfed.models import Model
from kinfed.params import Stack, average, count, each_leaf, flatten, mix_contributors, one_hot, put, repeat, select
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FeSEMState:
    served: ClusterModels
    centres: Stack  # [C] of the last k-means; [0] before the first


@dataclass(frozen=True)
class FeSEM(Clustered[FeSEMState]):
    """Clients are clustered by their latest models every round, and each cluster's models averaged."""

    model: Model
    local: LocalTraining = LocalTraining()
    clusters: int = 5  # C, it must be given
    assignment: Literal["kmeans", "nearest"] = "kmeans"  # FLT's code, or the paper's E-step
    start: Literal["one_model", "updates"] = "one_model"  # FLT's code; or clusters of first updates, by direction
    stale: Stale = "exclude"  # what a client that was not sampled contributes
    seed: int = 43  # of k-means

    summed_tasks = NONE_SUMMED
    needs_labels: ClassVar[str] = "FeSEM assigns clients by the models they train"

    def __post_init__(self) -> None:
        seed_of_numpy(self.seed)
        at_least(1, clusters=self.clusters)

    def init(self, fed: Federation) -> FeSEMState:
        served = ClusterModels.init(self.model, self.stale, fed, self.clusters)
        none = select(served.models, slice(0))
        if self.start == "updates":
            served = self.cluster_updates(served, fed)
            return FeSEMState(served, served.models if self.assignment == "kmeans" else none)
        if self.assignment == "kmeans":
            return FeSEMState(served, none)
        luck = uniform(torch.tensor(base_key(fed.seed, "fesem")), fed.count).to(fed.device)[fed.clients]
        served = replace(served, models=draw_models(self.model, self.clusters, fed.device))
        return FeSEMState(served.assign(fed.clients, fed.clients, (luck * self.clusters).long(), fed), none)

    def cluster_updates(self, served: ClusterModels, fed: Federation) -> ClusterModels:
        """Clusters of the directions in which clients change the first model, each with the mean of what they train."""
        first = select(served.models, 0)
        replies = fed.run(self.differ, fed.clients, Offer(shared={"params": first}))
        usual, updates = drop_outlying(replies, flatten_updates(self.model, replies), fed)
        points, doubted = normalize(updates.double()), fed.aggregation.count_doubted(len(updates))
        names = torch.zeros(len(points), dtype=torch.long)
        found = cluster_again(points, points[:0], names, self.clusters, self.seed, doubted)
        trained = each_leaf(torch.add, usual.stack("update"), first)
        after = served.assign(fed.clients, usual.cohort, found.to(fed.device), fed)
        return after.average(Replies(usual.cohort, {"params": trained}), fed, self.stale)

    def round(self, state: FeSEMState, t: int, fed: Federation) -> FeSEMState:
        cohort, before = fed.sample(), state.served
        replies = fed.run(self.train, cohort, before.offer(cohort))
        assignment, centres = self.assign(state, replies, fed)  # E-step
        members = one_hot(assignment, self.clusters).bool() & torch.isin(fed.everyone, fed.clients)
        served = replace(before, contributors=members).average(replies, fed, self.stale)  # M-step, of the models held
        after = FeSEMState(replace(served, assignment=assignment), centres)
        moved = not torch.equal(assignment, before.assignment)
        return self.admit(after, fed.unseen, fed) if moved and len(fed.unseen) else after

    def assign(self, state: FeSEMState, replies: Replies, fed: Federation) -> tuple[Tensor, Stack]:
        """The cluster of each client, anew of those that train, by the model it holds, and the centres of k-means."""
        (held, whose), before = self.hold(state.served, replies, fed), state.served.assignment
        outlying = fed.find_outlying_models(replies)  # these clients stay where they are
        usual = fed.clients[torch.isin(fed.clients, replies.cohort[outlying], invert=True)]
        clients = usual if len(usual) >= self.clusters else fed.clients
        centres = state.served.models if self.assignment == "nearest" else state.centres
        points = place_models(*(select_weights(self.model, models) for models in (*held, centres)))
        theirs, start = points[whose[clients].cpu()], points[len(points) - count(centres) :]
        if self.assignment == "nearest":
            return before.index_copy(0, clients, distances(theirs, start, "l2").argmin(1).to(fed.device)), state.centres
        doubted = fed.aggregation.count_doubted(len(clients))
        found = cluster_again(theirs, start, before[clients].cpu(), self.clusters, self.seed, doubted).to(fed.device)
        holders = one_hot(found, self.clusters) @ one_hot(whose[clients], sum(count(models) for models in held)).T
        return before.index_copy(0, clients, found), mix_contributors(state.served.models, holders, *held)

    def hold(self, served: ClusterModels, replies: Replies, fed: Federation) -> tuple[tuple[Stack, ...], Tensor]:
        """The models that clients hold, each once, and which of them is whose."""
        number, sent = len(replies.cohort), Sent(served.models, served.assignment[replies.cohort])
        trained = fed.aggregation.clean(sent, replies.stack("params"))
        if served.last_trained:
            return (put(served.last_trained, replies.cohort, trained),), fed.everyone
        whose = (served.assignment + number).index_copy(0, replies.cohort, fed.everyone[:number])
        return (trained, served.models), whose

    def admit(self, state: FeSEMState, unseen: Tensor, fed: Federation) -> FeSEMState:
        require_labels(self, unseen, fed)
        mean = average(state.served.models, (state.served.contributors * fed.weights).sum(1))
        replies = fed.run(self.differ, unseen, Offer(shared={"params": mean}))
        start, centres = (flatten(select_weights(self.model, some)) for some in (repeat(mean, 1), state.served.models))
        nearest = distances(flatten_updates(self.model, replies) + start, centres, "l2").argmin(1)
        return replace(state, served=state.served.assign(unseen, replies.cohort, nearest, fed))
