"""Relatedness without an oracle: which clients differ by more than the noise of their own samples.

The noise is measured, not set: every client's signature is the means of random parts of its samples (`PartMeans`), and
these differ by sampling alone. Clusters and their number follow from it, and an unseen client gets a p-value: how often
a client of its cluster would be as far away as it is. docs/methods/flt.md has what it finds, and where it fails.
"""

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfed.checks import seed_of_numpy, within
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import ConfigError, DataError
from kinfed.relatedness.clusterer import Clusterer, DisjointClusters, Fit
from kinfed.relatedness.noise_model import (
    CANDIDATES,
    SEPARATE,
    Coordinates,
    Mixture,
    Observed,
    PooledParts,
    choose_mixture,
    compare_clusters,
    find_axes,
    fit_coordinates,
    fit_labels,
    fit_ward,
    group_alike,
    group_apart,
)  # fmt: skip
from kinfed.signatures import Signatures

FITTED = 2000  # clients that the model is fitted on, drawn where there are more
AT_ONCE = 4096  # clients that are assigned in one go
TESTS = (0.9, 0.1)  # of the level: in the directions in which clients differ, and in the others
BY_DEGREES = 0.5  # within-cluster share of the variance above which clients differ by degrees
ALIKE = 0.01  # p-value of the differences in all directions together below which clients are not alike
APART = 3.0  # times the largest squared distance within groups of few clients: the least between these
FEWEST = 8  # clients of a cluster that is split by labels, that are said to be alike, or that measure a spread
UPPER = (0.9, 1.2816)  # the quantile that the scale of distances is measured at, and that quantile of a normal
log = logging.getLogger("kinfed")


@dataclass(frozen=True)
class Calibrated(Clusterer):
    """Two clients are related when their mixture component is the same; noise is measured, the number is found."""

    level: float = 0.025  # an unseen client with a p-value below it fits no cluster
    most_clusters: int = CANDIDATES[-1]  # that are looked for
    seed: int = 0  # of the draw of clients that the model is fitted on, where there are more than 2,000

    def __post_init__(self) -> None:
        within(1, CANDIDATES[-1], most_clusters=self.most_clusters)
        seed_of_numpy(self.seed)
        if not 0 <= self.level < 1:
            raise ConfigError(f"level must be in [0, 1), got {self.level}")

    def needs_shares(self) -> bool:
        return True

    def needs_parts(self) -> bool:
        return True

    def compare(self, known: Signatures) -> "CalibratedClusters":
        """The clusters of these clients; what was found is logged."""
        model = self.fit(known)
        log.info("%s", model.summary())
        return CalibratedClusters(model.label(known), self, known)

    def relate_unseen(self, known: Signatures, unseen: Signatures) -> NeighbourSets:
        """The known clients of the cluster of each unseen one."""
        model = self.fit(known)
        names, whose = model.assign(unseen).clusters.unique(return_inverse=True)
        return NeighbourSets(model.label(known) == names[:, None], whose)

    def fit_unseen(self, known: Signatures, clusters: Tensor, unseen: Signatures) -> Fit:
        """The cluster of each unseen client among those of the known ones ([M]), and how well it fits there."""
        some = self.draw(known)
        names, labels = clusters[some].unique(return_inverse=True)
        pooled = PooledParts.of(known.of(some))
        coordinates = fit_coordinates(pooled)
        mixture = fit_labels(observe(coordinates, pooled), labels.cpu(), free=False)
        found = calibrate(coordinates, mixture, pooled).assign(unseen)
        wide = torch.full((len(unseen), int(names.max()) + 1), torch.inf, dtype=torch.double, device=names.device)
        distances = wide.index_copy(1, names, found.distances)
        fits = found.p_values >= self.level
        return Fit(names[found.clusters], found.p_values, fits, distances, found.probabilities)

    def fit(self, known: Signatures, clusters: int = 0) -> "ClusterModel":
        """The model of these clients, with so many clusters or with as many as are found.

        Clusters that clients lie between count as one: such clients differ by degrees.
        """
        pooled = PooledParts.of(known.of(self.draw(known)))
        coordinates = fit_coordinates(pooled)
        seen, most = observe(coordinates, pooled), self.most_clusters if coordinates.kept else 1
        if clusters:
            return calibrate(coordinates, fit_ward(seen, clusters), pooled)
        is_tiny = coordinates.kept > 0 and len(seen.points) < FEWEST
        chosen = choose_among_few(seen, coordinates, pooled, most) if is_tiny else choose_mixture(seen, most)
        found = calibrate(coordinates, chosen, pooled)
        is_final = found.is_separated or len(found.mixture) == 1
        return found if is_final else calibrate(coordinates, choose_mixture(seen, 1), pooled)

    def draw(self, known: Signatures) -> Tensor:
        """Ids of clients that the model is fitted on, ascending."""
        usable = find_usable(known).nonzero()[:, 0]
        if not len(usable):
            raise DataError("no client sent a finite signature of at least one sample: clients cannot be compared")
        order = torch.randperm(len(usable), generator=torch.Generator().manual_seed(self.seed))
        return usable[order[:FITTED].sort().values.to(usable.device)]


