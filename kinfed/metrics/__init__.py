"""Metrics: accuracy and fairness over clients, quality of groups, communication; docs/metrics.md defines them all."""

from kinfed.metrics.agreement import adjusted_rand, agreement, crossed, mutual_information, pair_quality, purity
from kinfed.metrics.clients import (
    accuracy_of,
    converged_at,
    is_stuck,
    mean_accuracy,
    rounds_to_target,
    sample_accuracy,
    share_at_target,
    standard_error,
    variance,
    worst_decile,
)
from kinfed.metrics.clusters import (
    belong_together,
    clustering_error,
    cosines,
    uniformity,
    uniformity_of_chance,
    uniformity_of_labels,
)
from kinfed.metrics.communication import (
    QUESTIONS,
    fedavg_parameters,
    flt_parameters,
    megabits_per_client,
    method_bytes,
    repa_parameters,
)
from kinfed.metrics.correlation import bootstrap_error, pearson
from kinfed.metrics.drift import divergences, drift_similarity
from kinfed.metrics.found import Found, correlations, placed_clusters
from kinfed.metrics.robustness import originals_of, place_look_alikes, robustness
from kinfed.metrics.scores import Scores, accuracies, score_clients
from kinfed.metrics.signatures import signatures_seen

__all__ = [
    "QUESTIONS", "Found", "Scores", "accuracies", "accuracy_of", "adjusted_rand", "agreement", "belong_together",
    "bootstrap_error", "clustering_error", "converged_at", "correlations", "cosines", "crossed", "divergences",
    "drift_similarity", "fedavg_parameters", "flt_parameters", "is_stuck", "mean_accuracy", "megabits_per_client",
    "method_bytes", "mutual_information", "originals_of", "pair_quality", "pearson", "place_look_alikes",
    "placed_clusters", "purity", "repa_parameters", "robustness", "rounds_to_target", "sample_accuracy",
    "score_clients",    "share_at_target", "signatures_seen", "standard_error", "uniformity", "uniformity_of_chance",
    "uniformity_of_labels", "variance", "worst_decile",
]  # fmt: skip
