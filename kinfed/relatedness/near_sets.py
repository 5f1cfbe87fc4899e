"""Clients that are near each other as sets of points, without comparing all pairs of clients."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.clustering.sparse import SparseGraph
from kinfed.relatedness.set_distances import pair_distances

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

ROWS = 256  # clients of a block
FINE = 4  # bins of the plane in the reach of a point


def near_sets(kind: str, points: Tensor, shares: Tensor, threshold: float) -> SparseGraph:
    """Pairs of clients (points [M, k, u], shares [M, k]) nearer than the threshold, and everyone to himself."""
    return SparseGraph.of_pairs(len(points), near_pairs(kind, points, shares, threshold))


def near_pairs(kind: str, points: Tensor, shares: Tensor, threshold: float) -> Iterator[Tensor]:
    """Pairs i < j nearer than the threshold, some at a time: [n, 2] each."""
    for pairs in candidates(points, shares, farthest(kind, threshold, points.shape[1])):
        pairs = pairs.to(points.device)
        near = pair_distances(kind, points, shares, pairs) < threshold
        if kind == "transport":  # Sinkhorn's iteration stops at somewhat different costs from either side
            near |= pair_distances(kind, points, shares, pairs.flip(1)) < threshold
        yield pairs[near]


def farthest(kind: str, threshold: float, k: int) -> float:
    """How far apart the nearest two points of two clients can be that are nearer than the threshold.

    `min` is that distance. The cost of a `transport` is a mean of distances, none below the least. A `matching` of m
    points has √(Σ d²)/m below the threshold, so the least d is below √m times it, and m is at most k.
    """
    return threshold * (k**0.5 if kind == "matching" else 1.0) * 1.001  # and somewhat more, for rounding


def candidates(points: Tensor, shares: Tensor, far: float) -> Iterator[Tensor]:
    """All pairs i < j of clients with a point each that are at most this far apart, and some more: [n, 2] each."""
    from scipy.sparse import csr_matrix, triu

    client, spot = (shares > 0).cpu().nonzero().T.numpy()
    place = np.floor(points.detach().cpu().double().numpy()[client, spot] / (far / FINE))
    bins, where = np.unique(place, axis=0, return_inverse=True)
    ones = np.ones(len(client), dtype=np.float32)
    held = csr_matrix((ones, (client, where.ravel())), (len(points), len(bins)))  # clients by bins
    around = held @ adjacent(bins)
    for start in range(0, len(points), ROWS):
        met = triu(around[start : start + ROWS] @ held.T, 1 + start).tocoo()
        yield torch.from_numpy(np.stack([met.row + start, met.col], 1)).long()


def adjacent(bins: npt.NDArray[np.float64]) -> "csr_matrix":
    """Which bins can hold points that are within reach of each other: sparse [bins, bins]."""
    from scipy.sparse import csr_matrix
    from scipy.spatial import KDTree

    pairs = KDTree(bins).query_pairs(FINE + bins.shape[1] ** 0.5 + 1e-9, output_type="ndarray")
    own = np.arange(len(bins))
    a, b = np.concatenate([pairs[:, 0], pairs[:, 1], own]), np.concatenate([pairs[:, 1], pairs[:, 0], own])
    return csr_matrix((np.ones(len(a), dtype=np.float32), (a, b)), (len(bins), len(bins)))
