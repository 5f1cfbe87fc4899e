"""Clusters found once, by K-Means of clients' signatures (REPA, WD)."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from kinfed.capabilities import NONE_SUMMED, HasSignatures, require_labels
from kinfed.checks import at_least, seed_of_numpy
from kinfed.clustering.hierarchy import distances
from kinfed.clustering.kmeans import server_kmeans
from kinfed.clustering.silhouettes import fit_to_most
from kinfed.federation import Federation, Replies
from kinfed.methods.cluster_models import Clustered, ClusterModels, require_signatures
from kinfed.params import Params, select


@dataclass(frozen=True)
class KMeansState:
    """Clusters that k-means found once, and what an unseen client is compared with."""

    served: ClusterModels
    root: Params  # what clients compute their signatures with, frozen: REPA's encoder φ, WD's common model θ
    centres: Tensor  # [clusters, d] of K-Means


class ClusteredByKMeans(Clustered[KMeansState], HasSignatures[KMeansState]):
    """Clusters found once, before training, by K-Means of clients' signatures; a method says what these are."""

    clusters: int
    seed: int
    stores_signatures: ClassVar[bool] = False
    summed_tasks: ClassVar[Mapping[str, str]] = NONE_SUMMED  # unless signatures are no models

    def __post_init__(self) -> None:
        seed_of_numpy(self.seed)
        at_least(1, clusters=self.clusters)

    @abstractmethod
    def learn_root(self, first: Params, fed: Federation) -> Params:
        """Server: what clients compute their signatures with; all models start as `first`."""

    @abstractmethod
    def collect(self, root: Params, clients: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
        """Server: the replies of these clients, and their signatures of length one: [replies, d]."""

    def init(self, fed: Federation) -> KMeansState:
        served = ClusterModels.init(self.model, self.stale, fed, self.clusters)
        root = self.learn_root(select(served.models, 0), fed)
        replies, points = self.collect(root, fed.clients, fed)
        require_signatures(replies.cohort)
        usual = points[~fed.find_outliers(replies.cohort, points)]  # the others join the clusters that these form
        if doubted := fed.aggregation.count_doubted(len(usual)):
            usual = usual[self.find_most(usual, doubted)]
        centres = self.fit(usual)[1]
        return self.assign(KMeansState(served, root, centres), fed.clients, replies, points, fed)

    def find_most(self, points: Tensor, doubted: int) -> Tensor:
        """Server: which of these points clusters are fitted to, where so many clients may lie."""
        return fit_to_most(
            len(points), doubted, lambda i: self.fit(points[i])[0], lambda i: distances(points[i], points[i], "l2")
        )[0]

    def fit(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Server: the cluster of each of these points, and the centres."""
        return server_kmeans(points, min(self.clusters, len(points)), points[:0], self.seed, runs=10)

    def round(self, state: KMeansState, t: int, fed: Federation) -> KMeansState:
        return replace(state, served=self.train_clusters(state.served, fed.sample(), fed))

    def admit(self, state: KMeansState, unseen: Tensor, fed: Federation) -> KMeansState:
        require_labels(self, unseen, fed)
        return self.assign(state, unseen, *self.collect(state.root, unseen, fed), fed)

    def assign(
        self, state: KMeansState, clients: Tensor, replies: Replies, points: Tensor, fed: Federation
    ) -> KMeansState:
        """The state in which these clients are in the cluster with the centre nearest to their signature."""
        nearest = distances(points, state.centres, "l2").argmin(1)
        return replace(state, served=state.served.assign(clients, replies.cohort, nearest, fed))

    def distances_to_clusters(self, state: KMeansState, clients: Tensor, fed: Federation) -> Tensor:
        """Server: distances from these clients' signatures to each centre: [clients, clusters]."""
        return distances(self.collect(state.root, clients, fed)[1], state.centres, "l2")

    def signatures(self, state: KMeansState, fed: Federation) -> Tensor:
        replies, points = self.collect(state.root, fed.clients, fed)
        return replies.align(fed.clients, points)
