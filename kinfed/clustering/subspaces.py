"""Subspaces that samples span: their leading singular vectors, label by label, and angles between those of clients."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from kinfed.keys import base_key, fold, normal

Angle = Literal["smallest", "signed", "principal", "by_label"]
SPARE, POWERS = 5, 20  # further vectors that are iterated, and how often: the wanted ones converge faster
TINY = 1e-12  # of the largest squared singular value: rounding


class Labelled(NamedTuple):
    """Some samples of one client, and which labels they have."""

    x: Tensor  # [b, d] double
    member: Tensor  # [b, labels] 1 where the sample has the label; 0 all over for padding


def find_bases(parts: Sequence[Labelled], vectors: int) -> Tensor:
    """The leading left singular vectors of each label's samples, not centred: [labels, d, vectors].

    By subspace iteration with a fixed start, so that it is a pure tensor program; each vector's largest entry is
    positive. A vector is 0 where a label has fewer independent samples; all are NaN where a sample is not finite.
    """
    is_finite = torch.stack([(x.isfinite() | (member == 0).all(1, keepdim=True)).all() for x, member in parts]).all()
    parts = [Labelled(torch.nan_to_num(x, posinf=0.0, neginf=0.0), member) for x, member in parts]  # eigh would raise
    labels, size = parts[0].member.shape[1], parts[0].x.shape[1]
    width = min(vectors + SPARE, size)
    key = torch.tensor(base_key("subspaces"), device=parts[0].x.device)
    start = normal(fold(key, torch.arange(2 * size * width, device=key.device))).view(size, width)
    basis = torch.linalg.qr(start.expand(labels, size, width))[0]
    for _ in range(POWERS):
        basis = torch.linalg.qr(_multiply(parts, basis))[0]
    values, turn = torch.linalg.eigh(basis.mT @ _multiply(parts, basis))
    found, values = (basis @ turn).flip(2)[..., :vectors], values.flip(1)[:, None, :vectors]
    largest = found.gather(1, found.abs().argmax(1, keepdim=True))
    found = found * torch.where(largest < 0, -1.0, 1.0)
    found = found.where(values > TINY * values[..., :1].clamp(min=TINY), 0.0)
    return pad(found, (0, vectors - found.shape[2])).where(is_finite, torch.nan)


def _multiply(parts: Sequence[Labelled], basis: Tensor) -> Tensor:
    """X Xᵀ of each label's samples, times its basis: [labels, d, vectors]."""
    products = [
        torch.einsum("bd,lbk->ldk", x, torch.einsum("bd,ldk->lbk", x, basis) * member.T[:, :, None])
        for x, member in parts
    ]
    return torch.stack(products).sum(0)


def find_angles(some: Tensor, others: Tensor, angle: Angle) -> Tensor:
    """Degrees between the bases of each of some clients and each of the others: [a, b]; bases: [.., labels, d, p].

    smallest: between any vector of the one and any of the other; signed: the same where opposite vectors are 180°
    apart, by whatever signs they have; principal: the first principal angle between what all vectors of either span;
    by_label: the mean over labels and their vectors, 90° where only one of both has one.
    """
    if not len(some):
        return some.new_zeros(0, len(others))
    if angle == "by_label":
        return torch.stack([_compare_labels(one, others) for one in some])
    flat, rest = (bases.movedim(2, 1).flatten(2) for bases in (some, others))  # [clients, d, labels · p]
    if angle == "principal":
        flat, rest = _orthonormalise(flat), _orthonormalise(rest)
    rows = []
    for one in flat:
        cosines = one.T @ rest
        if angle == "principal":
            largest = torch.linalg.matrix_norm(cosines, 2)
        elif angle == "signed":
            largest = cosines.where(one.any(0)[:, None] & rest.any(1)[:, None], -1.0).amax((1, 2))
        else:
            largest = cosines.abs().amax((1, 2))
        rows.append(_to_degrees(largest))
    return torch.stack(rows)


def _compare_labels(one: Tensor, others: Tensor) -> Tensor:
    """The mean angle between vectors of the same label and rank: [others]; 0 where neither has any."""
    angles = _to_degrees((one * others).sum(2).abs())  # [others, labels, p]
    known = one.any(1) | others.any(2)
    return (angles * known).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)


def _orthonormalise(vectors: Tensor) -> Tensor:
    """Orthonormal vectors that span the same, 0 where there are fewer: [clients, d, vectors]."""
    left, values, _ = torch.linalg.svd(vectors, full_matrices=False)
    kept: Tensor = left * (values > 1e-6 * values[:, :1].clamp(min=TINY))[:, None]
    return kept


def _to_degrees(cosines: Tensor) -> Tensor:
    return torch.rad2deg(torch.arccos(cosines.clamp(-1, 1)))
