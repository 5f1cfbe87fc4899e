"""Coordinates in which the sampling noise of every client is known: variance 1 per sample.

Each client sends the mean embeddings of random parts of its samples. The parts of one client differ by sampling alone,
so their differences, pooled over clients, measure the noise covariance of the signature. Of the directions in which
clients differ, those are kept in which noise alone would not: the edge of the spectrum of a ratio of two covariances
(Wachter 1980; Silverstein 1985; Johnstone 2001).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.signatures import Signatures

LEAST_DIRECTIONS = 16  # that are looked at, where the signature has as many
CLIENTS_PER_DIRECTION = 3  # for every further one: with fewer clients the kept directions fit noise
NOISIEST = 4.0  # times the median noise: what one client may add to the pooled noise, lest a lying one spoils it
FARTHEST = 100.0  # times the median distance from the centre: how far a client counts at most, for the same reason
TRACY_WIDOM = 2.02  # 99 % quantile of the largest eigenvalue of noise, in units of its scale


@dataclass(frozen=True)
class PooledParts:
    """Clients' parts taken together."""

    means: Tensor  # [M, d]
    sizes: Tensor  # [M] samples
    noise: Tensor  # [M, parts, d]: each row has the covariance of one sample
    freedom: Tensor  # [M] degrees of freedom of these rows

    @staticmethod
    def of(known: Signatures) -> "PooledParts":
        """Of signatures that are the means of parts and their numbers of samples; computed in double."""
        parts, counts = known.centroids.cpu().double(), known.shares.cpu().double()
        sizes = counts.sum(1)
        means = (parts * counts[..., None]).sum(1) / sizes[:, None]
        noise = counts.sqrt()[..., None] * (parts - means[:, None])
        return PooledParts(means, sizes, noise, ((counts > 0).sum(1) - 1).clamp(min=0).double())

    def limit_noise(self) -> Tensor:
        """Noise rows in which no client has more than a few times the median variance: [M, parts, d]."""
        variance = self.noise.square().sum((1, 2)) / self.freedom.clamp(min=1)
        measured = variance[self.freedom > 0]
        usual = measured.median() if len(measured) else variance.new_ones(())
        weight = (NOISIEST * usual / variance.clamp(min=1e-30)).clamp(max=1)
        return self.noise * weight.sqrt()[:, None, None]


@dataclass(frozen=True)
class Coordinates:
    """The map from mean embeddings to points whose noise is the identity over the number of samples."""

    centre: Tensor  # [d]
    basis: Tensor  # [d, q]; in the first `kept` directions clients differ by more than noise
    kept: int
    farthest: float  # distance from the centre, in units of the noise

    def transform(self, pooled: PooledParts) -> Tensor:
        """One point for each client: [M, q]; those beyond the farthest distance are moved in to it."""
        points = (pooled.means - self.centre) @ self.basis
        distance = points.norm(dim=1) * pooled.sizes.sqrt()
        moved: Tensor = points * (self.farthest / distance.clamp(min=self.farthest))[:, None]
        return moved


def fit_coordinates(pooled: PooledParts) -> Coordinates:
    """Coordinates for these clients."""
    rows, centre = pooled.limit_noise().flatten(0, 1), find_centre(pooled)
    scaled = limit_distance((pooled.means - centre) * pooled.sizes.sqrt()[:, None])
    clients, freedom = len(scaled), max(float(pooled.freedom.sum()), 1.0)
    width = min(scaled.shape[1], max(LEAST_DIRECTIONS, clients // CLIENTS_PER_DIRECTION), max(1, int(freedom / 2)))
    subspace = find_leading(torch.cat([scaled, rows]), width)
    projected = rows @ subspace
    whiten = subspace @ invert_root(projected.mT @ projected / freedom)
    points = scaled @ whiten
    values, turn = torch.linalg.eigh(points.mT @ points / clients)
    kept = int((values > edge_of_noise(len(values), clients, freedom)).sum())
    farthest = FARTHEST * max(float(points.norm(dim=1).median()), 1.0)
    return Coordinates(centre, whiten @ turn.flip(1), kept, farthest)


def find_centre(pooled: PooledParts) -> Tensor:
    """The mean over all samples, after far clients are moved in towards the median: [d]."""
    median, root = pooled.means.median(0).values, pooled.sizes.sqrt()[:, None]
    return median + (root * limit_distance((pooled.means - median) * root)).sum(0) / pooled.sizes.sum()


def limit_distance(points: Tensor) -> Tensor:
    """Points moved in to the farthest distance from the origin: [M, d]."""
    distance: Tensor = points.norm(dim=1)
    return points * (FARTHEST * distance.median() / distance.clamp(min=1e-30)).clamp(max=1)[:, None]


def find_leading(rows: Tensor, width: int) -> Tensor:
    """The leading principal directions of rows [n, d]: [d, width]."""
    wide = len(rows) < rows.shape[1]
    ordered: Tensor = torch.linalg.svd(rows, False)[2].mT if wide else torch.linalg.eigh(rows.mT @ rows)[1].flip(1)
    return ordered[:, :width]


def invert_root(covariance: Tensor) -> Tensor:
    """A matrix A with Aᵀ · covariance · A = 1; directions without variance count as having very little."""
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = vectors / values.clamp(min=max(1e-6 * float(values.max()), 1e-30)).sqrt()
    return root


def edge_of_noise(width: int, clients: int, freedom: float) -> float:
    """The largest variance over clients that noise alone has in 99 % of cases, where the noise is estimated too."""
    one, two = width / clients, min(width / freedom, 0.9)
    edge = ((1 + (1 - (1 - one) * (1 - two)) ** 0.5) / (1 - two)) ** 2
    root, inverse = clients**0.5 + width**0.5, clients**-0.5 + width**-0.5
    return float(edge * (1 + TRACY_WIDOM * inverse ** (1 / 3) / root))  # Johnstone 2001: σ / μ
