"""FL+HC: hierarchical clustering of local updates (Briggs, Fan and Andras, IJCNN 2020), Algorithm 1.

Settled where the paper is silent: updates Δw are compared, not weights; the clustering round costs bytes but is no
training round; the other rules are `Hierarchy`'s. A newcomer trains the model that was clustered, and joins the cluster
it would merge with first. The server holds the updates only while somebody may still come.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.capabilities import require_labels
from kinfed.checks import at_least
from kinfed.clustering.hierarchy import Hierarchy
from kinfed.federation import Federation, Offer
from kinfed.methods.assigning import first_state, placed, seat
from kinfed.methods.cluster_models import Clusters, ComparedState, Stale
from kinfed.models import Model
from kinfed.params import Params, flatten, select
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLHCState(ComparedState):
    root: Params  # w, the model that was clustered; empty before
    updates: Tensor  # [m, parameters] Δw of each member


@dataclass(frozen=True)
class FLHC(Clusters[FLHCState]):
    """FedAvg for some rounds, then one clustering of all clients' updates, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    rounds_before: int = 10  # n, rounds of FedAvg before the clustering
    hierarchy: Hierarchy = Hierarchy()
    stale: Stale = "exclude"  # what a client that was not asked contributes

    needs_labels: ClassVar[str] = "FL+HC places clients by the updates they train"
    clusters_after: ClassVar[str] = "rounds_before"

    def __post_init__(self) -> None:
        at_least(0, rounds_before=self.rounds_before)

    def init(self, fed: Federation) -> FLHCState:
        first = first_state(self.model, self.stale, fed)
        return FLHCState(**vars(first), root={}, members=first.labels[:0], updates=flatten(first.models)[:0])

    def round(self, state: FLHCState, t: int, fed: Federation) -> FLHCState:
        if t == self.rounds_before:
            state = self.cluster(state, fed)
        trains = state.labels[fed.clients]
        sampled = [fed.sample_from(fed.clients[trains == cluster]) for cluster in trains.unique()]
        return self.step(state, torch.cat(sampled).sort().values, fed)

    def cluster(self, state: FLHCState, fed: Federation) -> FLHCState:
        """The clustering round: every cluster goes on from the model that all had."""
        root = select(state.models, 0)
        replies = fed.run(self.differ, fed.clients, Offer(shared={"params": root}))
        updates = flatten(replies.stack("update"))
        tree = self.hierarchy.merged(replies.cohort, updates)
        state = seat(state, replies.cohort, tree, fed)
        known = slice(None) if len(fed.clients) < fed.count else slice(0)
        state = replace(state, root=root, members=replies.cohort[known], updates=updates[known])
        return self.admit(state, fed.present[state.labels[fed.present] < 0], fed)

    def admit(self, state: FLHCState, newcomers: Tensor, fed: Federation) -> FLHCState:
        require_labels(self, newcomers, fed)
        if not state.root or not len(newcomers):
            return placed(state, newcomers, newcomers[:0], newcomers[:0], fed)
        replies = fed.run(self.differ, newcomers, Offer(shared={"params": state.root}))
        update, labels = flatten(replies.stack("update")), state.labels[state.members]
        nearest = self.hierarchy.predict(update, state.updates, labels)
        return placed(state, newcomers, replies.cohort, nearest, fed)
