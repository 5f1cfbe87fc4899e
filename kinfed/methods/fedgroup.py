"""FedGroup (Duan et al., 2020, arXiv 2010.06870; later FlexCFL): clusters by decomposed cosine similarity of updates.

Clients train the first model once. The server takes the C leading right singular vectors of their updates, compares
each update with these alone (the cosines, C numbers instead of all parameters), clusters them by K-Means, and trains
one model per cluster by FedAvg. An unseen client joins the cluster from whose mean update its own differs least,
(1 - cos)/2. Deviations: all clients train first (authors: 20·C, and the others as unseen ones); E epochs (authors: 50
steps); all clusters start from the first model; groups are not mixed with each other (the authors' η_G is 0, too).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinfed.capabilities import NONE_SUMMED, require_labels
from kinfed.checks import at_least, seed_of_numpy
from kinfed.client_tasks import flatten_updates
from kinfed.clustering.hierarchy import distances
from kinfed.clustering.kmeans import server_kmeans
from kinfed.clustering.silhouettes import fit_to_most
from kinfed.federation import Federation, Offer, Replies
from kinfed.methods.cluster_models import Clustered, ClusterModels, Stale, draw_models, drop_outlying
from kinfed.models import Model
from kinfed.params import one_hot, select
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedGroupState:
    served: ClusterModels
    directions: Tensor  # [C, parameters] the mean first update of each cluster


@dataclass(frozen=True)
class FedGroup(Clustered[FedGroupState]):
    """Clusters found before training by the main directions of all clients' updates, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    clusters: int = 5  # C, of K-Means; it must be given
    seed: int = 10  # of K-Means
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    needs_labels: ClassVar[str] = "FedGroup assigns clients by the updates they train"
    summed_tasks: ClassVar[Mapping[str, str]] = NONE_SUMMED  # single updates are compared

    def __post_init__(self) -> None:
        at_least(1, clusters=self.clusters)
        seed_of_numpy(self.seed)

    def init(self, fed: Federation) -> FedGroupState:
        served = ClusterModels.init(self.model, self.stale, fed, self.clusters)
        replies, updates = drop_outlying(*self.collect(fed.clients, fed), fed)
        doubted = fed.aggregation.count_doubted(len(updates))
        some, found = fit_to_most(
            len(updates), doubted, lambda i: self.fit(updates[i]), lambda i: distances(updates[i], updates[i], "cosine")
        )
        members = one_hot(found, self.clusters).to(updates.dtype)
        directions = members @ updates[some] / members.sum(1, keepdim=True).clamp(min=1)
        nearest = distances(updates, directions, "cosine").argmin(1)
        labels = nearest.index_copy(0, some, found)
        return FedGroupState(served.assign(fed.clients, replies.cohort, labels, fed), directions)

    def fit(self, updates: Tensor) -> Tensor:
        """Server: the cluster of each of these updates."""
        points = decompose(updates, self.clusters)
        return server_kmeans(points, min(self.clusters, len(points)), points[:0], self.seed, runs=10)[0]

    def collect(self, clients: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
        """Server: the replies of these clients, and their updates of the first model: [replies, parameters]."""
        first = select(draw_models(self.model, 1, fed.device), 0)
        replies = fed.run(self.differ, clients, Offer(shared={"params": first}))
        return replies, flatten_updates(self.model, replies)

    def round(self, state: FedGroupState, t: int, fed: Federation) -> FedGroupState:
        return replace(state, served=self.train_clusters(state.served, fed.sample(), fed))

    def admit(self, state: FedGroupState, unseen: Tensor, fed: Federation) -> FedGroupState:
        require_labels(self, unseen, fed)
        replies, updates = self.collect(unseen, fed)
        nearest = distances(updates, state.directions, "cosine").argmin(1)
        return replace(state, served=state.served.assign(unseen, replies.cohort, nearest, fed))


def decompose(updates: Tensor, rank: int) -> Tensor:
    """The cosines of updates with their leading right singular vectors: [clients, rank]."""
    directions: Tensor = torch.linalg.svd(updates.double(), full_matrices=False).Vh[:rank]
    return normalize(updates.double()) @ directions.T
