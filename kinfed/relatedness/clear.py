"""How near is near, where it is not set: it depends on whether clients form clear groups."""

import warnings

import torch
from torch import Tensor

from kinfed.clustering.graph import average_linkage
from kinfed.clustering.hierarchy import silhouette

CLEAR = 0.25  # a silhouette up to this is no substantial structure (Kaufman and Rousseeuw, Finding Groups in Data)
MANY = 10  # clients; of fewer each may well be one of a kind
SEEN = 1000  # clients that are looked at, drawn where there are more


def near_enough(distances: Tensor, near: float) -> float:
    """`near` if groups that are cut there are clear; else the median distance of two clients, where that is more."""
    if len(distances) < MANY:
        return near
    clarity = silhouette(distances, average_linkage(distances, near))
    row, column = torch.triu_indices(len(distances), len(distances), 1, device=distances.device)
    typical = float(distances[row, column].median())
    if clarity > CLEAR or typical <= near:
        return near
    warnings.warn(
        f"clients form no clear groups (silhouette {clarity:.2f}), so that those nearer than {typical:.2f} are "
        f"related, the median of all pairs, instead of {near:g}; relatedness.threshold sets another",
        stacklevel=2,
    )
    return typical


def drawn(clients: int, seed: int) -> Tensor:
    """Positions of those that are looked at."""
    return torch.randperm(clients, generator=torch.Generator().manual_seed(seed))[:SEEN].sort().values
