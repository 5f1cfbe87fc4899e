"""FL+HC: hierarchical clustering of local updates (Briggs, Fan and Andras, IJCNN 2020), Algorithm 1.

Settled where the paper is silent: updates Δw are compared, not weights; "average" is the mean of all pairs (UPGMA); a
merge at the threshold is not made; the clustering round costs bytes but is no training round. Without a threshold it
is searched among quantiles of the merge heights by the silhouette of the updates' distances (no test rows). A newcomer
trains the model that was clustered, and joins the cluster it would merge with first. The server holds the updates
only while somebody may still come.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.algorithms.groups import Groups, GroupState, Stale, first_state, need_labels, placed, seat
from kinfed.client import Client, Reply
from kinfed.clustering.hierarchy import Linkage, Metric, best_cut, cut, distances, merges, nearest_group
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.models import Model
from kinfed.params import Params, flatten, rows
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLHCState(GroupState):
    root: Params  # w, the model that was clustered; empty before
    members: Tensor  # [m] who was clustered
    updates: Tensor  # [m, parameters] Δw of each


@dataclass(frozen=True)
class FLHC(Groups[FLHCState]):
    """FedAvg for some rounds, then one clustering of all clients' updates, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    rounds_before: int = 10  # n
    metric: Metric = "l2"
    linkage: Linkage = "ward"
    threshold: float | None = None  # T; none: searched
    candidates: int = 100  # thresholds tried in a search
    stale: Stale = "exclude"

    serves_unlabelled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.linkage == "ward" and self.metric != "l2":
            raise ConfigError(f"linkage 'ward' needs metric 'l2', got '{self.metric}'")
        if self.rounds_before < 0 or self.candidates < 1:
            raise ConfigError(
                f"wanted rounds_before >= 0, candidates >= 1, got {self.rounds_before}, {self.candidates}"
            )

    def init(self, fed: Federation) -> FLHCState:
        first = first_state(self.model, self.stale, fed)
        return FLHCState(**vars(first), root={}, members=first.labels[:0], updates=flatten(first.models)[:0])

    def round(self, state: FLHCState, t: int, fed: Federation) -> FLHCState:
        if t == self.rounds_before:
            state = self.cluster(state, fed)
        trains = state.labels[fed.clients]
        cohort = torch.cat([fed.sample_from(fed.clients[trains == group]) for group in trains.unique()]).sort().values
        return self.blend(state, fed.run(self.train, cohort, self.offer(state, cohort, fed)), fed)

    def cluster(self, state: FLHCState, fed: Federation) -> FLHCState:
        """The clustering round: every cluster goes on from the model that all had."""
        root = rows(state.models, 0)
        replies = fed.run(self.differ, fed.clients, Offer(shared={"params": root}))
        updates = flatten(replies.stack("update"))
        groups = self.found(distances(updates, updates, self.metric))
        state = seat(state, replies.cohort, groups[:, None] == groups, fed)
        known = slice(None) if len(fed.clients) < fed.count else slice(0)
        state = replace(state, root=root, members=replies.cohort[known], updates=updates[known])
        return self.admit(state, fed.present[state.labels[fed.present] < 0], fed)

    def found(self, apart: Tensor) -> Tensor:
        """The clusters of clients whose updates are so far apart."""
        tree = merges(apart, self.linkage)
        return best_cut(tree, apart, self.candidates) if self.threshold is None else cut(tree, self.threshold)

    def admit(self, state: FLHCState, newcomers: Tensor, fed: Federation) -> FLHCState:
        need_labels(newcomers, fed, "FL+HC places clients by the updates they train")
        if not state.root or not len(newcomers):
            return state
        replies = fed.run(self.differ, newcomers, Offer(shared={"params": state.root}))
        update, labels = flatten(replies.stack("update")), state.labels[state.members]
        nearest = nearest_group(update, state.updates, labels, self.metric, self.linkage)
        return placed(state, newcomers, replies.cohort, nearest, fed)

    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from its cluster's model."""
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"params": trained})
