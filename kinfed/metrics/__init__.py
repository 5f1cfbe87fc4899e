"""Metrics: accuracy and fairness over clients, quality of clusters, communication; docs/metrics.md defines them all."""

from kinfed.metrics.communication import (
    QUESTIONS,
    count_bytes,
    count_unused,
    fedavg_parameters,
    flt_parameters,
    megabits_per_client,
    method_bytes,
    repa_parameters,
)
from kinfed.metrics.convergence import converged_at, find_convergence, is_stuck, rounds_to_target
from kinfed.metrics.drift_delays import DriftEvent, DriftLog, average_changed, average_delays, fits_cluster
from kinfed.metrics.dry_runs import (
    assign_look_alikes,
    bootstrap_error,
    collect_confusions,
    collect_signatures,
    divergences,
    drift_similarity,
    dry_run,
    originals_of,
    pearson,
    robustness,
)
from kinfed.metrics.found_clusters import (
    FoundClusters,
    agreement,
    belong_together,
    clustering_error,
    correlations,
    cosines,
    current_clusters,
    pair_quality,
    uniformity,
    uniformity_of_chance,
    uniformity_of_labels,
)
from kinfed.metrics.privacy_loss import spend_privacy
from kinfed.metrics.scores import (
    Scores,
    accuracy_of,
    mean_accuracy,
    measure_clients,
    sample_accuracy,
    score_clients,
    share_at_target,
    standard_error,
    summarise_scores,
    variance,
    worst_decile,
)

__all__ = [
    "QUESTIONS", "DriftEvent", "DriftLog", "FoundClusters", "Scores", "accuracy_of", "agreement", "assign_look_alikes",
    "average_changed", "average_delays", "belong_together", "bootstrap_error", "clustering_error",
    "collect_confusions", "collect_signatures", "converged_at", "correlations", "cosines", "count_bytes",
    "count_unused", "current_clusters", "divergences", "drift_similarity", "dry_run", "fedavg_parameters",
    "find_convergence", "fits_cluster", "flt_parameters", "is_stuck", "mean_accuracy", "measure_clients",
    "megabits_per_client", "method_bytes", "originals_of", "pair_quality", "pearson", "repa_parameters", "robustness",
    "rounds_to_target", "sample_accuracy", "score_clients", "share_at_target", "spend_privacy", "standard_error",
    "summarise_scores", "uniformity", "uniformity_of_chance", "uniformity_of_labels", "variance", "worst_decile",
]  # fmt: skip
