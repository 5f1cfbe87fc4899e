"""Differential privacy: noise that hides one sample of a signature, or one client of a mean, and what it costs.

Signatures hide a sample: adjacent are two clients that differ in one sample, replaced by another; how many a client
has is public. A Gaussian mechanism whose noise is z times its sensitivity is exactly μ-GDP with μ = 1 / z (Dong, Roth
and Su 2022; Balle and Wang 2018), and k of them are μ√k. Training hides a client: see `TrainingPrivacy`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinfed.checks import at_least, within
from kinfed.client import Client
from kinfed.clustering.kmeans import Centroids, Part
from kinfed.errors import ConfigError
from kinfed.keys import base_key, fold, normal
from kinfed.params import Stack, each_leaf, flatten, one_hot, select, subtract, to_matrix

Draw = Callable[[int], Tensor]  # so many standard normal numbers
LARGEST = 1e4  # ε and μ that are looked for


def exceed(epsilon: float, mu: float) -> float:
    """The least δ at which a μ-GDP mechanism is (ε, δ)-private."""
    from scipy.special import log_ndtr, ndtr

    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(min(epsilon + log_ndtr(-mu / 2 - epsilon / mu), 0.0)))


@cache
def find_multiplier(epsilon: float, delta: float) -> float:
    """The noise, in units of the sensitivity, at which one Gaussian mechanism is (ε, δ)-private."""
    from scipy.optimize import brentq

    return 1 / float(brentq(lambda mu: exceed(epsilon, mu) - delta, 1e-9, LARGEST, xtol=1e-12))


@cache
def find_epsilon(multiplier: float, delta: float, steps: int = 1, rate: float = 1.0) -> float:
    """The ε of so many Gaussian mechanisms, each of which sees a client with this probability (Poisson sampling)."""
    if not steps:
        return 0.0
    if multiplier <= 0:
        return math.inf
    if rate < 1:
        return find_sampled_epsilon(multiplier, delta, steps, rate)
    from scipy.optimize import brentq

    mu = math.sqrt(steps) / multiplier
    if exceed(0.0, mu) <= delta:
        return 0.0
    most = (
        mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    )  # ε of concentrated privacy is no less than the exact
    return float(brentq(lambda epsilon: exceed(epsilon, mu) - delta, 0.0, most))


def find_sampled_epsilon(multiplier: float, delta: float, steps: int, rate: float) -> float:
    """The same by Opacus' Rényi accountant, for rates below 1."""
    try:
        from opacus.accountants import RDPAccountant
    except ModuleNotFoundError:
        raise ConfigError(
            "privacy.training with a fraction below 1 needs opacus, which is not there: pip install 'kinfed[privacy]'"
        ) from None
    accountant = RDPAccountant()
    accountant.history = [(multiplier, rate, steps)]
    return float(accountant.get_epsilon(delta))


def check_bounds(epsilon: float, delta: float, clip: float) -> None:
    """Raises ConfigError unless these can be ε, δ and a bound on lengths."""
    if not (0 < delta < 1 and epsilon <= 1000 and 0 <= clip < math.inf):
        raise ConfigError(f"wanted epsilon <= 1000, delta in (0, 1) and a finite clip, got {epsilon}, {delta}, {clip}")


class Protection(Protocol):
    """What a signature does to its embedded samples and to what it sends."""

    @property
    def is_private(self) -> bool:
        """Whether it adds noise."""

    @property
    def min_samples(self) -> int:
        """Samples of a centroid or part at least."""

    def clip_embeddings(self, embedded: Tensor) -> Tensor:
        """Embedded samples of a bounded length: [b, d]."""

    def release_means(self, means: Tensor, counts: Tensor, client: Client) -> Centroids:
        """Client: means of parts of its samples [parts, d] and their numbers of samples, as they may be sent."""

    def release_centroids(self, found: Centroids, client: Client) -> Centroids:
        """Client: k-means centroids as they may be sent, without noise."""

    def cluster_privately(self, parts: Sequence[Part], k: int, client: Client) -> Centroids:
        """Client: private k-means centroids of its embedded samples."""


