"""Clients compared with each other: the groups they form, and who is related to whom.

Three ways to the same answers: from all pairs, which few clients allow; from points, where only near ones are looked
at; and from the pairs of a sparse graph. Memory grows with the pairs that are related, not with all pairs.
"""

from dataclasses import dataclass
from math import inf, nextafter
from typing import Protocol

import torch
from torch import Tensor

from kinfed.clustering.graph import average_linkage, components, ward, ward_of_neighbours
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.micro_clusters import average_clusters
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.clustering.sparse import SparseGraph
from kinfed.relatedness.in_common import neighbours_of_points

LUMPS = 4000  # that many points are condensed to before they are linked


class Compared(Protocol):
    def clusters(self, clusters: int = 0) -> Tensor:
        """The group of each client: [M]; so many of Ward's clusters of the graph's rows, or as many as there are."""

    def neighbours(self) -> NeighbourSets:
        """Who is related to whom."""

    def tree(self, members: Tensor, clusters: int = 0) -> Dendrogram:
        """The merges behind these groups of clients with these ids; none where nothing was merged, or too many."""


@dataclass(frozen=True)
class Matrix:
    """Few clients: whether each two are related (bool [M, M]), and their distances where groups are cut by them."""

    related: Tensor
    distances: Tensor | None
    near: float

    def clusters(self, clusters: int = 0) -> Tensor:
        if clusters:
            return ward(self.related, clusters).to(self.related.device)
        if self.distances is None:
            return components(self.related).to(self.related.device)
        return average_linkage(self.distances, self.near).to(self.related.device)

    def neighbours(self) -> NeighbourSets:
        return NeighbourSets.of_matrix(self.related)

    def tree(self, members: Tensor, clusters: int = 0) -> Dendrogram:
        if clusters or self.distances is None:
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
            return ward_of_neighbours(self.neighbours(), clusters).to(self.points.device)
        return average_clusters(self.points, self.near, LUMPS)

    def neighbours(self) -> NeighbourSets:
        return neighbours_of_points(self.points, self.near, self.overlap)

    def tree(self, members: Tensor, clusters: int = 0) -> Dendrogram:
        return Dendrogram.none(members.device)


@dataclass(frozen=True)
class Pairs:
    """Many clients, and the pairs of them that are related."""

    graph: SparseGraph
    device: torch.device  # of the answers; the graph itself is in main memory

    def clusters(self, clusters: int = 0) -> Tensor:
        found = ward_of_neighbours(self.neighbours(), clusters) if clusters else self.graph.components()
        return found.to(self.device)

    def neighbours(self) -> NeighbourSets:
        return self.graph.neighbours().to(self.device)

    def tree(self, members: Tensor, clusters: int = 0) -> Dendrogram:
        return Dendrogram.none(members.device)
