"""k-means as a pure tensor program, so that thousands of clients can run theirs side by side."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.keys import fold, uniform


class Centroids(NamedTuple):
    points: Tensor  # [k, d]
    shares: Tensor  # [k], the share of the samples nearest to each; 0 for one that nobody needs


class Part(NamedTuple):
    """Some samples: all sums over samples go part by part, so that padding changes no bit of the result."""

    x: Tensor  # [b, d]
    mask: Tensor  # [b]


def kmeans(
    parts: Sequence[Part], k: int, key: Tensor, used: Tensor | None = None, restarts: int = 10, iterations: int = 30
) -> Centroids:
    """The best of some restarts of k-means++ and Lloyd's iteration; of the k centres only the first `used` are."""
    idle = (
        torch.zeros(k, dtype=torch.bool, device=key.device)
        if used is None
        else torch.arange(k, device=key.device) >= used
    )
    centres = torch.stack([_spread(parts, k, fold(key, restart)) for restart in range(restarts)])  # [r, k, d]
    for _ in range(iterations):
        sums, counts = _sums(parts, centres, idle)
        centres = torch.where(counts[..., None] > 0, sums / counts[..., None].clamp(min=1), centres)
    counts, error = _errors(parts, centres, idle)
    best = (error <= error.min() * 1.0001).int().argmax()[None]  # the first good one: rounding must not choose
    chosen = counts.index_select(0, best)[0]
    return Centroids(centres.index_select(0, best)[0], chosen / chosen.sum().clamp(min=1))


def _spread(parts: Sequence[Part], k: int, key: Tensor) -> Tensor:
    """k samples drawn far from each other: each with probability ∝ squared distance to those drawn before."""
    x, mask = (torch.cat(columns) for columns in zip(*parts, strict=True))
    distance, centres = torch.ones_like(mask, dtype=x.dtype), []
    for i in range(k):
        luck = -(-uniform(fold(key, i), len(x)).clamp(min=1e-7).log()).log()  # Gumbel: argmax draws ∝ exp(score)
        score = torch.where(mask, distance.clamp(min=1e-12).log() + luck, -torch.inf)
        centres.append(x.index_select(0, score.argmax()[None])[0])
        apart = (x - centres[-1]).square().sum(1)
        distance = apart if i == 0 else torch.minimum(distance, apart)
    return torch.stack(centres)


def _sums(parts: Sequence[Part], centres: Tensor, idle: Tensor) -> tuple[Tensor, Tensor]:
    """Sums [r, k, d] and counts [r, k] of the samples nearest to each centre."""
    sums, counts = torch.zeros_like(centres.flatten(0, 1)), torch.zeros_like(centres.flatten(0, 1)[:, 0])
    for part in parts:
        weight = _assign(part, centres, idle)[1].to(part.x.dtype).flatten(1)
        sums, counts = sums + weight.T @ part.x, counts + weight.sum(0)
    return sums.unflatten(0, centres.shape[:2]), counts.unflatten(0, centres.shape[:2])


def _errors(parts: Sequence[Part], centres: Tensor, idle: Tensor) -> tuple[Tensor, Tensor]:
    """Counts [r, k] of the samples nearest to each centre, and the squared error [r]."""
    counts, error = torch.zeros_like(centres[..., 0]), torch.zeros_like(centres[:, 0, 0])
    for part in parts:
        apart, member = _assign(part, centres, idle)
        counts = counts + member.to(part.x.dtype).sum(0)
        error = error + ((apart + part.x.square().sum(1)[:, None, None]) * member).flatten(2).sum((0, 2))
    return counts, error


def _assign(part: Part, centres: Tensor, idle: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances of samples to centres, up to |x|², the same for all; and which centre is nearest: [b, r, k]."""
    restarts, k, _ = centres.shape
    flat = centres.flatten(0, 1)
    apart = (flat.square().sum(1) - 2 * part.x @ flat.T).unflatten(1, (restarts, k))
    nearest = apart.masked_fill(idle, torch.inf).argmin(2, keepdim=True)
    return apart, (torch.arange(k, device=flat.device) == nearest) & part.mask[:, None, None]


def server_kmeans(points: Tensor, clusters: int, start: Tensor, seed: int, runs: int = 20) -> tuple[Tensor, Tensor]:
    """The cluster of each point and the centres: the best of some runs, or one from `start` if there is any in it."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    first = {"n_init": runs} if not len(start) else {"n_init": 1, "init": start.cpu().double().numpy()}
    with warnings.catch_warnings():  # it warns when fewer points differ than there are clusters; some stay empty then
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(clusters, tol=0, random_state=seed, **first).fit(points.cpu().double().numpy())
    labels, centres = torch.from_numpy(found.labels_), torch.from_numpy(found.cluster_centers_)
    return labels.long().to(points.device), centres.to(points)
