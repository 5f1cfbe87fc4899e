"""Hierarchies of points that stand for many: average and Ward's linkage with counts."""

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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
    for row, (a, b, height) in enumerate(sorted(rising(merged), key=lambda merge: merge[2])):
        first, second = sorted((names[a], names[b]))
        tree[row] = first, second, height, sizes[a] + sizes[b]
        names[a], sizes[a] = count + row, sizes[a] + sizes[b]
    return tree


def rising(merged: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """The merges with none below those it is made of, as it could be by rounding."""
    top, heights = [0.0] * (len(merged) + 1), []
    for a, b, height in merged:
        top[a] = max(height, top[a], top[b])
        heights.append((a, b, top[a]))
    return heights


def cut_at(tree: Square, height: float) -> Tensor:
    """The groups of merges up to this height: [n]."""
    return _flat(tree, height, "distance")


def cut_into(tree: Square, clusters: int) -> Tensor:
    """At most so many groups: [n]."""
    return _flat(tree, clusters, "maxclust")


def _flat(tree: Square, at: float, criterion: str) -> Tensor:
    from scipy.cluster.hierarchy import fcluster

    if not len(tree):
        return torch.zeros(1, dtype=torch.long)
    return torch.from_numpy(fcluster(tree, at, criterion=criterion)).long() - 1
