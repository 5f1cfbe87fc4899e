"""Distances between clients that are each a set of up to k points: [M, k, u] -> [M, M], or of some pairs only."""

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor

from kinfed.errors import ConfigError

PairCost = Callable[[Tensor, Tensor, Tensor], Tensor]  # squared distances [..., k, k], shares [..., k, 1], [..., 1, k]
PAIRS_AT_ONCE = 200_000
BLURS = (1.0, 0.3, 0.1, 0.03, 0.01)  # Sinkhorn's iteration, from coarse to fine
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
    """The least mean way to carry one client's shares of rows to the other's (Wasserstein-1).

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
