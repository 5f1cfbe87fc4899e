"""Metrics: their names, titles and directions, and how those of a whole test set are computed."""

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15  # of the calibration error


@dataclass(frozen=True)
class Metric:
    """A number of a run, how it is shown, and which direction is better."""

    name: str
    title: str
    scale: float = 1.0
    unit: str = ""
    lower_is_better: bool = False

    @property
    def column(self) -> str:
        """The title of a table's column."""
        return f"{self.title} {self.unit}".strip()

    @property
    def csv_column(self) -> str:
        """Its name where it is written as it is shown."""
        return f"{self.name}_percent" if self.unit == "%" else self.name

    def show(self, value: float | None) -> str:
        """A value in words."""
        if value is None:
            return "–"
        return f"{self.scale * value:.2f} %" if self.unit == "%" else f"{self.scale * value:.4g} {self.unit}".strip()

    def gain(self, value: float) -> float:
        """The value, turned round where lower is better: the larger, the better."""
        return -value if self.lower_is_better else value


ACCURACY = Metric("accuracy", "accuracy", 100, "%")
MAE = Metric("mae", "MAE", lower_is_better=True)
RMSE = Metric("rmse", "RMSE", lower_is_better=True)
PERPLEXITY = Metric("perplexity", "perplexity", lower_is_better=True)
LABEL_ACCURACY = Metric("label_accuracy", "label accuracy", 100, "%")
MEASURED = {  # those of built-in tasks
    metric.name: metric
    for metric in (
        ACCURACY, MAE, RMSE, PERPLEXITY, LABEL_ACCURACY,
        Metric("macro_f1", "macro-F1", 100, "%"), Metric("balanced_accuracy", "balanced accuracy", 100, "%"),
        Metric("auroc", "AUROC", 100, "%"), Metric("exact_match", "exact match", 100, "%"), Metric("r2", "R²"),
        Metric("calibration_error", "calibration error", 100, "%", lower_is_better=True),
    )
}  # fmt: skip


KINDS = ("val", "adapted", "unseen", "unseen_adapted", "holdout", "changed")  # of clients that a metric is the mean of
OF_RUNS = frozenset((  # other numbers of a run
    "method", "seed", "rounds", "seconds", "megabytes", "variance", "worst_decile", "at_target", "standard_error",
    "rounds_to_target", "bytes_to_target", "converged_at", "bytes_down", "bytes_up", "rejected_replies", "ari", "nmi",
    "purity", "clusters", "clustering_error", "clustering_accuracy", "clustering_error_mean",
    "clustering_accuracy_mean", "uniformity", "uniformity_random", "uniformity_labels", "robustness", "robustness_se",
    "correlation_labels", "correlation_labels_se", "correlation_drift", "correlation_drift_se", "drift_delay",
    "drift_delay_share", "drift_recovery", "drift_recovery_share", "signature_epsilon", "signature_delta",
    "training_epsilon", "training_delta",
))  # fmt: skip


def is_number_of_run(name: str) -> bool:
    """Whether a run has a number of this name that is no metric of a client."""
    return name in OF_RUNS or name.startswith(("replies_", "clients_"))


def count_confusions(output: Tensor, y: Tensor) -> Tensor:
    """How many samples of each class (row) are taken for each class (column): [classes, classes + 1], double.

    The last column counts outputs that are not finite, which stand for no class.
    """
    classes = output.shape[1]
    said = torch.where(torch.isfinite(output).all(1), output.argmax(1), classes)
    pairs = torch.bincount(y * (classes + 1) + said, minlength=classes * (classes + 1))
    return pairs.view(classes, classes + 1).double()


def area_under_curve(scores: Tensor, is_positive: Tensor) -> float | None:
    """The area under the ROC curve: how often a positive has the higher score; ties: half. None: one kind alone."""
    positive, negative = int(is_positive.sum()), int((~is_positive).sum())
    if not positive or not negative or not bool(torch.isfinite(scores).all()):
        return None
    ordered = scores.sort().values
    below, upto = (torch.searchsorted(ordered, scores.contiguous(), right=right) for right in (False, True))
    ranks = (below + upto + 1).double() / 2  # from 1, the mean over ties
    return float((ranks[is_positive].sum() - positive * (positive + 1) / 2) / (positive * negative))


def calibration_error(output: Tensor, y: Tensor, bins: int = BINS) -> Tensor:
    """The mean gap between confidence and accuracy, over bins of equal width weighted by their samples."""
    confidence, said = output.double().softmax(1).max(1)
    place = (confidence * bins).long().clamp(0, bins - 1)
    gap = torch.zeros(bins, dtype=torch.double, device=y.device).index_add(0, place, confidence - (said == y).double())
    return gap.abs().sum() / len(y)


def drop_undefined(found: dict[str, Tensor]) -> dict[str, float]:
    """Those that are finite numbers."""
    return {name: float(value) for name, value in found.items() if bool(torch.isfinite(value))}
