"""From signatures to a graph of related clients, and to clusters."""

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kinfed.checks import at_least, seed_of_numpy
from kinfed.clustering.hierarchy import average_linkage
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.clustering.silhouettes import silhouette
from kinfed.errors import ConfigError
from kinfed.relatedness.clusterer import Clusterer, ComparedClients, Matrix, Pairs, Points, share_neighbours
from kinfed.relatedness.embeddings import fit_kernel, project, project_more
from kinfed.relatedness.set_distances import near_sets, set_distances
from kinfed.signatures import Signatures

Distance = Literal["kernel", "transport", "matching", "min"]
CLEAR = 0.25  # a silhouette up to this is no substantial structure (Kaufman and Rousseeuw, Finding Groups in Data)
MANY = 10  # clients; of fewer each may well be one of a kind
SEEN = 1000  # clients that are looked at, drawn where there are more
AT_ONCE = 2**23  # distances of unseen and known clients


@dataclass(frozen=True)
class Relatedness(Clusterer):
    """Two clients are related when their signatures are nearer than the threshold.

    `kernel` compares the distributions that the centroids sum up, in latent space, and needs no oracle for k. The
    others compare centroid sets after UMAP: optimal `transport`, FLT's code (`matching`), FLT's print (`min`).
    """

    distance: Distance = "kernel"  # between two clients' sets of centroids
    threshold: float = 0.0  # γ; 0: 0.25 for kernel (wider where no clusters are clear), 3 for transport, else 1
    kernel_width: float = 0.4  # in units of the median distance of two centroids
    overlap: float = 0.5  # kernel: related clients share at least this part of their neighbours
    dimensions: int = 2  # u, of UMAP
    neighbours: int = 15  # of a centroid, for UMAP
    min_dist: float = 0.1  # of UMAP
    seed: int = 42  # of UMAP
    all_pairs: int = 4000  # clients up to which every pair is compared; above, only those that can be near

    def __post_init__(self) -> None:
        if self.distance not in ("kernel", "transport", "matching", "min"):
            raise ConfigError(f"distance must be 'kernel', 'transport', 'matching' or 'min', got '{self.distance}'")
        if self.threshold < 0 or self.kernel_width <= 0 or self.dimensions < 1 or self.neighbours < 2:
            raise ConfigError(
                "wanted threshold >= 0, kernel_width > 0, dimensions >= 1 and neighbours >= 2, got "
                f"{self.threshold}, {self.kernel_width}, {self.dimensions} and {self.neighbours}"
            )
        at_least(0, threshold=self.threshold, kernel_width=self.kernel_width, min_dist=self.min_dist)
        seed_of_numpy(self.seed)
        if self.min_dist > 1:
            raise ConfigError(f"min_dist must be at most 1, UMAP's spread, got {self.min_dist}")
        if not 0 < self.overlap <= 1 or self.all_pairs < 1:
            got = f"{self.overlap} and {self.all_pairs}"
            raise ConfigError(f"wanted overlap in (0, 1] and all_pairs >= 1, got {got}")

    @property
    def near(self) -> float:
        """The threshold γ as it is set, or the distance's own."""
        return self.threshold or {"kernel": 0.25, "transport": 3.0}.get(self.distance, 1.0)

    def threshold_for(self, distances: Tensor) -> float:
        """The threshold γ in force among clients with these distances: [M, M]."""
        if self.threshold or self.distance != "kernel":
            self._warn_if_wide(distances)
            return self.near
        some = sample_positions(len(distances), self.seed).to(distances.device)
        return adapt_threshold(distances[some][:, some], self.near)

    def needs_shares(self) -> bool:
        return self.distance in ("kernel", "transport")

    def compare(self, known: Signatures) -> ComparedClients:
        """The clients compared with each other: all pairs of few, of many those that can be near."""
        if len(known) <= self.all_pairs:
            return self._all_pairs(self.distances(known))
        if self.distance == "kernel":
            points = fit_kernel(known, self.kernel_width, self.seed)(known)
            return Points(points, self._threshold_among(points), self.overlap)
        points, _ = self._project(known, None)
        return Pairs(near_sets(self.distance, points, known.shares, self.near), points.device)

    def distances(self, known: Signatures, unseen: Signatures | None = None) -> Tensor:
        """Distances from each unseen client (or each known one) to each known client: [S, M]."""
        whose = known if unseen is None else unseen
        if self.distance == "kernel":
            kernel = fit_kernel(known, self.kernel_width, self.seed)
            return torch.cdist(kernel(whose), kernel(known))
        points, others = self._project(known, unseen)
        return set_distances(self.distance, others, whose.shares, points, known.shares)

    def related(self, distances: Tensor) -> Tensor:
        """Pairs nearer than the threshold, and every client to itself: bool [M, M]."""
        return self._all_pairs(distances).related

    def clusters(self, distances: Tensor, clusters: int = 0) -> Tensor:
        """Disjoint clusters: [M], so many, or as many as there are.

        Kernel distances are cut by average linkage at the threshold, or by Ward's into so many. Those of the UMAP graph
        are its components, or so many of Ward's clusters of its rows.
        """
        return self._all_pairs(distances).clusters(clusters)

    def relate_unseen(self, known: Signatures, unseen: Signatures) -> NeighbourSets:
        """The known clients that each unseen one is nearer to than the threshold."""
        some, near = max(1, AT_ONCE // len(known)), self.near
        if self.distance == "kernel":
            kernel = fit_kernel(known, self.kernel_width, self.seed)
            there = kernel(known)
            near = self._threshold_among(there)
            parts = (torch.cdist(part, there) for part in kernel(unseen).split(some))
        else:
            points, others = self._project(known, unseen)
            both = zip(others.split(some), unseen.shares.split(some), strict=True)
            parts = (set_distances(self.distance, part, shares, points, known.shares) for part, shares in both)
        return NeighbourSets.stack([NeighbourSets.of_matrix(apart < near) for apart in parts])

    def _all_pairs(self, distances: Tensor) -> Matrix:
        """Clients with these distances, compared; clusters are cut by kernel distances too."""
        threshold = self.threshold_for(distances)
        near = distances < threshold
        near = near | near.T | torch.eye(len(near), dtype=torch.bool, device=near.device)
        of_points = self.distance == "kernel"
        return Matrix(share_neighbours(near, self.overlap) if of_points else near, distances, threshold, of_points)

    def _warn_if_wide(self, distances: Tensor) -> None:
        """Warns where a threshold that was set relates everybody, as the paper's γ = 1 does by another distance."""
        farthest = float(distances.max())
        if self.distance == "kernel" and farthest < self.near and len(distances) >= MANY:
            warnings.warn(
                f"relatedness.threshold = {self.near:g} relates all {len(distances)} clients, which is FedAvg: their "
                f"distances are {farthest:.2g} at most; the paper's γ = 1 is for its own, method = 'flt_paper'",
                stacklevel=3,
            )

    def _threshold_among(self, points: Tensor) -> float:
        some = points[sample_positions(len(points), self.seed).to(points.device)]
        return self.threshold_for(torch.cdist(some, some))

    def _project(self, known: Signatures, unseen: Signatures | None) -> tuple[Tensor, Tensor]:
        """Centroids of the known clients, and of the unseen ones, as points in the plane."""
        settings = (self.dimensions, self.neighbours, self.min_dist, self.seed)
        flat, (clients, k, _) = known.centroids.flatten(0, 1), known.centroids.shape
        points = project(flat, *settings).view(clients, k, self.dimensions)
        if unseen is None:
            return points, points
        return points, project_more(flat, unseen.centroids.flatten(0, 1), *settings).view(-1, k, self.dimensions)


def nearest_clusters(known: Signatures, clusters: Tensor, unseen: Signatures) -> Tensor:
    """The cluster whose mean signature is nearest to that of each unseen client: [S]."""
    names, apart = distances_to_means(known, clusters, unseen)
    return names[apart.argmin(1)]


def distances_to_means(known: Signatures, clusters: Tensor, unseen: Signatures) -> tuple[Tensor, Tensor]:
    """The clusters there are [G], and distances from each unseen client to their mean signatures [S, G]."""
    names, whose = clusters.unique(return_inverse=True)
    each = known.means()
    sums = each.new_zeros(len(names), each.shape[1]).index_add(0, whose, each)
    means = sums / torch.bincount(whose, minlength=len(names))[:, None]
    return names, torch.cdist(unseen.means(), means)


def adapt_threshold(distances: Tensor, near: float) -> float:
    """`near` if clusters that are cut there are clear; else the median distance of two clients, where that is more."""
    if len(distances) < MANY:
        return near
    clarity = silhouette(distances, average_linkage(distances, near))
    row, column = torch.triu_indices(len(distances), len(distances), 1, device=distances.device)
    typical = float(distances[row, column].median())
    if clarity > CLEAR or typical <= near:
        return near
    warnings.warn(
        f"no clear clusters (silhouette {clarity:.2f}): relatedness threshold raised from {near:g} to {typical:.2f} "
        "(median pairwise distance); relatedness.threshold sets another",
        stacklevel=2,
    )
    return typical


def sample_positions(clients: int, seed: int) -> Tensor:
    """Positions of those that are looked at."""
    return torch.randperm(clients, generator=torch.Generator().manual_seed(seed))[:SEEN].sort().values


def cluster_distances(known: Signatures, clusters: Tensor, unseen: Signatures) -> Tensor:
    """Distances from each unseen client to each cluster's mean signature: [S, clusters]; infinite if it is empty."""
    names, apart = distances_to_means(known, clusters, unseen)
    return torch.full((len(unseen), int(names.max()) + 1), torch.inf).index_copy(1, names.cpu(), apart.cpu())


def warn_if_fewer(found: Tensor, wanted: int) -> None:
    """Warns where fewer clusters were found ([M]) than were wanted."""
    if len(found.unique()) < wanted:
        warnings.warn(
            f"{len(found.unique())} clusters are found instead of {wanted}: clients are too alike", stacklevel=3
        )


def warn_if_unconnected(parts: Tensor, wanted: int) -> None:
    """Warns where the graph has more unconnected parts ([M]) than clusters are wanted of it."""
    if wanted < (found := len(parts.unique())):
        warnings.warn(
            f"{wanted} clusters are wanted of {found} groups that are related to no other: which of them become one "
            "says nothing; set a larger threshold, or clusters = 0",
            stacklevel=3,
        )


def warn_if_isolated(related: NeighbourSets) -> None:
    """Warns where most clients are related to no other, and will train alone."""
    alone = int(related.sizes()[related.rows.sum(1) <= 1].sum())
    if 2 * alone > len(related.whose) >= MANY:
        warnings.warn(
            f"{alone} of {len(related.whose)} clients are related to no other and train alone: signature.tuning = "
            "'none' and a larger relatedness.threshold, or none, bring them together",
            stacklevel=3,
        )