@dataclass(frozen=True)
class CalibratedClusters(DisjointClusters):
    """The clusters that were found; another number of them is fitted when asked for."""

    by: Calibrated
    known: Signatures

    def clusters(self, clusters: int = 0) -> Tensor:
        return self.by.fit(self.known, clusters).label(self.known) if clusters else self.labels


@dataclass(frozen=True)
class ClusterModel:
    """All it takes to assign a client by its signature; kept directions are the first r of q coordinates."""

    coordinates: Coordinates
    mixture: Mixture  # in the kept directions, one at least
    rest: Tensor  # [C, q - r] centres in the other directions
    doubt: Tensor  # [C, r]: variance of a centre along the cluster's axes
    noise: Tensor  # scalar: noise of one sample in the other directions
    doubt_rest: Tensor  # [C]: variance of a centre in the other directions
    usual: Tensor  # scalar: noise of the mean of a usual client, over that of one sample
    typical: Tensor  # [2, 2]: median and scale of the cube roots of members' distances, in kept and other directions
    freedom: float
    within: float  # share of the variance between clients, noise left out, that is within clusters

    @property
    def kept(self) -> int:
        """Directions in which clients differ by more than noise."""
        return self.coordinates.kept

    @property
    def differ(self) -> bool:
        """Whether clients differ by more than noise, in some direction or in all together."""
        return self.kept > 0 or self.coordinates.p_value < ALIKE

    @property
    def is_separated(self) -> bool:
        """Whether there are several clusters, and clients differ more between than within them."""
        return self.kept > 0 and len(self.mixture) > 1 and self.within <= BY_DEGREES

    def summary(self) -> str:
        """What was found, in one line."""
        if not self.differ:
            return "one cluster: clients are alike"
        clients = len(self.mixture.probability)
        if len(self.mixture) == 1 and clients < FEWEST:
            return f"one cluster: {clients} clients differ, and are too few to tell clusters from degrees"
        counted = "one cluster" if len(self.mixture) == 1 else f"{len(self.mixture)} clusters"
        kind = ", well separated" if self.is_separated else ": clients differ by degrees"
        return f"{counted}{kind} (within-cluster share of variance {self.within:.2f})"

    def label(self, known: Signatures) -> Tensor:
        """The cluster of each client: [M]; one without a usable signature is alone in a cluster of its own."""
        usable = find_usable(known)
        return self.assign(known).clusters.where(usable, len(self.mixture) - 1 + (~usable).cumsum(0))

    def assign(self, signatures: Signatures) -> Fit:
        """The likeliest cluster of each client; one without a usable signature has p-value 0."""
        parts = list(zip(*(self._assign(block) for block in signatures.split(AT_ONCE)), strict=True))
        clusters, p_values, distances, sure = (torch.cat(part).to(signatures.shares.device) for part in parts)
        return Fit(clusters, p_values, p_values > 0, distances, sure)

    def _assign(self, block: Signatures) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        usable = find_usable(block)
        centroids, shares = block.centroids.where(usable[:, None, None], 0), block.shares.where(usable[:, None], 1)
        pooled = PooledParts.of(Signatures(centroids, shares))
        points, kept = self.coordinates.transform(pooled), self.mixture.centres.shape[1]
        density = self.mixture.log_density(points[:, :kept], 1 / pooled.sizes)
        clusters, sure = density.argmax(1), density.softmax(1).amax(1)
        # small clients measure little of what a large one has little of: the spread within clusters
        squares = self.distances(points, (1 / pooled.sizes).clamp(min=self.usual), 1.0)
        return clusters, self.p_values(pick_own(squares, clusters)) * usable.cpu(), squares.nansum(0).sqrt(), sure

    def p_values(self, squares: Tensor) -> Tensor:
        """How often members are farther away than these squared distances [2, M]: the lesser of both tests, [M]."""
        from scipy.special import stdtr

        standard = (squares.pow(1 / 3) - self.typical[:, :1]) / self.typical[:, 1:]
        tail = torch.from_numpy(stdtr(self.freedom, -standard.numpy())).nan_to_num(1.0)
        return (tail / tail.new_tensor(TESTS)[:, None]).amin(0).clamp(max=1)

    def distances(self, points: Tensor, noise: Tensor, sign: float) -> Tensor:
        """Squared distances from all clusters in units of their variance, in kept and other directions: [2, M, C].

        The doubt about a centre adds to the variance of an unseen client (sign 1) and lowers that of a member (-1).
        """
        kept = self.mixture.centres.shape[1]
        axes, along = find_axes(self.mixture.noise, self.mixture.spread)
        apart = (points[:, :kept] - self.mixture.centres[:, None]) @ axes
        variance = along[:, None] + noise[:, None] + sign * self.doubt[:, None]
        first = (apart.square() / keep_positive(variance)).sum(2).mT
        scale = keep_positive(self.noise * noise[:, None] + sign * self.doubt_rest)
        return torch.stack([first, torch.cdist(points[:, kept:], self.rest).square() / scale])


