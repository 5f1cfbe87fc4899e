"""The protocol by which clients are related by their signatures, and what a comparison gives: clusters and neighbours.

Three ways to the same result: from all pairs, which few clients allow; from points, where only near ones are looked
at; and from the pairs of a sparse graph. Memory grows with the pairs that are related, not with all pairs.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, nextafter
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from kinfed.clustering.hierarchy import (
    Dendrogram,
    average_linkage,
    components,
    cut_distances,
    ward,
    ward_of_neighbours,
)
from kinfed.clustering.micro_clusters import average_clusters, cut_points, radius_neighbours
from kinfed.clustering.neighbour_sets import Block, NeighbourSets, SparseGraph, draw_weights, find_distinct
from kinfed.errors import ConfigError
from kinfed.signatures import Signatures

MICRO_CLUSTERS = 4000  # that many points are condensed to before they are linked


@runtime_checkable
class Clusterer(Protocol):
    """Which clients are related, by their signatures. A plug-in inherits from it, and so has all defaults."""

    @abstractmethod
    def compare(self, known: Signatures) -> "ComparedClients":
        """The clients with these signatures compared with each other; `DisjointClusters` is the simplest result."""

    def relate_unseen(self, known: Signatures, unseen: Signatures) -> NeighbourSets:
        """The known clients that each unseen one is related to."""
        raise ConfigError(f"{type(self).__name__} relates no unseen clients: set newcomers = 'nearest'")

    def needs_shares(self) -> bool:
        """Whether clients must send the share of their samples that each point stands for."""
        return False

    def needs_parts(self) -> bool:
        """Whether points must be means of random parts of a client's samples (`Signature.has_parts`)."""
        return False


class Fit(NamedTuple):
    """How well unseen clients fit the clusters."""

    clusters: Tensor  # [S] the likeliest cluster of each
    p_values: Tensor  # [S] how often a client of that cluster is as far from it
    fits: Tensor  # [S] bool: the p-value is not below the level
    distances: Tensor  # [S, clusters], infinite for a cluster that nobody is in
    probabilities: Tensor  # [S] of that cluster, if it is one of these

    def replace_where(self, some: Tensor, other: "Fit") -> "Fit":
        """The other fit for some of the clients (bool [S])."""
        return Fit(*(b.where(some.view(-1, *[1] * (a.dim() - 1)), a) for a, b in zip(self, other, strict=True)))


@runtime_checkable
class JudgesFit(Protocol):
    """A clusterer that says of unseen clients whether they fit any cluster."""

    def fit_unseen(self, known: Signatures, clusters: Tensor, unseen: Signatures) -> Fit:
        """The cluster of each unseen client among those of the known ones ([M]), and how well it fits there."""


class ComparedClients(Protocol):
    """Clients that have been compared: what follows from it, computed when it is asked for."""

    def clusters(self, clusters: int = 0) -> Tensor:
        """The cluster of each client: [M]; so many, or as many as there are."""

    def neighbours(self) -> NeighbourSets:
        """Who is related to whom."""

    def dendrogram(self, members: Tensor, clusters: int = 0) -> Dendrogram:
        """The merges behind these clusters of clients with these ids; none where nothing was merged, or too many."""


@dataclass(frozen=True)
class DisjointClusters:
    """Clients related to those of their own cluster ([M])."""

    labels: Tensor

    def clusters(self, clusters: int = 0) -> Tensor:
        return self.labels

    def neighbours(self) -> NeighbourSets:
        return NeighbourSets.of_clusters(self.labels)

    def dendrogram(self, members: Tensor, clusters: int = 0) -> Dendrogram:
        return Dendrogram.none(members.device)


@dataclass(frozen=True)
class Matrix:
    """Few clients: whether each two are related (bool [M, M]), and their distances.

    Clusters are cut by distances where these are of points (`of_points`), else by the graph. A number of clusters that
    is smaller than that of the graph's parts says nothing of which parts to join: distances do.
    """

    related: Tensor
    distances: Tensor
    near: float
    of_points: bool

    def clusters(self, clusters: int = 0) -> Tensor:
        return self._cut(clusters).to(self.related.device)

    def _cut(self, clusters: int) -> Tensor:
        if not clusters and self.of_points:
            return average_linkage(self.distances, self.near)
        if clusters and self.of_points:
            return cut_distances(self.distances, clusters, "ward")
        parts = components(self.related)
        if not clusters:
            return parts
        if clusters < len(parts.unique()):
            return cut_distances(self.distances, clusters, "average")
        return ward(self.related, clusters)

    def neighbours(self) -> NeighbourSets:
        return NeighbourSets.of_matrix(self.related)

    def dendrogram(self, members: Tensor, clusters: int = 0) -> Dendrogram:
        if clusters or not self.of_points:
            return Dendrogram.none(members.device)
        made = nextafter(self.near, inf)  # a merge at the threshold is
        return Dendrogram.of(members, self.distances, "average", made)


