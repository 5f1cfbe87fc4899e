"""Few coordinates for many numbers: principal components of samples, and points that stand for large models."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from kinfed.clustering.kmeans import Part
from kinfed.params import Stack, to_matrix

WIDTH = 2**16  # weights of each model that are looked at together
ROUNDING = 1e-12  # of the longest model's square: what is less is taken for none


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
