"""Average linkage of many points: near ones become micro_clusters first, and micro_clusters are linked."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.clustering.linking import cut_at, link
from kinfed.clustering.radius_neighbours import within_reach

FINEST = 1e-6  # of the height: points nearer than this are one


@dataclass(frozen=True)
class MicroClusters:
    """Points that belong together, as their mean, their mean squared distance from it, and their number."""

    means: Tensor  # [n, d]
    spread: Tensor  # [n]
    counts: Tensor  # [n]

    def __len__(self) -> int:
        return len(self.means)

    def apart(self, some: Tensor, others: Tensor) -> Tensor:
        """Root of the mean squared distance of two points of two micro_clusters; for points, their distance: [a, b]."""
        square = torch.cdist(self.means[some], self.means[others]).square_()
        return square.add_(self.spread[some][:, None]).add_(self.spread[others]).sqrt_()

    def joined(self, whose: Tensor, number: int) -> "MicroClusters":
        """The micro_clusters that are left when lump i goes into whose[i]."""
        counts = torch.zeros(number, dtype=self.counts.dtype, device=whose.device).index_add(0, whose, self.counts)
        share = self.counts / counts[whose]
        means = self.means.new_zeros(number, self.means.shape[1]).index_add(0, whose, share[:, None] * self.means)
        moved = (self.means - means[whose]).square().sum(1)
        spread = self.spread.new_zeros(number).index_add(0, whose, share * (self.spread + moved))
        return MicroClusters(means, spread, counts)


def average_clusters(points: Tensor, height: float, most: int) -> Tensor:
    """Groups of points nearer than `height` to each other on average (UPGMA), from at most so many micro_clusters: [n].

    Micro-clusters grow by merging nearest pairs, as the linkage itself would; while they do, the root
    of the mean square stands for the mean distance.
    """
    micro_clusters, whose = condensed(points.double(), height, most)
    if len(micro_clusters) > most:  # nothing is left to merge below the height
        return whose
    everyone = torch.arange(len(micro_clusters), device=points.device)
    tree = link(micro_clusters.apart(everyone, everyone), micro_clusters.counts, "average")
    return cut_at(tree, height).to(points.device)[whose]


def condensed(points: Tensor, height: float, most: int) -> tuple[MicroClusters, Tensor]:
    """At most so many micro_clusters, or as many as cannot be merged below the height; and the lump of each point."""
    micro_clusters, whose = equal_points(points, height)
    for reach in (height / 8, height / 4, height / 2, height):  # short ways first: fewer pairs are within them
        few = len(points) // 100 if reach < height else 0
        merged = few + 1
        while len(micro_clusters) > most and merged > few:
            into, left = mutual(micro_clusters, reach, most)
            merged = len(micro_clusters) - left
            micro_clusters, whose = micro_clusters.joined(into, left), into[whose]
    return micro_clusters, whose


def mutual(micro_clusters: MicroClusters, reach: float, most: int) -> tuple[Tensor, int]:
    """Where each lump goes when those that are each other's nearest are merged, and how many are left, `most` at least.

    Merging all such pairs at once gives the same tree as one after the other: no lump gets nearer by a merge.
    """
    nearest, apart = nearest_micro_clusters(micro_clusters, reach)
    here = torch.arange(len(micro_clusters), device=nearest.device)
    pairs = ((nearest[nearest] == here) & (here < nearest) & (apart <= reach)).nonzero()[:, 0]
    pairs = pairs[apart[pairs].argsort()[: len(micro_clusters) - most]]
    kept, into = here.index_copy(0, nearest[pairs], pairs).unique(return_inverse=True)
    return into, len(kept)


def equal_points(points: Tensor, height: float) -> tuple[MicroClusters, Tensor]:
    """One lump for all points that are equal, all but; and the lump of each point."""
    rough = torch.cat([points / (FINEST * height), points.new_zeros(len(points), 1)], 1).round()  # a column at least
    _, whose = rough.unique(dim=0, return_inverse=True)
    single = MicroClusters(points, points.new_zeros(len(points)), points.new_ones(len(points)))
    return single.joined(whose, int(whose.max()) + 1), whose


def nearest_micro_clusters(micro_clusters: MicroClusters, reach: float) -> tuple[Tensor, Tensor]:
    """The nearest other lump of each within reach, and how far it is (infinite if there is none): [n], [n]."""
    means = micro_clusters.means - micro_clusters.means.mean(0)
    own = means.square().sum(1) + micro_clusters.spread
    nearest = torch.arange(len(micro_clusters), device=means.device)
    least = means.new_full((len(micro_clusters),), torch.inf)
    for some, others in within_reach(means, reach):
        square = torch.addmm(own[others], means[some], means[others].T, alpha=-2)  # up to own[some]
        square[torch.arange(len(some)), torch.searchsorted(others, some)] = torch.inf  # itself
        found = square.min(1)
        nearest[some], least[some] = others[found.indices], (found.values + own[some]).clamp(min=0).sqrt()
    return nearest, least
