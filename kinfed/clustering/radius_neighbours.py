"""Which points can be within reach of each other, without looking at all pairs."""

from collections.abc import Iterator

import torch
from torch import Tensor

AT_ONCE = 2**22  # distances in one go
FEW = 1024  # points that need no cells
OUTSIDE = 2.5  # times a cell's mean distance from its centre


def within_reach(points: Tensor, reach: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of index lists (some, others): every point is once in `some`, and all within its reach are in `others`.

    Points are cut into cells, and a cell meets only those points that its centre and radius allow. Points far outside
    their cell would make it large: they belong to none and meet everybody. `others` ascends.
    """
    cell, centres = cells(points)
    apart = (points - centres[cell]).norm(dim=1)
    share = apart.new_zeros(len(centres)).index_add(0, cell, apart) / torch.bincount(cell, minlength=len(centres))
    outside = apart > OUTSIDE * share[cell]
    radius = torch.zeros_like(share).scatter_reduce(0, cell, apart.where(~outside, 0), "amax")
    home = cell.where(~outside, len(centres))
    members = home.argsort(stable=True).split(torch.bincount(home, minlength=len(centres) + 1).tolist())
    everybody = torch.arange(len(points), device=points.device)
    for at in torch.arange(len(centres), device=points.device).split(max(1, AT_ONCE // len(points))):
        ways = torch.cdist(centres[at], points) <= ((reach + radius[at]) * (1 + 1e-6) + 1e-9)[:, None]
        for one, allowed in zip(at.tolist(), ways, strict=True):
            yield from in_parts(members[one], allowed.nonzero()[:, 0])
    yield from in_parts(members[-1], everybody)


def in_parts(some: Tensor, others: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some points with the same others, so many of them that their distances fit into memory."""
    yield from ((part, others) for part in some.split(max(1, AT_ONCE // max(1, len(others)))) if len(part))


def cells(points: Tensor) -> tuple[Tensor, Tensor]:
    """The cell of each point, and the cells' centres: one step of k-means from a few of the points. [n], [c, d]"""
    if len(points) <= FEW:
        return torch.zeros(len(points), dtype=torch.long, device=points.device), points.mean(0, keepdim=True)
    draw = torch.Generator().manual_seed(len(points))
    drawn = torch.randperm(len(points), generator=draw)[: int(2 * len(points) ** 0.5)]
    whose = nearest(points, points[drawn.to(points.device)])
    counts = torch.bincount(whose, minlength=len(drawn))
    sums = points.new_zeros(len(drawn), points.shape[1]).index_add(0, whose, points)
    centres = sums[counts > 0] / counts[counts > 0, None]
    return nearest(points, centres), centres


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point: [n]."""
    parts = points.split(max(1, AT_ONCE // len(centres)))
    return torch.cat([torch.cdist(part, centres).argmin(1) for part in parts])