def nest_clusters(by: Calibrated, plain: Signatures, labelled: Signatures) -> tuple[Tensor, bool]:
    """Clusters by samples alone, each split where its samples have other labels: [M]; whether clients may differ.

    Clusters that clients lie between count as one. Fewer than eight clients are never said to be alike.
    """
    outer = by.fit(plain)
    names = (
        outer.label(plain) if outer.is_separated else torch.zeros(len(plain), dtype=torch.long).to(plain.shares.device)
    )
    found, differ = torch.zeros_like(names), outer.differ or len(plain) < FEWEST
    for name in names.unique():
        members = (names == name).nonzero()[:, 0]
        inner = by.fit(some := labelled.of(members)) if len(members) >= FEWEST else None
        split = inner.label(some) if inner and inner.is_separated else torch.zeros_like(members)
        found[members], differ = found.max() + 1 + split, differ or bool(inner and inner.differ)
    return found - 1, differ


def choose_among_few(seen: Observed, coordinates: Coordinates, pooled: PooledParts, most: int) -> Mixture:
    """The mixture of so few clients that a spread within clusters is hardly measured.

    Clusters are groups of two clients at least that stand apart, whatever is between the clients of one; else groups
    that differ by noise alone. One cluster where less than half of the clients are like another. Where the clusters are
    not separate, those of least BIC.
    """
    points, freedom = coordinates.transform(pooled), max(float(pooled.freedom.sum()), 1.0)
    apart = group_apart(points, pooled.sizes, APART)
    if apart is not None and (found := fit_separate(seen, apart, most)):
        return found
    alike = group_alike(points, pooled.sizes, freedom, ALIKE)
    if 2 * int((alike.bincount() == 1).sum()) > len(alike):
        return choose_mixture(seen, 1)
    return fit_separate(seen, alike, most) or choose_mixture(seen, most)


