"""Distances between clients that are each a set of up to k points: of all pairs, or of those that can be near."""

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.clustering.neighbour_sets import SparseGraph
from kinfed.errors import ConfigError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

PairCost = Callable[[Tensor, Tensor, Tensor], Tensor]  # squared distances [..., k, k], shares [..., k, 1], [..., 1, k]
PAIRS_AT_ONCE = 200_000
BLURS = (1.0, 0.3, 0.1, 0.03, 0.01)  # Sinkhorn's iteration, from wide to narrow
SINKHORN_STEPS = 15


def set_distances(kind: str, points: Tensor, shares: Tensor, others: Tensor, other_shares: Tensor) -> Tensor:
    """Distances from each of A sets to each of B others; points with share 0 are not there. [A, B]"""
    cost, theirs = DISTANCES[kind], other_shares[None, :, None, :]
    at_once = max(1, PAIRS_AT_ONCE // len(others))
    parts = zip(points.split(at_once), shares[:, None, :, None].split(at_once), strict=True)
    return torch.cat([cost(torch.cdist(p[:, None], others[None]).square(), s, theirs) for p, s in parts])


def pair_distances(kind: str, points: Tensor, shares: Tensor, pairs: Tensor) -> Tensor:
    """Distances of some pairs ([n, 2]) of sets: [n]."""
    cost, found = DISTANCES[kind], [points.new_zeros(0)]
    for a, b in (part.T for part in pairs.split(PAIRS_AT_ONCE)):
        squared = torch.cdist(points[a], points[b]).square()
        found.append(cost(squared, shares[a][:, :, None], shares[b][:, None, :]))
    return torch.cat(found)


def nearest_pair(squared: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
    """FLT as printed: the distance of the closest two points. One shared label already relates two clients."""
    there = (mine > 0) & (theirs > 0)
    return squared.masked_fill(~there, torch.inf).flatten(-2).min(-1).values.sqrt()


def matching(squared: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
    """FLT's code: √(Σ squared distances) of the best one-to-one matching, over the size of the smaller set."""
    k = squared.shape[-1]
    if k > 6:
        raise ConfigError(f"'matching' compares up to 6 points a client, got {k}: use 'transport' or a smaller k")
    a, b = mine > 0, theirs > 0
    few, many = a.sum(-2, keepdim=True), b.sum(-1, keepdim=True)
    free = (a & ~b & (few > many)) | (~a & b & (many > few)) | (~a & ~b)  # the larger set's rest stays unmatched
    cost = torch.where(a & b, squared, torch.where(free, 0.0, torch.inf))
    ways = torch.tensor(list(permutations(range(k))), device=squared.device)
    best = torch.full(squared.shape[:-2], torch.inf, dtype=squared.dtype, device=squared.device)
    for way in ways:
        best = torch.minimum(best, cost[..., torch.arange(k, device=way.device), way].sum(-1))
    return best.sqrt() / torch.minimum(few, many)[..., 0, 0]


def transport(squared: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
    """The least mean way to move one client's shares of samples to the other's (Wasserstein-1).

    It does not care how often k-means splits a class, but two clients must hold a class in equal shares to be near.
    """
    cost = squared.sqrt()
    log_a, log_b = mine.log(), theirs.log()
    f, g = torch.zeros_like(cost[..., :1]), torch.zeros_like(cost[..., :1, :])
    largest = cost.amax((-2, -1), keepdim=True).clamp(min=1e-12)
    for blur in BLURS:
        width = blur * largest
        for _ in range(SINKHORN_STEPS):
            f = -width * torch.logsumexp((g - cost) / width + log_b, -1, keepdim=True)
            g = -width * torch.logsumexp((f - cost) / width + log_a, -2, keepdim=True)
    plan = ((f + g - cost) / width + log_a + log_b).exp()
    return (plan * cost).flatten(-2).sum(-1)


DISTANCES: dict[str, PairCost] = {"transport": transport, "matching": matching, "min": nearest_pair}


CLIENTS_AT_ONCE = 256  # clients of a block
FINE = 4  # bins of the plane in the radius of a point


def near_sets(kind: str, points: Tensor, shares: Tensor, threshold: float) -> SparseGraph:
    """Pairs of clients (points [M, k, u], shares [M, k]) nearer than the threshold, and every client to itself."""
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
    for start in range(0, len(points), CLIENTS_AT_ONCE):
        met = triu(around[start : start + CLIENTS_AT_ONCE] @ held.T, 1 + start).tocoo()
        yield torch.from_numpy(np.stack([met.row + start, met.col], 1)).long()


def adjacent(bins: npt.NDArray[np.float64]) -> "csr_matrix":
    """Which bins can hold points that are near each other: sparse [bins, bins]."""
    from scipy.sparse import csr_matrix
    from scipy.spatial import KDTree

    pairs = KDTree(bins).query_pairs(FINE + bins.shape[1] ** 0.5 + 1e-9, output_type="ndarray")
    own = np.arange(len(bins))
    a, b = np.concatenate([pairs[:, 0], pairs[:, 1], own]), np.concatenate([pairs[:, 1], pairs[:, 0], own])
    return csr_matrix((np.ones(len(a), dtype=np.float32), (a, b)), (len(bins), len(bins)))
