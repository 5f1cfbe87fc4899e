"""Who is related to whom: distances between signatures, UMAP, thresholds, agreement of models."""

from kinfed.relatedness.inference import inference_similarity, predictions, server_samples, similarity
from kinfed.relatedness.relatedness import Relatedness, from_clusters, nearest_clusters
from kinfed.relatedness.set_distances import DISTANCES, set_distances

__all__ = [
    "DISTANCES", "Relatedness", "from_clusters", "inference_similarity", "nearest_clusters", "predictions", 
    "server_samples",    "set_distances", "similarity",
]  # fmt: skip