def fit_separate(seen: Observed, labels: Tensor, most: int) -> Mixture | None:
    """The mixture of just these clusters, if they are several, at most so many, and separate."""
    found = fit_labels(seen, labels, free=False)
    is_narrow = 1 < len(found) <= most and found.within_share() <= BY_DEGREES
    return found if is_narrow and float(compare_clusters(seen, found).max()) < SEPARATE else None


def find_usable(known: Signatures) -> Tensor:
    """Clients with a finite signature of at least one sample: bool [M]."""
    parts, counts = known.centroids, known.shares
    return parts.isfinite().all(2).all(1) & counts.isfinite().all(1) & (counts >= 0).all(1) & (counts.sum(1) > 0)


def observe(coordinates: Coordinates, pooled: PooledParts) -> Observed:
    """What the mixture is fitted on, in the kept directions, one at least."""
    kept = max(coordinates.kept, 1)
    rows = pooled.limit_noise() @ coordinates.basis[:, :kept]
    return Observed(coordinates.transform(pooled)[:, :kept], 1 / pooled.sizes, rows.mT @ rows, pooled.freedom)


def calibrate(coordinates: Coordinates, mixture: Mixture, pooled: PooledParts) -> ClusterModel:
    """The model with the usual distances of members from their clusters, each measured without the member itself."""
    (clients, clusters), kept = mixture.probability.shape, mixture.centres.shape[1]
    freedom, points, noise = float(max(clients - clusters, 1)), coordinates.transform(pooled), 1 / pooled.sizes
    share, mixture = mixture.within_share(), replace(mixture, spread=mixture.spread * clients / freedom)
    along = find_axes(mixture.noise, mixture.spread)[1]
    doubt = 1 / (mixture.probability.mT[..., None] / (along[:, None] + noise[:, None])).sum(1)
    sizes = (mixture.probability / noise[:, None]).mT
    rest = sizes @ points[:, kept:] / sizes.sum(1, keepdim=True)
    labels, theory = mixture.probability.argmax(1), torch.ones(2, 2, dtype=torch.double)
    other = measure_noise(points[:, kept:] - rest[labels], noise, labels)
    model = ClusterModel(
        coordinates, mixture, rest, doubt, other, other / sizes.sum(1), noise.median(), theory, freedom, share
    )
    first, second = pick_own(model.distances(points, noise, -1.0), labels)
    learnt = float((along / (along + noise.median())).mean())
    first = first * freedom / (freedom - learnt * first).clamp(min=freedom / 2)  # as if learnt without the member
    return replace(model, typical=torch.stack([summarise(first, kept), summarise(second, points.shape[1] - kept)]))


def measure_noise(apart: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
    """The usual noise of one sample, by how far members [M, d] are from their clusters' centres: a scalar."""
    members = torch.bincount(labels)[labels].double()
    square = apart.square().mean(1).nan_to_num(0.0) * members / (members - 1).clamp(min=1)
    return (square / noise).median().clamp(min=1e-12)


def pick_own(distances: Tensor, clusters: Tensor) -> Tensor:
    """Of distances from all clusters [2, M, C] those from one's own ([M]): [2, M]."""
    return distances.gather(2, clusters[None, :, None].expand(2, -1, 1))[..., 0]


def keep_positive(variance: Tensor) -> Tensor:
    """Variances with NaN where a cluster has no other member to measure a distance from."""
    return variance.where(variance > 1e-9 * variance.abs().amax(), torch.nan)


def summarise(squares: Tensor, width: int) -> Tensor:
    """Median and scale of the cube roots of squared distances, at least those of noise in so many directions: [2].

    Cube roots are nearly normal (Wilson and Hilferty 1931).
    """
    width, roots = max(width, 1), squares[squares.isfinite()].pow(1 / 3)
    theory: Tensor = roots.new_tensor([1 - 2 / (9 * width), (2 / (9 * width)) ** 0.5]) * width ** (1 / 3)
    if len(roots) < 2:
        return theory
    middle = roots.median()
    return torch.stack([middle, (roots.quantile(UPPER[0]) - middle) / UPPER[1]]).maximum(theory)
