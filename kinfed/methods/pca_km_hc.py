"""PCA+kM+HC, FLT's baseline (Jamali-Rad et al., IEEE TNNLS 2022, section V), after one-shot federated clustering.

As in FLT's code each client fits its own PCA, so centres of different clients are not in one coordinate system: this
makes the method weak, and is kept. Deviations: samples are not repeated where a client has fewer than there are
components (it would change neither directions nor centres; further coordinates are 0), components are signed so that
their largest loading is positive, and an unseen client, of which the paper says nothing, is served as the nearest one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfed.capabilities import AssignsUnseen
from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import components, ward
from kinfed.clustering.kmeans import Part, kmeans, principal_directions
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import ConfigError
from kinfed.federation import Federation
from kinfed.methods.cluster_models import Clustered, ClusterModels, Stale, find_components, require_signatures
from kinfed.models import TOKENS, Model, count_tokens
from kinfed.relatedness import set_distances, warn_if_unconnected
from kinfed.signatures import Signatures
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class PCAState:
    served: ClusterModels
    known: Signatures


@dataclass(frozen=True)
class PCAKMeansHC(Clustered[PCAState], AssignsUnseen[PCAState]):
    """Related clients are found before training by k-means centres in each client's own PCA."""

    model: Model
    local: LocalTraining = LocalTraining()
    components: int = 128  # of each client's PCA
    k: int = 5  # centres of every client
    threshold: float = 1.2  # γ: clients nearer than this are related
    clusters: int = 0  # C, by Ward's linkage; 0: the relatedness graph as it is
    restarts: int = 10  # of k-means
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    def __post_init__(self) -> None:
        if self.components < 1 or not 1 <= self.k <= 6 or self.restarts < 1:
            got = f"{self.components}, {self.restarts}, {self.k}"
            raise ConfigError(f"wanted components and restarts >= 1, k in 1..6, got {got}")
        at_least(0, threshold=self.threshold, clusters=self.clusters)

    def init(self, fed: Federation) -> PCAState:
        replies = fed.run(self.compute_signature, fed.clients)
        require_signatures(replies.cohort)
        clients, served = replies.cohort, ClusterModels.init(self.model, self.stale, fed)
        known = Signatures.none(fed.count, self.k, replies["centroids"].shape[2], fed.device).update(replies)
        related = self.distances(known, clients, clients) < self.threshold
        related = related | related.T | torch.eye(len(clients), dtype=torch.bool, device=fed.device)
        if self.clusters:
            warn_if_unconnected(components(related), self.clusters)
            clusters = ward(related, self.clusters)
            related = clusters[:, None] == clusters
        return PCAState(served.relate(clients, NeighbourSets.of_matrix(related.to(fed.device)), fed), known)

    def round(self, state: PCAState, t: int, fed: Federation) -> PCAState:
        return replace(state, served=self.train_clusters(state.served, fed.sample(), fed))

    @client_task(key="describe")  # its first name: another key would draw other centres, and change results
    def compute_signature(self, client: Client) -> Reply:
        """Client task: k-means centres of its samples in its own principal components."""
        parts = [Part(as_vectors(self.model, b.x), b.mask) for b in client.train.in_order()]
        mean, directions = principal_directions(parts, self.components)
        projected = [Part((x - mean) @ directions, mask) for x, mask in parts]
        return Reply({"centroids": kmeans(projected, self.k, client.key, restarts=self.restarts).points.float()})

    def distances(self, known: Signatures, some: Tensor, others: Tensor) -> Tensor:
        """The matching distance from each of some clients to each of the others."""
        a, b = known.of(some), known.of(others)
        return set_distances("matching", a.centroids, a.shares, b.centroids, b.shares)

    def admit(self, state: PCAState, unseen: Tensor, fed: Federation) -> PCAState:
        members, replies = self.members(state), fed.run(self.compute_signature, unseen)
        known = state.known.update(replies)
        nearest = members[self.distances(known, replies.cohort, members).argmin(1)]
        return PCAState(state.served.assign(unseen, replies.cohort, state.served.assignment[nearest], fed), known)

    def members(self, state: PCAState) -> Tensor:
        """Ids of the clients that have a model and a signature."""
        return ((state.served.assignment >= 0) & state.known.exist()).nonzero()[:, 0]

    def cluster_assignment(self, state: PCAState) -> Tensor:
        return find_components(self.neighbours(state).matrix())

    def distances_to_clusters(self, state: PCAState, clients: Tensor, fed: Federation) -> Tensor:
        others = self.members(state)
        others = others[torch.isin(others, clients, invert=True)]
        clusters, apart = self.cluster_assignment(state)[others], self.distances(state.known, clients, others)
        nowhere = torch.full((len(clients), int(clusters.max()) + 1), torch.inf, device=fed.device)
        return nowhere.scatter_reduce(1, clusters.expand_as(apart), apart, "amin")

    def assignment_rule(self) -> str:
        return "a client is served as the one is whose k-means centres match its own best"


def as_vectors(model: Model, x: Tensor) -> Tensor:
    """Samples as the model takes them, flat, in double; token ids as frequencies: [b, d]."""
    return (count_tokens(x) if x.dtype in TOKENS else model.inputs(x).flatten(1)).double()
