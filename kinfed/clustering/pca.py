"""Principal components as a pure tensor program."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kinfed.clustering.kmeans import Part


def principal_directions(parts: Sequence[Part], components: int) -> tuple[Tensor, Tensor]:
    """The mean [d] of the rows and their leading directions [d, at most `components`], each with a fixed sign.

    Rows should be double: between directions of almost equal variance, rounding would choose.
    """
    total = torch.stack([mask.sum() for _, mask in parts]).sum().clamp(min=1)
    mean = torch.stack([(x * mask[:, None]).sum(0) for x, mask in parts]).sum(0) / total
    spread = torch.zeros_like(mean)[:, None] * mean
    for x, mask in parts:
        centred = (x - mean) * mask[:, None]
        spread = spread + centred.T @ centred
    _, directions = torch.linalg.eigh(torch.nan_to_num(spread, posinf=0.0, neginf=0.0))  # it refuses a sick client's
    leading = directions.flip(1)[:, :components]
    largest = leading.gather(0, leading.abs().argmax(0, keepdim=True))
    return mean, leading * torch.where(largest < 0, -1.0, 1.0)
