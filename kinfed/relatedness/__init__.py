"""Which clients are related: distances between signatures, UMAP, thresholds."""

from kinfed.relatedness.calibrated import FEWEST, Calibrated, nest_clusters
from kinfed.relatedness.clusterer import Clusterer, ComparedClients, DisjointClusters, Fit, JudgesFit
from kinfed.relatedness.relatedness import (
    Relatedness,
    cluster_distances,
    nearest_clusters,
    warn_if_fewer,
    warn_if_isolated,
    warn_if_unconnected,
)
from kinfed.relatedness.set_distances import DISTANCES, set_distances

__all__ = [
    "DISTANCES", "FEWEST", "Calibrated", "Clusterer", "ComparedClients", "DisjointClusters", "Fit", "JudgesFit",
    "Relatedness", "cluster_distances", "nearest_clusters", "nest_clusters", "set_distances", "warn_if_fewer",
    "warn_if_isolated", "warn_if_unconnected",
]  # fmt: skip
