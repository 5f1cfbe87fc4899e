"""How far clients are from each other: outliers, and copies of what others sent."""

import torch
from torch import Tensor

AT_ONCE = 2**22  # distances


def measure_isolation(points: Tensor, there: Tensor | None) -> tuple[Tensor, Tensor]:
    """How far each client's points are from the nearest of any other client, on average, and from a remote one's."""
    clients, k, _ = points.shape
    counts = torch.ones(clients, k, dtype=torch.bool, device=points.device) if there is None else there
    everything, some = points.double(), max(1, AT_ONCE // (k * k * clients))
    found = [_isolate(i, everything, counts) for i in torch.arange(clients, device=points.device).split(some)]
    nearest, remote = zip(*found, strict=True)
    return torch.cat(nearest), torch.cat(remote)


def find_usual_distance(nearest: Tensor, points: Tensor, there: Tensor | None) -> float:
    """How far a client usually is from the nearest other one: the upper median, where equal clients count once.

    So who copies others does not make the rest look far away; near copies do, where they and the copied are over half.
    """
    different, whose = points.flatten(1).unique(dim=0, return_inverse=True)
    if 1 < len(different) < len(points):
        everybody = torch.arange(len(points), device=points.device)
        kept = everybody[: len(different)].scatter_reduce(0, whose, everybody, "amin", include_self=False)
        nearest = measure_isolation(points[kept], None if there is None else there[kept])[0]
    return float(nearest.sort().values[len(nearest) // 2])


def pass_over_copies(nearest: Tensor, radius: float, points: Tensor, there: Tensor | None) -> Tensor:
    """The distances to the nearest other client that is not one of a few within this radius.

    Liars that send the same are near each other, and as far from all others as one of them would be. A quarter of the
    clients are a cluster, however near to each other.
    """
    near, few = (nearest <= radius).nonzero()[:, 0], (len(points) - 1) // 4
    if few < 2 or not 1 < len(near) <= len(points) // 2:
        return nearest
    kept, whose = keep_one_of_each(points[near], None if there is None else there[near], radius, few)
    everybody = torch.arange(len(points), device=points.device)
    rest, place = everybody.index_copy(0, near, near[kept[whose]]).unique(return_inverse=True)
    return measure_isolation(points[rest], None if there is None else there[rest])[0][place]


def keep_one_of_each(points: Tensor, there: Tensor | None, radius: float, few: int) -> tuple[Tensor, Tensor]:
    """Of each few clients within this radius of each other the first, of more all; who stands for each: [kept], [m]."""
    counts = torch.ones_like(points[..., 0], dtype=torch.bool) if there is None else there
    everybody, some = torch.arange(len(points), device=points.device), max(1, AT_ONCE // counts.numel())
    parts = (_measure_apart(part, points.double(), counts) for part in everybody.split(some))
    alike = torch.cat([_average_points(*part) <= radius for part in parts])
    alike &= (alike.sum(1) <= few)[:, None]
    first = torch.where(alike.any(1), alike.to(torch.uint8).argmax(1).minimum(everybody), everybody)
    for _ in range(few):
        first = first[first]
    kept, whose = first.unique(return_inverse=True)
    return kept, whose


def _isolate(some: Tensor, points: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The same for some of the clients."""
    apart, own = _measure_apart(some, points, counts)
    others = some[:, None, None] != torch.arange(len(points), device=points.device)
    ordered = apart.where(others, torch.inf).sort(2).values
    nearest, upper = (_average_points(ordered[..., at, None], own)[:, 0] for at in (0, 3 * (len(points) - 2) // 4))
    return nearest, upper


def _average_points(apart: Tensor, own: Tensor) -> Tensor:
    """The mean over each client's own points [some, k, n], by their weights [some, k]: [some, n]."""
    return (own[..., None] * apart.where(own[..., None] > 0, 0.0)).sum(1)


def _measure_apart(some: Tensor, points: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """How far each point of some clients is from the nearest of each client [some, k, clients], and its weight."""
    apart = torch.cdist(points[some].flatten(0, 1), points.flatten(0, 1)).view(len(some), -1, *counts.shape)
    own = counts[some].double() / counts[some].sum(1, keepdim=True).clamp(min=1)
    return apart.where(counts, torch.inf).amin(3), own
