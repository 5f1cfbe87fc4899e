"""Clients as points whose distances say how differently their rows are distributed (kernel mean embedding, MMD).

A client's centroids, weighted by their shares of its rows, are a distribution; its mean in the feature space of a
Gaussian kernel is one vector, which does not care how often k-means split a class. Of the directions in which
clients differ only those are kept in which they differ more than if all centroids had been dealt out at random.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.signatures.known import Signatures

FEATURES = 1024  # random Fourier features of the kernel
SEEN = 1000  # centroids that the kernel's width is measured on
FITTED = 20_000  # clients that the map is fitted on, drawn where there are more
AT_ONCE = 2048  # clients in feature space
STRENGTH = 0.5  # of chance's strongest directions; below it k-means' own accidents look like groups


@dataclass(frozen=True)
class KernelMap:
    """The way from signatures to points, fitted on clients; strangers go the same way."""

    frequencies: Tensor  # [e, f]
    phases: Tensor  # [f]
    centre: Tensor  # [f]
    directions: Tensor  # [f, r]

    def __call__(self, known: Signatures) -> Tensor:
        """One point for each client: [clients, r]."""
        return torch.cat([(self.means(part) - self.centre) @ self.directions for part in known.parts(AT_ONCE)])

    def means(self, known: Signatures) -> Tensor:
        """The mean of each client's rows in feature space: [clients, f]."""
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
    apart = max(median_distance(known, draw), torch.finfo(torch.float).tiny)
    nothing = torch.zeros(FEATURES, dtype=torch.double, device=device)
    plain = KernelMap(frequencies / (width * apart), phases, nothing, torch.diag(nothing))
    centre = sum((plain.means(part).mean(0) * (len(part) / len(known)) for part in known.parts(AT_ONCE)), nothing)
    return KernelMap(plain.frequencies, phases, centre, beyond_chance(plain, known, centre))


def beyond_chance(kernel: KernelMap, known: Signatures, centre: Tensor) -> Tensor:
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
    for part in known.parts(AT_ONCE):
        shares, points = shares_of(part), kernel.features(part) - centre
        means = torch.einsum("mk,mkf->mf", shares, points)
        spread = (points * shares.sqrt()[..., None]).flatten(0, 1)
        between, within = between + means.T @ means, within + spread.T @ spread
    return between / len(known), shares_of(known).square().sum(1).mean() * within / len(known)


def median_distance(known: Signatures, draw: torch.Generator) -> float:
    """The median distance of two of the centroids that stand for rows."""
    there = known.centroids[known.shares > 0]
    some = there[torch.randperm(len(there), generator=draw)[:SEEN].to(there.device)]
    return float(torch.pdist(some.double()).median()) if len(some) > 1 else 0.0


def shares_of(known: Signatures) -> Tensor:
    """Shares that add up to one; a client that is not described has none."""
    return known.shares.double() / known.shares.double().sum(1, keepdim=True).clamp(min=1e-12)
