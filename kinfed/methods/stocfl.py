"""StoCFL: Stochastic Clustered Federated Learning (Zeng et al., 2023, arXiv 2303.00897), after the authors' code.

When a client is first sampled it trains the anchor, a fixed first model, and sends its update Ψ; it is a cluster of its
own. Of the clusters of a cohort, those whose mean Ψ have a cosine of τ at least become one, whose model is that of the
largest. Clients train ω, FedAvg's model, and the model of their cluster, which is pulled towards ω. Deviations: means
are weighted by samples (code: plain), Ψ of a cluster is the mean of all members (code: of those sampled), ω is trained
from the same start by every client (code: in a chain over them). An unseen client joins the cluster with the nearest
mean Ψ; where none is near enough, it is served ω, and forms a cluster of its own once it trains.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.capabilities import Exportable, FindsClusters, RelatesClients, require_labels
from kinfed.checks import at_least, between
from kinfed.client import Client, Reply, client_task
from kinfed.client_tasks import flatten_updates, select_weights, train_update
from kinfed.clustering.hierarchy import distances
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.federation import Federation, Offer
from kinfed.method import Method
from kinfed.methods.cluster_models import ClusterModels, draw_models, link_within
from kinfed.models import Model
from kinfed.params import Params, Stack, count, each_leaf, flatten, join, one_hot, repeat, select
from kinfed.per_client import Each
from kinfed.training import LocalTraining, ShiftedGradient


@dataclass(frozen=True)
class StoCFLState:
    served: ClusterModels  # θ, one model per cluster; clients that were not met yet are in none
    common: Params  # ω
    updates: Each  # Ψ, [clients, parameters]; 0 for a client that was not met yet


@dataclass(frozen=True)
class StoCFL(Method[StoCFLState], FindsClusters[StoCFLState], RelatesClients[StoCFLState], Exportable[StoCFLState]):
    """Clusters of sampled clients merge where their updates of a fixed model are similar; a common model holds them."""

    model: Model
    local: LocalTraining = LocalTraining()
    threshold: float = 0.65  # τ, the cosine from which on two clusters become one
    pull: float = 0.05  # μ, how strongly a cluster's model is held near the common one
    anchor_epochs: int = 10  # of the update by which clients are compared

    needs_labels: ClassVar[str] = "StoCFL assigns clients by the updates they train"

    def __post_init__(self) -> None:
        between(-1, 1, threshold=self.threshold)
        at_least(0, pull=self.pull)
        at_least(1, anchor_epochs=self.anchor_epochs)

    def init(self, fed: Federation) -> StoCFLState:
        served = ClusterModels.init(self.model, "exclude", fed)
        common, nobody = select(served.models, 0), torch.full_like(served.assignment, -1)
        updates = torch.zeros_like(flatten(select_weights(self.model, served.models))[:1]).repeat(fed.count, 1)
        return StoCFLState(served.serve(nobody, select(served.models, slice(0))), common, updates)

    def round(self, state: StoCFLState, t: int, fed: Federation) -> StoCFLState:
        cohort = fed.sample()
        new = cohort[state.served.assignment[cohort] < 0]
        state = self.start_clusters(*self.meet(state, new, fed), fed) if len(new) else state
        cohort = cohort[state.served.assignment[cohort] >= 0]  # without those whose update cannot be used
        state = self.train_both(self.unite(state, cohort, fed), cohort, fed) if len(cohort) else state
        return self.place(state, fed.unseen, fed)

    def meet(self, state: StoCFLState, clients: Tensor, fed: Federation) -> tuple[StoCFLState, Tensor]:
        """Server: the state with the updates of these clients, and those of them that replied."""
        anchor = select(draw_models(self.model, 1, fed.device), 0)
        replies = fed.run(self.observe, clients, Offer(shared={"params": anchor}))
        sent = fed.aggregation.prepare(flatten_updates(self.model, replies))  # none far longer than the others
        return replace(state, updates=state.updates.index_copy(0, replies.cohort, sent)), replies.cohort

    def start_clusters(self, state: StoCFLState, clients: Tensor, fed: Federation) -> StoCFLState:
        """Server: each of these clients is a cluster of its own, whose model starts as the common one."""
        models, names = state.served.models, count(state.served.models) + fed.everyone[: len(clients)]
        labels = state.served.assignment.index_copy(0, clients, names)
        return self.serve(state, labels, join(models, repeat(state.common, len(clients))), fed)

    def unite(self, state: StoCFLState, cohort: Tensor, fed: Federation) -> StoCFLState:
        """Server: clusters of this cohort that are similar, or linked by others that are, become one."""
        seen, sizes = state.served.assignment[cohort].unique(), state.served.contributors.sum(1)
        means = self.mean_updates(state)[seen]
        linked = link_within(distances(means, means, "cosine"), 1 - self.threshold, sizes[seen], fed)
        parts = fed.everyone[: len(sizes)].index_copy(0, seen, len(sizes) + linked)
        names, new = parts.unique(return_inverse=True)
        largest = (one_hot(new, len(names)) * sizes).argmax(1)
        labels = new[state.served.assignment].where(state.served.assignment >= 0, -1)
        return self.serve(state, labels, select(state.served.models, largest), fed)

    def train_both(self, state: StoCFLState, cohort: Tensor, fed: Federation) -> StoCFLState:
        """Server: the state after this cohort trained the common model, and those of its clusters."""
        replies = fed.run(self.train, cohort, state.served.offer(cohort)._replace(shared={"common": state.common}))
        if not len(replies.cohort):
            return state
        common = fed.average(replies, "common", state.common)
        return replace(state, common=common, served=state.served.average(replies, fed, "exclude"))

    @client_task
    def observe(self, client: Client, params: Params) -> Reply:
        """Client task: Ψ, what local training changes in the anchor."""
        return train_update(self.local.outside_rounds.for_epochs(self.anchor_epochs), client, params, self.model)

    @client_task
    def train(self, client: Client, params: Params, common: Params) -> Reply:
        """Client task: θ of its cluster, trained along ∇f(θ) + μ(θ - ω), and ω, trained."""
        held = replace(self.local, mu=self.local.mu + self.pull)
        shift = each_leaf(lambda own, all_: self.pull * (own - all_), params, common)
        trained, _ = held(client, params, ShiftedGradient(self.model.gradient, shift))
        return Reply({"params": trained, "common": self.local(client, common, self.model.gradient)[0]})

    def admit(self, state: StoCFLState, unseen: Tensor, fed: Federation) -> StoCFLState:
        require_labels(self, unseen, fed)
        state, replied = self.meet(state, unseen, fed)
        state = self.place(state, replied, fed)
        alone = replied[torch.isin(replied, fed.clients) & (state.served.assignment[replied] < 0)]
        return self.start_clusters(state, alone, fed)

    def place(self, state: StoCFLState, clients: Tensor, fed: Federation) -> StoCFLState:
        """Server: each of these clients joins the cluster with the most similar mean update, if it is similar."""
        if not count(state.served.models) or not len(clients):
            return state
        apart, nearest = distances(state.updates[clients], self.mean_updates(state), "cosine").min(1)
        nearest = nearest.where(apart <= 1 - self.threshold, -1)
        return self.serve(state, state.served.assignment.index_copy(0, clients, nearest), state.served.models, fed)

    def mean_updates(self, state: StoCFLState) -> Tensor:
        """Server: the mean Ψ of each cluster: [C, parameters]."""
        members = state.served.contributors.to(state.updates.dtype)
        return members @ state.updates / members.sum(1, keepdim=True).clamp(min=1)

    def serve(self, state: StoCFLState, labels: Tensor, models: Stack, fed: Federation) -> StoCFLState:
        """Server: these models, each for the clients with its label, and averaged over those of them that train."""
        served = state.served.serve(labels, models)
        trains = torch.isin(fed.everyone, fed.clients)
        return replace(state, served=replace(served, contributors=served.contributors & trains))

    def offer(self, state: StoCFLState, cohort: Tensor, fed: Federation) -> Offer:
        models, labels = state.served.models, state.served.assignment[cohort]
        both = join(models, repeat(state.common, 1))
        return Offer(each={"params": both}, pick=labels.where(labels >= 0, count(models)))

    def cluster_assignment(self, state: StoCFLState) -> Tensor:
        return state.served.assignment

    def neighbours(self, state: StoCFLState) -> NeighbourSets:
        return state.served.neighbours()