@dataclass(frozen=True)
class SignaturePrivacy:
    """What protects the samples of a client that sends a signature."""

    epsilon: float = 0.0  # ε of one signature, for one sample of the client; 0: no noise
    delta: float = 1e-5  # δ, the chance of a larger loss than ε
    clip: float = 1.0  # C: embedded samples are scaled down to this length
    iterations: int = 2  # of private k-means
    min_samples: int = 0  # of a centroid or part; one of fewer is merged with others, and a client of fewer sends none

    def __post_init__(self) -> None:
        at_least(0, epsilon=self.epsilon, min_samples=self.min_samples)
        within(1, 100, iterations=self.iterations)
        check_bounds(self.epsilon, self.delta, self.clip)
        if not self.clip:
            raise ConfigError("clip must be above 0, got 0")

    @property
    def is_private(self) -> bool:
        return self.epsilon > 0

    @property
    def multiplier(self) -> float:
        """z, the noise in units of the sensitivity; 0 without noise."""
        return find_multiplier(self.epsilon, self.delta) if self.is_private else 0.0

    def spend(self, releases: int) -> float:
        """The ε of so many signatures of one client."""
        return find_epsilon(self.multiplier, self.delta, releases)

    def clip_embeddings(self, embedded: Tensor) -> Tensor:
        return self.bound(embedded) if self.is_private else embedded

    def release_means(self, means: Tensor, counts: Tensor, client: Client) -> Centroids:
        """Means with noise, and counts by which they vary as means without noise do.

        A sample is in one part of m samples, and moves its mean by 2C / m at most: the noise of a part is z · 2C / m,
        and all parts together cost what one does. Their variance is that of samples, about C² / d / m, and of noise,
        4z²C² / m²: a part counts as m² (1 + c) / (m + c) samples where c = 4z²d, all of which is public.
        """
        counts = counts.where(counts >= self.min_samples, 0)
        if self.is_private:
            deviation = self.multiplier * 2 * self.clip / counts.clamp(min=1)
            means = means + deviation[:, None] * client.draw_normal(means.numel()).view_as(means)
            share = 4 * self.multiplier**2 * means.shape[1]
            counts = counts.square() * (1 + share) / (counts + share)
        return Centroids(means.where(counts[:, None] > 0, 0).float(), counts.float())

    def release_centroids(self, found: Centroids, client: Client) -> Centroids:
        """Centroids of at least so many samples: a smaller one is merged with the nearest, whose point takes its row.

        Where none is large enough all are merged, and a client of fewer samples sends zeros.
        """
        if not self.min_samples:
            return found
        counts = (found.shares * client.train.size).round()
        large, k = counts >= self.min_samples, len(counts)
        apart = torch.cdist(found.points, found.points).masked_fill(~large, torch.inf)
        target = torch.where(large, torch.arange(k, device=counts.device), apart.argmin(1))  # none is large: the first
        member = (target == torch.arange(k, device=counts.device)[:, None]).to(found.points.dtype) * counts
        total = member.sum(1)
        merged = member @ found.points / total.clamp(min=1)[:, None]
        enough = counts.sum() >= self.min_samples
        shares = total / counts.sum().clamp(min=1)
        return Centroids(torch.where(enough, merged[target], 0.0), torch.where(enough, shares, 0.0).to(found.shares))

    def cluster_privately(self, parts: Sequence[Part], k: int, client: Client) -> Centroids:
        """Lloyd's iteration on noisy sums (Su et al. 2016) from centres that no sample has a part in.

        One sample replaced changes the vector of sums / C and counts by 2 at most: within a cluster a sum by 2C,
        between two their sums by √2 C and their counts by √2. T iterations of √T z each cost what one of z does.
        """
        width, kind = parts[0].x.shape[1], parts[0].x.dtype
        centres = self.bound(self.clip / 2 * draw_directions(k, width, client.key.device)).to(kind)
        noise = client.draw_normal(self.iterations * k * (width + 1)).view(self.iterations, k, width + 1)
        counts = torch.zeros_like(centres[:, 0])
        for drawn in 2 * self.multiplier * math.sqrt(self.iterations) * noise:
            found = sum_nearest(parts, centres, self.clip) + drawn
            sums, number = self.clip * found[:, :-1], found[:, -1:]
            enough = number > max(1, self.min_samples)
            centres = torch.where(enough, self.bound(sums / number.clamp(min=1)), centres).to(kind)
            counts = number[:, 0].clamp(min=0)
        return Centroids(centres, (counts / counts.sum().clamp(min=1e-9)).to(kind))

    def bound(self, vectors: Tensor) -> Tensor:
        """Vectors [n, d] scaled down to length C where they are longer."""
        length: Tensor = vectors.norm(dim=-1, keepdim=True)
        return vectors * (self.clip / length.clamp(min=self.clip))


