"""Metrics over rounds, or over the bytes that were moved, with a band over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfed.errors import ConfigError
from kinfed.registry import explain_unknown
from kinfed.report.series import Series
from kinfed.runs.reader import Numbers, Run


@dataclass(frozen=True)
class Metric:
    """A column of rounds.csv and how it is shown."""

    name: str
    title: str
    scale: float = 1.0
    unit: str = ""


METRICS = (
    Metric("accuracy", "Mean accuracy", 100, "%"),
    Metric("worst_decile", "Worst decile", 100, "%"),
    Metric("at_target", "Clients at target", 100, "%"),
    Metric("variance", "Variance over clients"),
    Metric("accuracy_adapted", "After adaptation", 100, "%"),
    Metric("accuracy_unseen", "Unseen clients", 100, "%"),
    Metric("accuracy_unseen_adapted", "Unseen, adapted", 100, "%"),
    Metric("ari", "ARI with planted groups"),
    Metric("clusters", "Groups found"),
    Metric("clustering_error", "Clustering error"),
    Metric("uniformity", "Uniformity of labels"),
    Metric("correlation_labels", "Correlation with labels"),
    Metric("correlation_drift", "Correlation with drift"),
)


@dataclass(frozen=True)
class Curve:
    """One series: the mean over its seeds and one standard deviation to either side."""

    name: str
    seeds: int
    rounds: Numbers
    megabytes: Numbers  # moved until then, both ways
    mean: Numbers
    low: Numbers
    high: Numbers


def metric_named(name: str) -> Metric:
    """The metric of this name."""
    by_name = {metric.name: metric for metric in METRICS}
    if name not in by_name:
        raise ConfigError(explain_unknown(name, by_name, "metric"))
    return by_name[name]


def shown_metrics(series: Sequence[Series]) -> list[Metric]:
    """The metrics that some run has."""
    return [metric for metric in METRICS if any(curves(series, metric))]


def curves(series: Sequence[Series], metric: Metric) -> list[Curve]:
    """The curve of each series that has the metric."""
    found = (curve_of(one, metric) for one in series)
    return [curve for curve in found if curve is not None]


def curve_of(series: Series, metric: Metric) -> Curve | None:
    """The mean over the rounds that all runs of the series evaluated; None where there are none."""
    measured = [measured_rounds(run, metric) for run in series.runs]
    common = sorted(set.intersection(*(set(values) for values in measured)))
    if not common:
        return None
    values = metric.scale * np.array([[values[round] for round in common] for values in measured])
    mean = values.mean(0)
    spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    moved = np.mean([megabytes_at(run, common) for run in series.runs], axis=0)
    return Curve(series.name, len(values), np.array(common, float), moved, mean, mean - spread, mean + spread)


def measured_rounds(run: Run, metric: Metric) -> dict[int, float]:
    """Round -> value, where it was measured."""
    if metric.name not in run.rounds.numbers:
        return {}
    pairs = zip(run.rounds["round"], run.rounds[metric.name], strict=True)
    return {int(round): float(value) for round, value in pairs if not np.isnan(value)}


def megabytes_at(run: Run, rounds: Sequence[int]) -> Numbers:
    """Megabytes both ways until each of these rounds."""
    moved = (run.rounds["bytes_down"] + run.rounds["bytes_up"]) / 1e6
    found: Numbers = moved[np.searchsorted(run.rounds["round"], rounds)]
    return found
