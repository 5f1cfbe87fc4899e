"""Average linkage of many points: near ones become micro-clusters first, and these are linked.

Only points within a radius of each other are compared: no step looks at all pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.errors import ConfigError

FINEST = 1e-6  # of the height: points nearer than this are one


@dataclass(frozen=True)
class MicroClusters:
    """Points that belong together, as their mean, their mean squared distance from it, and their number."""

    means: Tensor  # [n, d]
    spread: Tensor  # [n]
    counts: Tensor  # [n]

    def __len__(self) -> int:
        return len(self.means)

    def distances(self, some: Tensor, others: Tensor) -> Tensor:
        """Root of the mean squared distance of two points of two micro-clusters; for points, their distance: [a, b]."""
        square = torch.cdist(self.means[some], self.means[others]).square_()
        return square.add_(self.spread[some][:, None]).add_(self.spread[others]).sqrt_()

    def merge(self, whose: Tensor, number: int) -> "MicroClusters":
        """The micro-clusters that are left when micro-cluster i goes into whose[i]."""
        counts = torch.zeros(number, dtype=self.counts.dtype, device=whose.device).index_add(0, whose, self.counts)
        share = self.counts / counts[whose]
        means = self.means.new_zeros(number, self.means.shape[1]).index_add(0, whose, share[:, None] * self.means)
        moved = (self.means - means[whose]).square().sum(1)
        spread = self.spread.new_zeros(number).index_add(0, whose, share * (self.spread + moved))
        return MicroClusters(means, spread, counts)


def average_clusters(points: Tensor, height: float, most: int) -> Tensor:
    """Groups of points nearer than `height` to each other on average (UPGMA), from at most so many micro-clusters: [n].

    Micro-clusters grow by merging nearest pairs, as the linkage itself would; while they do, the root
    of the mean square stands for the mean distance.
    """
    micro_clusters, whose = condense(points.double(), height, most)
    if len(micro_clusters) > most:  # nothing is left to merge below the height
        return whose
    everyone = torch.arange(len(micro_clusters), device=points.device)
    tree = link(micro_clusters.distances(everyone, everyone), micro_clusters.counts, "average")
    return cut_at(tree, height).to(points.device)[whose]


def refuse_too_many(clusters: int, clients: int) -> None:
    """Raises ConfigError where there are fewer clients than clusters."""
    if clusters > clients:
        raise ConfigError(f"{clusters} clusters were asked for, but there are only {clients} clients: set fewer")


def cut_points(points: Tensor, clusters: int, height: float, most: int) -> Tensor:
    """So many of Ward's clusters of points, from at most so many micro-clusters, which may reach this height: [n]."""
    refuse_too_many(clusters, len(points))
    micro_clusters, whose = condense(points.double(), height, most)
    while len(micro_clusters) > most:
        height *= 2
        micro_clusters, whose = condense(points.double(), height, most)
    counts = micro_clusters.counts
    weight = (2 * counts[:, None] * counts / (counts[:, None] + counts)).sqrt()
    tree = link(weight * torch.cdist(micro_clusters.means, micro_clusters.means), counts, "ward")
    return cut_into(tree, clusters).to(points.device)[whose]


def condense(points: Tensor, height: float, most: int) -> tuple[MicroClusters, Tensor]:
    """At most so many micro-clusters, or as many as cannot be merged below the height; and each point's."""
    micro_clusters, whose = equal_points(points, height)
    for radius in (height / 8, height / 4, height / 2, height):  # short ways first: fewer pairs are within them
        few = len(points) // 100 if radius < height else 0
        merged = few + 1
        while len(micro_clusters) > most and merged > few:
            into, left = merge_mutual(micro_clusters, radius, most)
            merged = len(micro_clusters) - left
            micro_clusters, whose = micro_clusters.merge(into, left), into[whose]
    return micro_clusters, whose


