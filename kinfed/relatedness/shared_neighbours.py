"""Related clients share neighbours: one wrong edge between two clusters does not survive."""

from collections.abc import Iterator

import torch
from torch import Tensor

from kinfed.clustering.micro_clusters import radius_neighbours
from kinfed.clustering.neighbour_sets import Block, NeighbourSets, SparseGraph, draw_weights, find_distinct

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
