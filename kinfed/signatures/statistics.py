"""REPA's signature of a client: statistics of its rows in an encoder's space, dimension by dimension.

No labels are needed, and the order of the rows does not matter. As in torch, n - 1 is the divisor of `var`, `std` and
`covariance`; for a single row they are 0.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from kinfed.clustering.kmeans import Part

Statistic = Literal["mean", "quartiles", "std", "var", "min", "max", "covariance", "correlation"]
Parts = Sequence[Part]
QUARTILES = (0.25, 0.5, 0.75)


def summarise(parts: Parts, statistics: Sequence[Statistic]) -> Tensor:
    """These statistics of all rows that count, one after the other: [numbers]. Sums are made in double."""
    return torch.cat([STATISTICS[name](parts) for name in statistics]).float()


def mean(parts: Parts) -> Tensor:
    """The mean of each dimension: [d]."""
    total = torch.zeros_like(parts[0].x[0], dtype=torch.double)
    for x, mask in parts:  # one after the other: a part of padding adds zeros and changes no bit
        total = total + torch.where(mask[:, None], x, 0.0).double().sum(0)
    return total / _rows(parts).clamp(min=1)


def quartiles(parts: Parts) -> Tensor:
    """The three quartiles of each dimension, linear between rows: [3d]."""
    x, mask = (torch.cat(columns) for columns in zip(*parts, strict=True))
    ordered = torch.where(mask[:, None], x, torch.inf).sort(0).values.double()  # padding comes last
    last, found = (_rows(parts) - 1).clamp(min=0), []
    for share in QUARTILES:
        position = share * last.double()
        below = position.floor().long()
        low, high = (ordered.index_select(0, row[None])[0] for row in (below, torch.minimum(below + 1, last)))
        found.append(low + (high - low) * (position - below))
    return torch.cat(found)


def variance(parts: Parts) -> Tensor:
    """The variance of each dimension: [d]."""
    centre = mean(parts)
    total = torch.zeros_like(centre)
    for x, mask in parts:
        total = total + ((x - centre) * mask[:, None]).square().sum(0)
    return total / (_rows(parts) - 1).clamp(min=1)


def deviation(parts: Parts) -> Tensor:
    """The standard deviation of each dimension: [d]."""
    return variance(parts).sqrt()


def least(parts: Parts) -> Tensor:
    """The least value of each dimension: [d]."""
    return torch.stack([torch.where(mask[:, None], x, torch.inf).amin(0) for x, mask in parts]).amin(0).double()


def most(parts: Parts) -> Tensor:
    """The largest value of each dimension: [d]."""
    return torch.stack([torch.where(mask[:, None], x, -torch.inf).amax(0) for x, mask in parts]).amax(0).double()


def covariance(parts: Parts) -> Tensor:
    """The upper triangle of the covariance matrix, with its diagonal: [d (d + 1) / 2]."""
    matrix = _covariances(parts)
    return _upper(matrix, offset=0)


def correlation(parts: Parts) -> Tensor:
    """The upper triangle of the correlation matrix, without its diagonal: [d (d - 1) / 2]; 0 for what is constant."""
    matrix = _covariances(parts)
    spread = matrix.diagonal().clamp(min=0).sqrt()
    scale = spread[:, None] * spread
    related = torch.where(scale == 0, 0.0, matrix / scale)
    return _upper(related, offset=1)


STATISTICS: dict[Statistic, Callable[[Parts], Tensor]] = {
    "mean": mean,
    "quartiles": quartiles,
    "std": deviation,
    "var": variance,
    "min": least,
    "max": most,
    "covariance": covariance,
    "correlation": correlation,
}


def _rows(parts: Parts) -> Tensor:
    """How many rows count."""
    return torch.stack([mask.sum() for _, mask in parts]).sum()


def _upper(matrix: Tensor, offset: int) -> Tensor:
    row, column = torch.triu_indices(len(matrix), len(matrix), offset, device=matrix.device)
    return matrix[row, column]


def _covariances(parts: Parts) -> Tensor:
    centre = mean(parts)
    total = torch.zeros_like(centre)[:, None] * centre
    for x, mask in parts:
        apart = (x - centre) * mask[:, None]
        total = total + apart.T @ apart
    return total / (_rows(parts) - 1).clamp(min=1)