def merge_mutual(micro_clusters: MicroClusters, radius: float, most: int) -> tuple[Tensor, int]:
    """Where each goes when mutually nearest micro-clusters are merged, and how many are left, `most` at least.

    Merging all such pairs at once gives the same tree as one after the other: none gets nearer by a merge.
    """
    nearest, apart = nearest_micro_clusters(micro_clusters, radius)
    here = torch.arange(len(micro_clusters), device=nearest.device)
    pairs = ((nearest[nearest] == here) & (here < nearest) & (apart <= radius)).nonzero()[:, 0]
    pairs = pairs[apart[pairs].argsort()[: len(micro_clusters) - most]]
    kept, into = here.index_copy(0, nearest[pairs], pairs).unique(return_inverse=True)
    return into, len(kept)


def equal_points(points: Tensor, height: float) -> tuple[MicroClusters, Tensor]:
    """One micro-cluster for all points that are equal, all but; and the micro-cluster of each point."""
    rough = torch.cat([points / (FINEST * height), points.new_zeros(len(points), 1)], 1).round()  # a column at least
    _, whose = rough.unique(dim=0, return_inverse=True)
    single = MicroClusters(points, points.new_zeros(len(points)), points.new_ones(len(points)))
    return single.merge(whose, int(whose.max()) + 1), whose


def nearest_micro_clusters(micro_clusters: MicroClusters, radius: float) -> tuple[Tensor, Tensor]:
    """The nearest other micro-cluster of each within the radius, and its distance (infinite if none): [n], [n]."""
    means = micro_clusters.means - micro_clusters.means.mean(0)
    own = means.square().sum(1) + micro_clusters.spread
    nearest = torch.arange(len(micro_clusters), device=means.device)
    least = means.new_full((len(micro_clusters),), torch.inf)
    for some, others in radius_neighbours(means, radius):
        square = torch.addmm(own[others], means[some], means[others].T, alpha=-2)  # up to own[some]
        square[torch.arange(len(some)), torch.searchsorted(others, some)] = torch.inf  # itself
        found = square.min(1)
        nearest[some], least[some] = others[found.indices], (found.values + own[some]).clamp(min=0).sqrt()
    return nearest, least


Square = npt.NDArray[np.float64]


def link(apart: Tensor, counts: Tensor, method: Literal["average", "ward"]) -> Square:
    """scipy's tree of merges of points that are so far apart ([n, n]) and stand for so many each.

    It merges nearest neighbours of each other, found by following a chain of nearest ones; both linkages allow that.
    Ward's distances are √(2ab/(a+b)) times those of the means.
    """
    far, sizes = apart.cpu().double().numpy().copy(), counts.cpu().double().numpy().copy()
    np.fill_diagonal(far, np.inf)
    merged: list[tuple[int, int, float]] = []
    chain: list[int] = []
    for _ in range(len(far) - 1):
        chain = chain or [int(np.flatnonzero(sizes)[0])]
        a, b = follow(chain, far)
        merged.append((a, b, float(far[a, b])))
        absorb(far, sizes, (a, b), method)
    return as_tree(merged)


def follow(chain: list[int], far: Square) -> tuple[int, int]:
    """Two that are each other's nearest, taken off the end of the chain, which grows until there are."""
    while True:
        last, before = chain[-1], chain[-2] if len(chain) > 1 else -1
        nearest = int(far[last].argmin())
        if before >= 0 and far[last, before] <= far[last, nearest]:
            del chain[-2:]
            return before, last
        chain.append(nearest)


def absorb(far: Square, sizes: npt.NDArray[np.float64], pair: tuple[int, int], method: str) -> None:
    """Puts the second of a pair into the first, in place (Lance and Williams)."""
    (a, b), (m, n) = pair, sizes[list(pair)]
    if method == "average":
        both = (m * far[a] + n * far[b]) / (m + n)
    else:
        square = (m + sizes) * far[a] ** 2 + (n + sizes) * far[b] ** 2 - sizes * far[a, b] ** 2
        both = np.sqrt(np.maximum(square, 0) / (m + n + sizes))
    far[a], far[:, a] = both, both
    far[b], far[:, b], far[a, a] = np.inf, np.inf, np.inf
    sizes[a], sizes[b] = m + n, 0


