"""Metrics: accuracy and fairness over clients, quality of groups, communication."""

from kinfed.metrics.clients import (
    accuracy_of,
    converged_at,
    mean_accuracy,
    rounds_to_target,
    share_at_target,
    standard_error,
    variance,
    worst_decile,
)
from kinfed.metrics.communication import (
    QUESTIONS,
    fedavg_parameters,
    flt_parameters,
    megabits_per_client,
    method_bytes,
    repa_parameters,
)
from kinfed.metrics.groups import agreement, pair_quality, purity

__all__ = [
    "QUESTIONS", "accuracy_of", "agreement", "converged_at", "fedavg_parameters", "flt_parameters", "mean_accuracy",
    "megabits_per_client", "method_bytes", "pair_quality", "purity", "repa_parameters", "rounds_to_target",
    "share_at_target", "standard_error", "variance", "worst_decile",
]  # fmt: skip
