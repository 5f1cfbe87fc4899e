"""k-means as a pure tensor program, so that thousands of clients can run theirs side by side."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from kinfed.clustering.silhouettes import fit_to_most
from kinfed.keys import fold, uniform
from kinfed.params import Stack, to_matrix

WIDTH = 2**16  # weights of each model that are looked at together
ROUNDING = 1e-12  # of the longest model's square: what is less is taken for none


class Centroids(NamedTuple):
    """Centroids of one set of samples."""

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
    """The cluster of each point and the centres: the best of some runs, or one from `start` if there is any in it.

    Points as long as whole models are clustered in as many dimensions as there are points, as far from each other.
    """
    every = torch.cat([points, start.to(points)]) if len(start) else points
    if every.shape[1] <= max(WIDTH, len(every)):
        labels, centres = _fit_kmeans(points.cpu().double(), clusters, start.cpu().double(), seed, runs)
        return labels.to(points.device), centres.to(points)
    placed = place_models({"": every})
    labels, centres = _fit_kmeans(placed[: len(points)], clusters, placed[len(points) :], seed, runs)
    member = (labels == torch.arange(clusters)[:, None]).double()
    nearest = one_hot(torch.cdist(centres, placed[: len(points)]).argmin(1), len(points)).double()
    shares = torch.where(member.any(1, keepdim=True), member, nearest)  # no member: where the centre is, some point is
    shares = (shares / shares.sum(1, keepdim=True)).to(points)
    return labels.to(points.device), shares @ points


def cluster_again(points: Tensor, start: Tensor, before: Tensor, clusters: int, seed: int, doubted: int = 0) -> Tensor:
    """The cluster of each point, from the centres it had before (`start`, [0] the first time) on.

    Where some points are in doubt, a few that have a cluster to themselves join those that the others form without
    them, if these are clearer: from such centres on the others' clusters would stay joined. They keep their names.
    """

    def fit(some: Tensor) -> Tensor:
        warm = start if len(some) == len(points) else start[:0]
        return server_kmeans(points[some], min(clusters, len(some)), warm, seed)[0]

    if not doubted:
        return fit(torch.arange(len(points)))
    kept, found = fit_to_most(len(points), doubted, fit, lambda some: torch.cdist(points[some], points[some]))
    if len(kept) == len(points):
        return found
    centres = torch.stack([points[kept[found == cluster]].mean(0) for cluster in found.unique()])
    return rename(torch.cdist(points, centres).argmin(1), before, clusters)


def rename(found: Tensor, before: Tensor, clusters: int) -> Tensor:
    """These clusters under other numbers, so that as many points as can be are where they were before."""
    names = torch.arange(clusters)[:, None]
    common = (found == names).float() @ (before == names).float().T  # [found, before]
    return match_columns(common)[found]


def match_columns(values: Tensor) -> Tensor:
    """A column for each row, each taken once, so that the sum of their values is largest; no more rows than columns."""
    from scipy.optimize import linear_sum_assignment

    return torch.from_numpy(linear_sum_assignment(values.cpu().numpy(), maximize=True)[1]).to(values.device)


def _fit_kmeans(points: Tensor, clusters: int, start: Tensor, seed: int, runs: int) -> tuple[Tensor, Tensor]:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    first = {"n_init": runs} if not len(start) else {"n_init": 1, "init": start.numpy()}
    with warnings.catch_warnings():  # it warns when fewer points differ than there are clusters; some stay empty then
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(clusters, tol=0, random_state=seed, **first).fit(points.numpy())
    return torch.from_numpy(found.labels_).long(), torch.from_numpy(found.cluster_centers_)


def place_models(*stacks: Stack) -> Tensor:
    """Points as far from each other as the models of these stacks, in at most as many dimensions as there are models.

    They are the rows of L where L Lᵀ are the inner products of all models around their mean: [models, rank], on the CPU
    and precise, for differences are small where models are large.
    """
    from scipy.linalg import lapack

    products = inner_products(*stacks).cpu().numpy()
    small = ROUNDING * products.diagonal().max()
    factor, order, rank, _ = lapack.dpstrf(products, tol=small, lower=1)  # Cholesky's, the longest model first
    points = np.empty((len(factor), max(rank, 1)))  # no rank: all models are equal, and all points at 0
    points[order - 1] = np.tril(factor)[:, : points.shape[1]]
    return torch.from_numpy(points)


def inner_products(*stacks: Stack) -> Tensor:
    """⟨a - m, b - m⟩ for any two models a and b of these stacks, where m is the mean of all."""
    total = torch.zeros((), dtype=torch.float64)
    for name in stacks[0]:
        for pieces in zip(*(to_matrix(stack[name]).split(WIDTH, 1) for stack in stacks), strict=True):
            around = torch.cat(pieces).double()
            around -= around.mean(0)
            total = total.to(around.device) + around @ around.T
    return total


TINY = 1e-12  # of the largest variance: rounding


def principal_directions(parts: Sequence[Part], components: int) -> tuple[Tensor, Tensor]:
    """The mean [d] of the samples and their leading directions [d, at most `components`], each with a fixed sign.

    Samples should be double: between directions of almost equal variance, rounding would choose.
    """
    total = torch.stack([mask.sum() for _, mask in parts]).sum().clamp(min=1)
    mean = torch.stack([(x * mask[:, None]).sum(0) for x, mask in parts]).sum(0) / total
    centred = torch.cat([(x - mean) * mask[:, None] for x, mask in parts])
    centred = torch.nan_to_num(centred, posinf=0.0, neginf=0.0)  # a sick client's would be refused
    leading = _from_rows(centred, components) if len(centred) < len(mean) else _from_columns(centred, components)
    largest = leading.gather(0, leading.abs().argmax(0, keepdim=True))
    return mean, leading * torch.where(largest < 0, -1.0, 1.0)


def _from_columns(centred: Tensor, components: int) -> Tensor:
    """Leading eigenvectors of the columns' products: [d, components]."""
    vectors: Tensor = torch.linalg.eigh(centred.T @ centred)[1]
    return vectors.flip(1)[:, :components]


def _from_rows(centred: Tensor, components: int) -> Tensor:
    """The same from the rows' products, of which there are fewer; a direction in which nothing varies is 0."""
    values, vectors = (part.flip(-1)[..., :components] for part in torch.linalg.eigh(centred @ centred.T))
    varies = values > values[:1] * TINY
    found = torch.where(varies, centred.T @ vectors / values.where(varies, 1.0).sqrt(), 0.0)
    return pad(found, (0, min(components, len(found)) - found.shape[1]))