def as_tree(merged: list[tuple[int, int, float]]) -> Square:
    """The merges from low to high, each new cluster with a number of its own, as scipy has them."""
    count = len(merged) + 1
    names, sizes, tree = list(range(count)), [1] * count, np.zeros((len(merged), 4))
    for row, (a, b, height) in enumerate(sorted(make_monotone(merged), key=lambda merge: merge[2])):
        first, second = sorted((names[a], names[b]))
        tree[row] = first, second, height, sizes[a] + sizes[b]
        names[a], sizes[a] = count + row, sizes[a] + sizes[b]
    return tree


def make_monotone(merged: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """The merges with none below those it is made of, as it could be by rounding."""
    top, heights = [0.0] * (len(merged) + 1), []
    for a, b, height in merged:
        top[a] = max(height, top[a], top[b])
        heights.append((a, b, top[a]))
    return heights


def cut_at(tree: Square, height: float) -> Tensor:
    """The clusters of merges up to this height: [n]."""
    return _flat(tree, height, "distance")


def cut_into(tree: Square, clusters: int) -> Tensor:
    """At most so many clusters: [n]."""
    return _flat(tree, clusters, "maxclust")


def _flat(tree: Square, at: float, criterion: str) -> Tensor:
    from scipy.cluster.hierarchy import fcluster

    if not len(tree):
        return torch.zeros(1, dtype=torch.long)
    return torch.from_numpy(fcluster(tree, at, criterion=criterion)).long() - 1


AT_ONCE = 2**22  # distances in one go
FEW = 1024  # points that need no cells
OUTSIDE = 2.5  # times a cell's mean distance from its centre


def radius_neighbours(points: Tensor, radius: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of index lists (some, others): every point is once in `some`, and all within its radius are in `others`.

    Points are cut into cells, and a cell meets only those points that its centre and radius allow. Points far outside
    their cell would make it large: they belong to none and meet everyone. `others` ascends.
    """
    cell, centres = cells(points)
    apart = (points - centres[cell]).norm(dim=1)
    share = apart.new_zeros(len(centres)).index_add(0, cell, apart) / torch.bincount(cell, minlength=len(centres))
    outside = apart > OUTSIDE * share[cell]
    extent = torch.zeros_like(share).scatter_reduce(0, cell, apart.where(~outside, 0), "amax")
    home = cell.where(~outside, len(centres))
    members = home.argsort(stable=True).split(torch.bincount(home, minlength=len(centres) + 1).tolist())
    everyone = torch.arange(len(points), device=points.device)
    for at in torch.arange(len(centres), device=points.device).split(max(1, AT_ONCE // len(points))):
        ways = torch.cdist(centres[at], points) <= ((radius + extent[at]) * (1 + 1e-6) + 1e-9)[:, None]
        for one, allowed in zip(at.tolist(), ways, strict=True):
            yield from split_pairs(members[one], allowed.nonzero()[:, 0])
    yield from split_pairs(members[-1], everyone)


def split_pairs(some: Tensor, others: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some points with the same others, so many of them that their distances fit into memory."""
    yield from ((part, others) for part in some.split(max(1, AT_ONCE // max(1, len(others)))) if len(part))


def cells(points: Tensor) -> tuple[Tensor, Tensor]:
    """The cell of each point, and the cells' centres: one step of k-means from a few of the points. [n], [c, d]"""
    if len(points) <= FEW:
        return torch.zeros(len(points), dtype=torch.long, device=points.device), points.mean(0, keepdim=True)
    draw = torch.Generator().manual_seed(len(points))
    drawn = torch.randperm(len(points), generator=draw)[: int(2 * len(points) ** 0.5)]
    whose = nearest_centre(points, points[drawn.to(points.device)])
    counts = torch.bincount(whose, minlength=len(drawn))
    sums = points.new_zeros(len(drawn), points.shape[1]).index_add(0, whose, points)
    centres = sums[counts > 0] / counts[counts > 0, None]
    return nearest_centre(points, centres), centres


def nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point: [n]."""
    parts = points.split(max(1, AT_ONCE // len(centres)))
    return torch.cat([torch.cdist(part, centres).argmin(1) for part in parts])
