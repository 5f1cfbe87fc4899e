"""FL+HC: hierarchical clustering of local updates (Briggs, Fan and Andras, IJCNN 2020), Algorithm 1.

Settled where the paper is silent: updates Δw are compared, or the weights, of which it speaks too (`compare`); the
clustering round costs bytes but is no training round; the other rules are `Hierarchy`'s. An unseen client trains the
model that was clustered, and joins the cluster it would merge with first. The server holds the updates only while
clients may still join.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfed.capabilities import require_labels
from kinfed.checks import at_least
from kinfed.client_tasks import flatten_updates, select_weights
from kinfed.clustering.hierarchy import Dendrogram, Hierarchy
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.federation import Federation, Offer, Replies
from kinfed.methods.cluster_models import ClusteredOnce, ClusterModels, Merges, Stale, drop_outlying
from kinfed.models import Model
from kinfed.params import Params, flatten, repeat, select
from kinfed.per_client import Members
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLHCState:
    served: ClusterModels
    merges: Merges
    root: Params  # w, the model that was clustered; empty before
    members: Members  # [m] the clients that were clustered, and unseen ones are compared with
    updates: Tensor  # [m, parameters] Δw of each member, or w + Δw


@dataclass(frozen=True)
class FLHC(ClusteredOnce[FLHCState]):
    """FedAvg for some rounds, then one clustering of all clients' updates, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    rounds_before: int = 10  # n, rounds of FedAvg before the clustering
    hierarchy: Hierarchy = Hierarchy()
    compare: Literal["updates", "weights"] = "updates"  # weights: w + Δw; the same but for the cosine
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    needs_labels: ClassVar[str] = "FL+HC assigns clients by the updates they train"
    clusters_after: ClassVar[str] = "rounds_before"

    def __post_init__(self) -> None:
        at_least(0, rounds_before=self.rounds_before)

    def init(self, fed: Federation) -> FLHCState:
        served = ClusterModels.init(self.model, self.stale, fed)
        merges = Dendrogram.none(fed.device)
        return FLHCState(served, merges, {}, served.assignment[:0], torch.zeros(0, 0, device=fed.device))

    def round(self, state: FLHCState, t: int, fed: Federation) -> FLHCState:
        if t == self.rounds_before:
            state = self.cluster(state, fed)
        trains = state.served.assignment[fed.clients]
        sampled = [fed.sample_from(fed.clients[trains == cluster]) for cluster in trains.unique()]
        return replace(state, served=self.train_clusters(state.served, torch.cat(sampled).sort().values, fed))

    def cluster(self, state: FLHCState, fed: Federation) -> FLHCState:
        """The clustering round: every cluster goes on from the model that all had."""
        root = select(state.served.models, 0)
        replies = fed.run(self.differ, fed.clients, Offer(shared={"params": root}))
        replies, updates = drop_outlying(replies, self.points(root, replies), fed)
        merges = self.hierarchy.merge(replies.cohort, updates, fed.aggregation.count_doubted(len(updates)))
        served = state.served.relate(replies.cohort, NeighbourSets.of_clusters(merges.clusters()), fed)
        kept = slice(None) if len(fed.clients) < fed.count else slice(0)
        state = FLHCState(served, merges, root, replies.cohort[kept], updates[kept])
        return self.admit(state, fed.present[served.assignment[fed.present] < 0], fed)

    def points(self, root: Params, replies: Replies) -> Tensor:
        """What of these replies is compared: [replies, parameters]."""
        updates = flatten_updates(self.model, replies)
        return updates if self.compare == "updates" else updates + flatten(select_weights(self.model, repeat(root, 1)))

    def admit(self, state: FLHCState, unseen: Tensor, fed: Federation) -> FLHCState:
        require_labels(self, unseen, fed)
        if not state.root or not len(unseen):
            return replace(state, served=state.served.assign(unseen, unseen[:0], unseen[:0], fed))
        replies = fed.run(self.differ, unseen, Offer(shared={"params": state.root}))
        update, clusters = self.points(state.root, replies), state.served.assignment[state.members]
        nearest = self.hierarchy.predict(update, state.updates, clusters)
        return replace(state, served=state.served.assign(unseen, replies.cohort, nearest, fed))
