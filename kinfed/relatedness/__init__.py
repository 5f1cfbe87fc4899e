"""Who is related to whom: distances between signatures, UMAP, thresholds."""

from kinfed.relatedness.relatedness import Relatedness, nearest_groups
from kinfed.relatedness.set_distances import DISTANCES, set_distances

__all__ = ["DISTANCES", "Relatedness", "nearest_groups", "set_distances"]
