"""From signatures to a graph of related clients, and to groups."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kinfed.checks import seed_of_numpy
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import ConfigError
from kinfed.relatedness.clear import drawn, near_enough
from kinfed.relatedness.compared import Compared, Matrix, Pairs, Points
from kinfed.relatedness.in_common import have_in_common
from kinfed.relatedness.kernel import fit_kernel
from kinfed.relatedness.near_sets import near_sets
from kinfed.relatedness.projection import project, project_more
from kinfed.relatedness.set_distances import set_distances
from kinfed.signatures.known import Signatures

Distance = Literal["kernel", "transport", "matching", "min"]
AT_ONCE = 2**23  # distances of strangers and known clients


@dataclass(frozen=True)
class Relatedness:
    """Two clients are related when their signatures are nearer than the threshold.

    `kernel` compares the distributions that the centroids sum up, in latent space, and needs no oracle for k. The
    others compare centroid sets after UMAP: optimal `transport`, FLT's code (`matching`), FLT's print (`min`).
    """

    distance: Distance = "kernel"  # between two clients' sets of centroids
    threshold: float = 0.0  # γ; 0: 0.25 for kernel (wider where no groups are clear), 3 for transport, else 1
    kernel_width: float = 0.4  # in units of the median distance of two centroids
    overlap: float = 0.5  # kernel: relatives must have at least this share of all their near ones in common
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
        seed_of_numpy(self.seed)
        if not 0 < self.overlap <= 1 or self.all_pairs < 1:
            got = f"{self.overlap} and {self.all_pairs}"
            raise ConfigError(f"wanted overlap in (0, 1] and all_pairs >= 1, got {got}")

    @property
    def near(self) -> float:
        """The threshold γ as it is set, or the distance's own."""
        return self.threshold or {"kernel": 0.25, "transport": 3.0}.get(self.distance, 1.0)

    def reach(self, distances: Tensor) -> float:
        """The threshold γ in force among clients that are so far from each other: [M, M]."""
        if self.threshold or self.distance != "kernel":
            return self.near
        some = drawn(len(distances), self.seed).to(distances.device)
        return near_enough(distances[some][:, some], self.near)

    @property
    def needs_shares(self) -> bool:
        """Whether clients must say how many rows each centroid stands for."""
        return self.distance in ("kernel", "transport")

    def compare(self, known: Signatures) -> Compared:
        """The clients compared with each other: all pairs of few, of many those that can be near."""
        if len(known) <= self.all_pairs:
            return self._all_pairs(self.distances(known))
        if self.distance == "kernel":
            points = fit_kernel(known, self.kernel_width, self.seed)(known)
            return Points(points, self._reach_among(points), self.overlap)
        points, _ = self._projected(known, None)
        return Pairs(near_sets(self.distance, points, known.shares, self.near), points.device)

    def distances(self, known: Signatures, unseen: Signatures | None = None) -> Tensor:
        """Distances from each stranger (or each known client) to each known client: [S, M]."""
        whose = known if unseen is None else unseen
        if self.distance == "kernel":
            kernel = fit_kernel(known, self.kernel_width, self.seed)
            return torch.cdist(kernel(whose), kernel(known))
        points, others = self._projected(known, unseen)
        return set_distances(self.distance, others, whose.shares, points, known.shares)

    def related(self, distances: Tensor) -> Tensor:
        """Pairs nearer than the threshold, and everyone to himself: bool [M, M]."""
        return self._all_pairs(distances).related

    def clusters(self, distances: Tensor, clusters: int = 0) -> Tensor:
        """Disjoint groups: [M]. So many of Ward's clusters of the graph's rows, or as many groups as there are.

        Kernel distances are cut by average linkage at the threshold; the UMAP graph's groups are its components.
        """
        return self._all_pairs(distances).clusters(clusters)

    def near_known(self, known: Signatures, unseen: Signatures) -> NeighbourSets:
        """The known clients that each stranger is nearer to than the threshold."""
        some, near = max(1, AT_ONCE // len(known)), self.near
        if self.distance == "kernel":
            kernel = fit_kernel(known, self.kernel_width, self.seed)
            there = kernel(known)
            near = self._reach_among(there)
            parts = (torch.cdist(part, there) for part in kernel(unseen).split(some))
        else:
            points, others = self._projected(known, unseen)
            both = zip(others.split(some), unseen.shares.split(some), strict=True)
            parts = (set_distances(self.distance, part, shares, points, known.shares) for part, shares in both)
        return NeighbourSets.stacked([NeighbourSets.of_matrix(apart < near) for apart in parts])

    def _all_pairs(self, distances: Tensor) -> Matrix:
        """Clients that are so far from each other, compared: kernel distances are also what groups are cut by."""
        reach = self.reach(distances)
        near = distances < reach
        near = near | near.T | torch.eye(len(near), dtype=torch.bool, device=near.device)
        if self.distance == "kernel":
            return Matrix(have_in_common(near, self.overlap), distances, reach)
        return Matrix(near, None, reach)

    def _reach_among(self, points: Tensor) -> float:
        some = points[drawn(len(points), self.seed).to(points.device)]
        return self.reach(torch.cdist(some, some))

    def _projected(self, known: Signatures, unseen: Signatures | None) -> tuple[Tensor, Tensor]:
        """Centroids of the known clients, and of the strangers, as points in the plane."""
        settings = (self.dimensions, self.neighbours, self.min_dist, self.seed)
        flat, (clients, k, _) = known.centroids.flatten(0, 1), known.centroids.shape
        points = project(flat, *settings).view(clients, k, self.dimensions)
        if unseen is None:
            return points, points
        return points, project_more(flat, unseen.centroids.flatten(0, 1), *settings).view(-1, k, self.dimensions)


def nearest_clusters(known: Signatures, clusters: Tensor, unseen: Signatures) -> Tensor:
    """The group whose mean signature in latent space is nearest to each stranger's: [S]."""
    names, apart = from_clusters(known, clusters, unseen)
    return names[apart.argmin(1)]


def from_clusters(known: Signatures, clusters: Tensor, unseen: Signatures) -> tuple[Tensor, Tensor]:
    """The groups there are [G], and how far each stranger is from each one's mean signature in latent space [S, G]."""
    names, whose = clusters.unique(return_inverse=True)
    each = known.means()
    sums = each.new_zeros(len(names), each.shape[1]).index_add(0, whose, each)
    means = sums / torch.bincount(whose, minlength=len(names))[:, None]
    return names, torch.cdist(unseen.means(), means)
