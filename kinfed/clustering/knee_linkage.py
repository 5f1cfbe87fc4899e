"""Clusters of points linked by steps of at most the knee of nearest distances, and points that join two of them."""

import torch
from torch import Tensor

from kinfed.clustering.hierarchy import components, distances
from kinfed.clustering.silhouettes import silhouette

MANY = 100  # points; among more it is not looked for what one of them does
FEWEST = 2  # points of a cluster that another one is parted from


def link_within_knee(points: Tensor, radius: float = 1.0, copies: Tensor | None = None, doubted: int = 0) -> Tensor:
    """Clusters of points that are linked by steps of at most the knee, times a radius: [m].

    That is DBSCAN with two points to a cluster, and each that is left over as one of its own. Distances of `copies`
    (bool [m]) to their nearest neighbours do not count. Where some points are in doubt, clusters are also looked for at
    the knees of all points but one, where none of the doubted links two; those of the largest silhouette are taken.
    """
    apart = distances(points.double(), points.double(), "l2").cpu()  # many small steps follow
    copies = torch.zeros_like(apart[0], dtype=torch.bool) if copies is None else copies.cpu()
    knee = find_knee(apart, copies)
    linked = components(apart <= radius * knee)
    if not doubted or len(points) > MANY:
        return linked.to(points.device)
    others = ~torch.eye(len(points), dtype=torch.bool)
    knees = {knee} | {find_knee(apart[some][:, some], copies[some]) for some in others}
    found = [linked] + [components(part_joined(apart, radius * each, doubted)) for each in sorted(knees)]
    return max(found, key=lambda clusters: silhouette(apart, clusters)).to(points.device)


def find_knee(apart: Tensor, copies: Tensor) -> float:
    """Where sorted distances to nearest neighbours are furthest below the line from the least to the largest.

    Those of copies (bool [m]), and of points that are equal, do not count: two such points would set a radius that
    links no others.
    """
    nearest = (apart + torch.diag(torch.full_like(apart[0], torch.inf))).amin(1)
    counts = (nearest > 0) & ~copies
    nearest = (nearest[counts] if bool(counts.any()) else nearest).sort().values
    below = torch.linspace(0, 1, len(nearest)) * (nearest[-1] - nearest[0]) - nearest
    return float(nearest[below.argmax()])


def part_joined(apart: Tensor, radius: float, doubted: int) -> Tensor:
    """Who is within this radius of whom, where no more than the doubted join two clusters alone: bool [m, m].

    Such a point, a cut vertex of the graph, is near those alone that its nearest neighbour is linked to without it. The
    first is the one whose second part has most points.
    """
    near = apart <= radius
    for _ in range(doubted):
        parts = [link_others(near, point) for point in range(len(near))]
        joined = torch.tensor([count_joined(near[i], part, i) for i, part in enumerate(parts)])
        point = int(joined.argmax())
        if joined[point] < FEWEST:
            break
        own = apart[point].index_fill(0, torch.tensor([point]), torch.inf)
        kept = near[point] & (parts[point] == parts[point][own.argmin()])
        near[point], near[:, point] = kept, kept
        near[point, point] = True
    return near


def link_others(near: Tensor, point: int) -> Tensor:
    """The connected component of each point in the graph without the edges of this one: [m]."""
    others = near.clone()
    others[point], others[:, point] = False, False
    return components(others)


def count_joined(near: Tensor, parts: Tensor, point: int) -> int:
    """How many points are in the second largest part that a point near these (bool [m]) joins, 0 for one part."""
    whose = parts[near & (parts != parts[point])].unique()
    sizes = parts.bincount()[whose].sort(descending=True).values
    return int(sizes[1]) if len(sizes) > 1 else 0
