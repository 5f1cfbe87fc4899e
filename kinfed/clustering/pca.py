"""Principal components as a pure tensor program."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from kinfed.clustering.kmeans import Part

NOTHING = 1e-12  # of the largest variance: rounding


def principal_directions(parts: Sequence[Part], components: int) -> tuple[Tensor, Tensor]:
    """The mean [d] of the rows and their leading directions [d, at most `components`], each with a fixed sign.

    Rows should be double: between directions of almost equal variance, rounding would choose.
    """
    total = torch.stack([mask.sum() for _, mask in parts]).sum().clamp(min=1)
    mean = torch.stack([(x * mask[:, None]).sum(0) for x, mask in parts]).sum(0) / total
    centred = torch.cat([(x - mean) * mask[:, None] for x, mask in parts])
    centred = torch.nan_to_num(centred, posinf=0.0, neginf=0.0)  # a sick client's would be refused
    leading = _of_rows(centred, components) if len(centred) < len(mean) else _of_columns(centred, components)
    largest = leading.gather(0, leading.abs().argmax(0, keepdim=True))
    return mean, leading * torch.where(largest < 0, -1.0, 1.0)


def _of_columns(centred: Tensor, components: int) -> Tensor:
    """Leading eigenvectors of the columns' products: [d, components]."""
    vectors: Tensor = torch.linalg.eigh(centred.T @ centred)[1]
    return vectors.flip(1)[:, :components]


def _of_rows(centred: Tensor, components: int) -> Tensor:
    """The same from the rows' products, of which there are fewer; a direction in which nothing varies is 0."""
    values, vectors = (part.flip(-1)[..., :components] for part in torch.linalg.eigh(centred @ centred.T))
    varies = values > values[:1] * NOTHING
    found = torch.where(varies, centred.T @ vectors / values.where(varies, 1.0).sqrt(), 0.0)
    return pad(found, (0, min(components, len(found)) - found.shape[1]))
