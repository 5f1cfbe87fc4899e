"""Few coordinates for large models: what only asks how far they are from each other need not carry their weights."""

import numpy as np
import torch
from torch import Tensor

from kinfed.params import Stack, to_matrix

WIDTH = 2**16  # weights of each model that are looked at together
ROUNDING = 1e-12  # of the longest model's square: what is less is taken for none


def coordinates(*stacks: Stack) -> Tensor:
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
