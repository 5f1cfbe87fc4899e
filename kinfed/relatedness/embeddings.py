"""Clients as points: kernel mean embedding (MMD), and UMAP. The one file that imports umap-learn.

A client's centroids, weighted by their shares of its samples, are a distribution; its mean in the feature space of a
Gaussian kernel is one vector, which does not depend on how often k-means split a class. Of the directions in which
clients differ only those are kept in which they differ more than if all centroids had been dealt out at random.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.errors import ConfigError
from kinfed.signatures.signature import Signatures

if TYPE_CHECKING:
    from umap import UMAP

FEATURES = 1024  # random Fourier features of the kernel
SEEN = 1000  # centroids that the kernel's width is measured on
FITTED = 20_000  # clients that the map is fitted on, drawn where there are more
AT_ONCE = 2048  # clients in feature space
ROUNDING = 64 * torch.finfo(torch.float).eps  # of the largest number: nearer centroids are equal, but for last bits
STRENGTH = 0.5  # of chance's strongest directions; below it k-means' own accidents look like clusters


@dataclass(frozen=True)
class KernelMap:
    """The way from signatures to points, fitted on clients; unseen clients are mapped the same way."""

    frequencies: Tensor  # [e, f]
    phases: Tensor  # [f]
    centre: Tensor  # [f]
    directions: Tensor  # [f, r]

    def __call__(self, known: Signatures) -> Tensor:
        """One point for each client: [clients, r]."""
        return torch.cat([(self.means(part) - self.centre) @ self.directions for part in known.split(AT_ONCE)])

    def means(self, known: Signatures) -> Tensor:
        """The mean of each client's samples in feature space: [clients, f]."""
        return torch.einsum("mk,mkf->mf", shares_of(known), self.features(known))

    def features(self, known: Signatures) -> Tensor:
        """Every centroid in feature space: [clients, k, f]."""
        turned = known.centroids.double() @ self.frequencies + self.phases
        return turned.cos().mul((2 / FEATURES) ** 0.5)


def fit_kernel(known: Signatures, width: float, seed: int) -> KernelMap:
    """The map for these clients; `width` is the kernel's, in units of the median distance of two centroids."""
    draw = torch.Generator().manual_seed(seed)
    device, e = known.centroids.device, known.centroids.shape[2]
    frequencies = torch.randn(e, FEATURES, generator=draw, dtype=torch.double).to(device)
    phases = (2 * torch.pi * torch.rand(FEATURES, generator=draw, dtype=torch.double)).to(device)
    if len(known) > FITTED:
        known = known.of(torch.randperm(len(known), generator=draw)[:FITTED].to(device))
    rounding = ROUNDING * float(known.centroids.abs().amax()) if known.centroids.numel() else 0.0
    apart = max(median_distance(known, draw), rounding, torch.finfo(torch.float).tiny)
    nothing = torch.zeros(FEATURES, dtype=torch.double, device=device)
    plain = KernelMap(frequencies / (width * apart), phases, nothing, torch.diag(nothing))
    centre = sum((plain.means(part).mean(0) * (len(part) / len(known)) for part in known.split(AT_ONCE)), nothing)
    return KernelMap(plain.frequencies, phases, centre, find_directions(plain, known, centre))


def find_directions(kernel: KernelMap, known: Signatures, centre: Tensor) -> Tensor:
    """The leading directions in which clients vary more than centroids dealt out at random would: [f, r]."""
    between, dealt = scatter(kernel, known, centre)
    values, directions = (part.flip(-1) for part in torch.linalg.eigh(between))
    along = (directions * (dealt @ directions)).sum(0)  # what chance does in the same directions
    strongest = torch.linalg.eigvalsh(dealt).flip(0)  # and in those where it does most
    beyond = (values > along) & (values > STRENGTH * strongest)
    leading: Tensor = directions[:, : int(beyond.long().cumprod(0).sum())]
    return leading


def scatter(kernel: KernelMap, known: Signatures, centre: Tensor) -> tuple[Tensor, Tensor]:
    """How clients vary in feature space, and how they would if centroids were dealt out at random: [f, f] each."""
    between, within = (torch.zeros(FEATURES, FEATURES, dtype=torch.double, device=centre.device) for _ in range(2))
    for part in known.split(AT_ONCE):
        shares, points = shares_of(part), kernel.features(part) - centre
        means = torch.einsum("mk,mkf->mf", shares, points)
        spread = (points * shares.sqrt()[..., None]).flatten(0, 1)
        between, within = between + means.T @ means, within + spread.T @ spread
    return between / len(known), shares_of(known).square().sum(1).mean() * within / len(known)


def median_distance(known: Signatures, draw: torch.Generator) -> float:
    """The median distance of two of the centroids that stand for samples."""
    there = known.centroids[known.shares > 0]
    some = there[torch.randperm(len(there), generator=draw)[:SEEN].to(there.device)]
    return float(torch.pdist(some.double()).median()) if len(some) > 1 else 0.0


def shares_of(known: Signatures) -> Tensor:
    """Shares that add up to one; a client without a signature has none."""
    return known.shares.double() / known.shares.double().sum(1, keepdim=True).clamp(min=1e-12)


Rows = npt.NDArray[np.float32]


def project(points: Tensor, dimensions: int, neighbours: int, min_dist: float, seed: int) -> Tensor:
    """Points in R^e as points in R^u: [n, e] -> [n, u]."""
    reducer = _fit_umap(points.cpu().numpy().tobytes(), points.shape[1], dimensions, neighbours, min_dist, seed)
    return torch.from_numpy(np.array(reducer.embedding_)).to(points.device)


def project_more(points: Tensor, more: Tensor, dimensions: int, neighbours: int, min_dist: float, seed: int) -> Tensor:
    """Further points in the plane that `points` were projected into: [m, e] -> [m, u]."""
    reducer = _fit_umap(points.cpu().numpy().tobytes(), points.shape[1], dimensions, neighbours, min_dist, seed)
    with keep_threads():
        return torch.from_numpy(np.array(reducer.transform(more.cpu().numpy()))).to(points.device)


@contextmanager
def keep_threads() -> Iterator[None]:
    """Torch has as many threads after this as before: UMAP's own library gives torch all cores too."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=4)
def _fit_umap(points: bytes, width: int, dimensions: int, neighbours: int, min_dist: float, seed: int) -> "UMAP":
    """UMAP fitted on these points; fitting is seeded, so nothing of it needs to be kept with a run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP
    except ImportError as error:
        raise ConfigError(
            "centroids are projected by the package umap-learn, which is not here: install it, or set "
            "relatedness.distance = 'kernel', which needs no projection"
        ) from error
    rows: Rows = np.frombuffer(points, dtype=np.float32).reshape(-1, width)
    few = max(2, min(neighbours, len(rows) - 1))
    init = "spectral" if len(rows) > dimensions + 2 else "random"  # the spectral start needs more points than axes
    umap = UMAP(few, dimensions, min_dist=min_dist, random_state=seed, init=init, n_jobs=1)
    with keep_threads(), warnings.catch_warnings():  # it warns of islands among the points, which are what we look for
        warnings.simplefilter("ignore")
        return umap.fit(rows)