@dataclass(frozen=True)
class Points:
    """Many clients, each one point ([M, d])."""

    points: Tensor
    near: float
    overlap: float

    def clusters(self, clusters: int = 0) -> Tensor:
        if clusters:
            return cut_points(self.points, clusters, self.near, MICRO_CLUSTERS)
        return average_clusters(self.points, self.near, MICRO_CLUSTERS)

    def neighbours(self) -> NeighbourSets:
        return neighbours_of_points(self.points, self.near, self.overlap)

    def dendrogram(self, members: Tensor, clusters: int = 0) -> Dendrogram:
        return Dendrogram.none(members.device)


@dataclass(frozen=True)
class Pairs:
    """Many clients, and the pairs of them that are related."""

    graph: SparseGraph
    device: torch.device  # of the answers; the graph itself is in main memory

    def clusters(self, clusters: int = 0) -> Tensor:
        parts = self.graph.components()
        if clusters and clusters < len(parts.unique()):
            raise ConfigError(
                f"wanted {clusters} clusters of a graph of {len(parts.unique())} unconnected parts, which says nothing "
                "of which parts to join: set a larger relatedness.threshold, or clusters = 0"
            )
        return (ward_of_neighbours(self.neighbours(), clusters) if clusters else parts).to(self.device)

    def neighbours(self) -> NeighbourSets:
        return self.graph.neighbours().to(self.device)

    def dendrogram(self, members: Tensor, clusters: int = 0) -> Dendrogram:
        return Dendrogram.none(members.device)


ROWS = 1024  # of a block


def share_neighbours(near: Tensor, overlap: float) -> Tensor:
    """Pairs whose near ones overlap (Jaccard index), of a bool matrix [n, n]."""
    number = near.float()
    common, size = number @ number.T, number.sum(1)
    return overlap_enough(common, size, size, overlap)


def overlap_enough(common: Tensor, size: Tensor, others: Tensor, overlap: float) -> Tensor:
    """Whether what two have in common is at least this share of what either has: bool [a, b]."""
    return common >= overlap * (size[:, None] + others - common).clamp(min=1)


def neighbours_of_points(points: Tensor, radius: float, overlap: float) -> NeighbourSets:
    """The neighbours of each point: those with enough near ones in common, never looking at a matrix of all pairs.

    Points that are near the same ones are twins, and one of them stands for all: their rows and columns are the same.
    """
    first, twin = find_distinct(hash_near(points, radius))
    graph = near_graph(points[first], radius)
    found = link_sharing(graph, torch.bincount(twin), overlap).neighbours().to(points.device)
    return NeighbourSets(found.rows[:, twin], found.whose[twin])


def hash_near(points: Tensor, radius: float) -> Tensor:
    """Two numbers that tell apart who is near to each point: [n, 2]."""
    drawn = draw_weights(len(points), points.device)
    marks = torch.zeros_like(drawn)
    for some, others, near in near_blocks(points, radius):
        marks[some] = near.double() @ drawn[others]
    return marks


def near_graph(points: Tensor, radius: float) -> SparseGraph:
    """Who is nearer than `radius` to whom, and every point to itself."""
    return SparseGraph.of_blocks(len(points), near_blocks(points, radius))


def near_blocks(points: Tensor, radius: float) -> Iterator[Block]:
    for some, others in radius_neighbours(points, radius):
        yield some, others, (torch.cdist(points[some], points[others]) < radius) | (some[:, None] == others)


def link_sharing(graph: SparseGraph, counts: Tensor, overlap: float) -> SparseGraph:
    """Pairs whose near ones overlap; point i stands for counts[i] of them."""
    size = graph.sums(counts[:, None].double().cpu())[:, 0].float()
    return SparseGraph.of_blocks(len(graph), sharing_blocks(graph, counts.float().cpu(), size, overlap))


def sharing_blocks(graph: SparseGraph, counts: Tensor, size: Tensor, overlap: float) -> Iterator[Block]:
    """Which points share enough neighbours, for some points of one component after the other."""
    component = graph.components()
    members = component.argsort(stable=True).split(torch.bincount(component).tolist())
    for some in (part for whole in members for part in whole.split(ROWS)):
        near = graph.targets(some)
        others = graph.targets(near)  # only they can have something in common with some of these
        place = torch.full((len(graph),), -1).index_copy(0, near, torch.arange(len(near)))
        mine = dense(graph, some, place) * counts[near]
        common = torch.cat([mine @ dense(graph, part, place).T for part in others.split(ROWS)], 1)
        yield some, others, overlap_enough(common, size[some], size[others], overlap)


def dense(graph: SparseGraph, some: Tensor, place: Tensor) -> Tensor:
    """1 where the graph has an edge from some to those that have a place: [some, places]."""
    row, to = graph.rows(some)
    matrix = torch.zeros(len(some), int(place.max()) + 1)
    matrix[row[place[to] >= 0], place[to][place[to] >= 0]] = 1
    return matrix