UNPROTECTED = SignaturePrivacy()


def draw_directions(k: int, width: int, device: torch.device) -> Tensor:
    """The same k directions for all clients, drawn without their samples: [k, width]."""
    key = torch.tensor(base_key("private centroids"), device=device)
    return normalize(normal(fold(key, torch.arange(2 * k * width, device=device))).view(k, width))


def sum_nearest(parts: Sequence[Part], centres: Tensor, clip: float) -> Tensor:
    """Sums of the samples nearest to each centre, in units of C, and beside them their number: [k, d + 1], double."""
    total = torch.zeros(len(centres), centres.shape[1] + 1, dtype=torch.double, device=centres.device)
    for x, mask in parts:
        nearest = (centres.square().sum(1) - 2 * x @ centres.mT).argmin(1)
        member = (nearest[:, None] == torch.arange(len(centres), device=x.device)) & mask[:, None]
        counted = torch.cat([x.double() / clip, torch.ones_like(x[:, :1], dtype=torch.double)], 1)
        total = total + member.mT.double() @ counted
    return total


@dataclass(frozen=True)
class TrainingPrivacy:
    """What hides a client in the models that are trained (DP-FedAvg, McMahan et al., ICLR 2018).

    Adjacent are two federations, one of which has a client more; given the clusters, each client is in one. Cohorts
    are Poisson samples; every client weighs the same, and a sum is divided by the clients that were expected. The
    server is trusted: it sees updates, and adds the noise.
    """

    clip: float = 0.0  # S, the norm that an update is scaled down to; 0: training is not private
    noise: float = 1.0  # z, the noise of a sum in units of S
    delta: float = 1e-5  # δ, the chance of a larger loss than ε

    def __post_init__(self) -> None:
        at_least(0, clip=self.clip, noise=self.noise)
        check_bounds(0.0, self.delta, self.clip)

    @property
    def is_on(self) -> bool:
        return self.clip > 0

    def spend(self, steps: int, fraction: float) -> float:
        """The ε of so many rounds, each of which draws a client with this probability."""
        return find_epsilon(self.noise, self.delta, steps, fraction)

    def release(self, models: Stack, which: Tensor, trained: Stack, expected: Tensor, draw: Draw) -> Stack:
        """Each model and the noisy mean of what clients changed in it; one of which nobody is expected stays.

        trained: [K] models, which: [K] the model that each was sent (-1: it is not summed), expected: [C] clients.
        """
        updates = subtract(trained, select(models, which.clamp(min=0)))
        scale = (self.clip / flatten(updates).norm(dim=1).clamp(min=self.clip)).nan_to_num(0.0)
        member = one_hot(which, len(expected)) * scale
        share = torch.where(expected > 0, 1 / expected.clamp(min=1e-9), 0.0).float()

        def add(before: Tensor, update: Tensor) -> Tensor:
            total = (member.to(update.dtype) @ to_matrix(update)).view_as(before)
            noise = self.clip * self.noise * draw(total.numel()).to(total).view_as(total)
            moved: Tensor = share.view(-1, *[1] * (before.dim() - 1)) * (total + noise)
            return before + moved

        return each_leaf(add, models, updates)


@dataclass(frozen=True)
class Privacy:
    """What hides samples and clients from an honest-but-curious server, and from those who get the models."""

    signature: SignaturePrivacy = UNPROTECTED
    training: TrainingPrivacy = TrainingPrivacy()
    secure_aggregation: bool = False  # the server gets sums over clusters and no client's model; engine flower
    min_cluster: int = 3  # clients that are summed at least, where one is hidden; the model of fewer stays as it is

    def __post_init__(self) -> None:
        at_least(2, min_cluster=self.min_cluster)


OPEN = Privacy()
