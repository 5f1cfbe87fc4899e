"""Who is related to whom: distances between signatures, UMAP, thresholds, agreement of models."""

from kinfed.relatedness.inference import inference_similarity, predictions, server_rows, similarity
from kinfed.relatedness.relatedness import Relatedness, from_groups, nearest_groups
from kinfed.relatedness.set_distances import DISTANCES, set_distances

__all__ = [
    "DISTANCES", "Relatedness", "from_groups", "inference_similarity", "nearest_groups", "predictions", "server_rows",
    "set_distances", "similarity",
]  # fmt: skip
