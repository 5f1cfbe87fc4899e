"""What the papers' tables report, read from finished runs, and the rule by which a measured number is judged.

A difference within the measure's own allowance agrees; one within twice the joint spread √(s² + s'²) of the published ±
and of our seeds lies within the spread; beyond it the number is better or worse. Another protocol than the published
one is not judged. docs/reproducing.md explains the rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import hypot, isnan
from statistics import mean, stdev

import numpy as np

from kinfed.config import Config, flatten
from kinfed.runs.reader import TRAINS, Run

CLUSTERED = ("flhc", "rounds_before")  # the setting that says after which round clients are clustered
ROUNDING = 1e-9
AGREES, WITHIN, BETTER, WORSE = "agrees", "within spread", "better", "worse"
INCOMPARABLE, OTHER = "cannot be compared", "other protocol"
Value = Callable[[Run, Config], float | None]  # of a run, in a cell of this config


@dataclass(frozen=True)
class Printed:
    """A number that a paper printed, and its ±."""

    value: float
    spread: float | None = None


@dataclass(frozen=True)
class Measure:
    """A number of a cell, and the rule by which a measured one is judged; docs/reproducing.md explains it."""

    title: str
    value: Value
    least: float  # a difference that is always forgiven, in the unit of the table
    share: float = 0.0  # or this share of the published number
    lower_is_better: bool = False
    over: str = ""  # divided by the same of this method on the same clients
    shown: str = ".2f"
    column: str = ""  # of rounds.csv that has it by round
    scale: float = 1.0  # of that column

    def of(self, run: Run, config: Config, reference: Run | None = None) -> float | None:
        """The number of a run; with `over` as a multiple of the reference's."""
        own = self.value(run, config)
        if not self.over or own is None:
            return own
        other = self.value(reference, config) if reference else None
        return own / other if other else None


@dataclass(frozen=True)
class Found:
    """One number of a cell: published, measured by each seed, and judged."""

    measure: Measure
    printed: Printed | None
    values: tuple[float, ...]
    reason: str = ""  # why it cannot be compared
    is_judged: bool = True  # whether it was measured by the published protocol

    @property
    def mean(self) -> float | None:
        return mean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over seeds."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured minus published."""
        return None if self.printed is None or self.mean is None else self.mean - self.printed.value

    @property
    def allowance(self) -> float:
        """A difference that is always forgiven."""
        return max(self.measure.least, self.measure.share * abs(self.printed.value if self.printed else 0.0))

    @property
    def joint_spread(self) -> float:
        """Of the published number and ours; a single seed is taken to spread as the published number does."""
        published = (self.printed.spread if self.printed else None) or 0.0
        return hypot(published, published if self.spread is None else self.spread)

    @property
    def tolerance(self) -> float | None:
        """How far they may lie apart and not differ."""
        return None if self.printed is None else max(self.allowance, 2 * self.joint_spread)

    @property
    def verdict(self) -> str:
        """agrees, within spread, better, worse, other protocol, cannot be compared; empty where a number is missing."""
        if self.difference is None or self.tolerance is None:
            return ""
        if self.reason:
            return INCOMPARABLE
        if not self.is_judged:
            return OTHER
        if abs(self.difference) <= self.allowance + ROUNDING:
            return AGREES
        if abs(self.difference) <= self.tolerance + ROUNDING:
            return WITHIN
        return BETTER if (self.difference < 0) == self.measure.lower_is_better else WORSE


def last(metric: str, scale: float = 1.0) -> Value:
    """The metric at the end of a run."""

    def value(run: Run, config: Config) -> float | None:
        found = run.summary.get(metric)
        return None if found is None else scale * float(found)

    return value


def accuracy_in_use(run: Run, config: Config) -> float | None:
    """The accuracy, in percent, of what clients use: after their own training where the config has them adapt."""
    return last("accuracy_adapted" if config.evaluation.adapt else "accuracy", 100)(run, config)


def sample_accuracy_in_use(run: Run, config: Config) -> float | None:
    """The same, where each test sample counts the same."""
    if not config.evaluation.adapt:
        return last("accuracy_val", 100)(run, config)
    scores, samples = run.clients["accuracy_adapted"], run.clients["test_samples"]
    counts = np.array([role in TRAINS for role in run.clients.text["role"]]) & ~np.isnan(scores)
    return 100 * float(np.average(scores[counts], weights=samples[counts])) if counts.any() else None


def accuracy_as_served(run: Run, config: Config) -> float | None:
    """The accuracy, in percent, before clients' own training, where the config has them adapt."""
    return last("accuracy", 100)(run, config) if config.evaluation.adapt else None


def after_clustering(metric: str, scale: float = 1.0, later: int = 1) -> Value:
    """The metric so many rounds after the clustering that the cell's config asks for."""
    method, setting = CLUSTERED

    def value(run: Run, config: Config) -> float | None:
        found = metric_after(run, int(str(config.settings_of(method)[setting])) + later, metric)
        return None if found is None else scale * found

    return value


def metric_after(run: Run, round: int, metric: str) -> float | None:
    """A metric after this round; None where it was not evaluated."""
    found = run.rounds[metric][run.rounds["round"] == round]
    return float(found[0]) if len(found) and not isnan(found[0]) else None


def place_of_target(run: Run, target: float) -> int | None:
    """The row of the first evaluated round whose mean accuracy is at least the target."""
    hits = np.flatnonzero(run.main >= target)
    return int(hits[0]) if len(hits) else None


def rounds_to_target(run: Run, config: Config) -> float | None:
    """The first evaluated round whose mean accuracy is at least the target."""
    place = place_of_target(run, config.evaluation.target)
    return None if place is None else float(run.rounds["round"][place])


def megabits_to_target(run: Run, config: Config) -> float | None:
    """Megabits that a client of all moves on average until the target is reached (FLIS)."""
    place = place_of_target(run, config.evaluation.target)
    if place is None:
        return None
    clients = int(str(flatten(config.resolve())["partition.clients"]))
    moved = run.rounds["bytes_down"][place] + run.rounds["bytes_up"][place]
    return float(moved) * 8 / 1e6 / clients


def megabytes_moved(run: Run, config: Config) -> float | None:
    """Megabytes down and up, of all clients and rounds; evaluation does not count."""
    down, up = (run.summary.get(f"bytes_{way}") for way in ("down", "up"))
    return None if down is None or up is None else (float(down) + float(up)) / 1e6


def best_of_rounds(metric: str, scale: float = 1.0) -> Value:
    """The metric in the evaluated round where it is largest: chosen on test samples, as some papers do."""

    def value(run: Run, config: Config) -> float | None:
        found = run.rounds[metric]
        return None if np.isnan(found).all() else scale * float(np.nanmax(found))

    return value


def deviation(run: Run, config: Config) -> float | None:
    """The standard deviation of accuracies over clients at the end, in percentage points."""
    found = run.summary.get("variance")
    return None if found is None else float(found) ** 0.5


def holdout_loss(run: Run, config: Config) -> float | None:
    """By how many points clients that never train are below those that do."""
    of_training, of_holdout = (run.summary.get(f"accuracy_{name}") for name in ("val", "holdout"))
    return None if of_training is None or of_holdout is None else 100 * (float(of_training) - float(of_holdout))


ACCURACY, PERCENT_OF_CLIENTS = 1.0, 5.0  # points
MEASURES = {
    "accuracy": Measure("accuracy %", accuracy_in_use, ACCURACY, column="accuracy", scale=100),
    "accuracy_served": Measure("as served %", accuracy_as_served, ACCURACY),
    "accuracy_best": Measure("best round %", best_of_rounds("accuracy_val", 100), ACCURACY),
    "accuracy_weighted": Measure("last round %", sample_accuracy_in_use, ACCURACY),
    "deviation": Measure("deviation", deviation, 2.0, share=0.25, lower_is_better=True),
    "variance": Measure("variance", last("variance"), 1.0, share=0.25, lower_is_better=True),
    "at_target": Measure(
        "% at target", last("at_target", 100), PERCENT_OF_CLIENTS, shown=".1f", column="at_target", scale=100
    ),
    "accuracy_after_clustering": Measure("accuracy % after clustering", after_clustering("accuracy", 100), ACCURACY),
    "at_target_after_clustering": Measure(
        "% at target after clustering", after_clustering("at_target", 100), PERCENT_OF_CLIENTS, shown=".1f"
    ),
    "accuracy_later": Measure("accuracy % ten rounds after", after_clustering("accuracy", 100, later=10), ACCURACY),
    "at_target_later": Measure(
        "% at target ten rounds after", after_clustering("at_target", 100, later=10), PERCENT_OF_CLIENTS, shown=".1f"
    ),
    "accuracy_times": Measure("accuracy × FL", last("accuracy"), 0.1, over="fedavg"),
    "at_target_times": Measure("% at target × FL", last("at_target"), 0.2, 0.25, over="fedavg", shown=".1f"),
    "accuracy_after_clustering_times": Measure(
        "accuracy × FL after clustering", after_clustering("accuracy"), 0.1, 0.1, over="fedavg"
    ),
    "at_target_after_clustering_times": Measure(
        "% at target × FL after clustering", after_clustering("at_target"), 0.2, 0.5, over="fedavg", shown=".1f"
    ),
    "unseen": Measure("unseen, as served %", last("accuracy_unseen", 100), ACCURACY),
    "unseen_adapted": Measure("unseen %", last("accuracy_unseen_adapted", 100), ACCURACY),
    "validation": Measure("VAL %", last("accuracy_val", 100), ACCURACY, column="accuracy_val", scale=100),
    "holdout": Measure("HO %", last("accuracy_holdout", 100), ACCURACY, column="accuracy_holdout", scale=100),
    "holdout_loss": Measure("VAL - HO", holdout_loss, ACCURACY, lower_is_better=True),
    "clusters": Measure("clusters", last("clusters"), 1, shown=".0f", column="clusters"),
    "ari": Measure("ARI", last("ari"), 0.05, column="ari"),
    "clustering_error": Measure(
        "clustering error", last("clustering_error"), 0.05, lower_is_better=True, column="clustering_error"
    ),
    "clustering_error_mean": Measure(
        "clustering error, mean over rounds", last("clustering_error_mean"), 0.05, lower_is_better=True
    ),
    "uniformity": Measure("uniformity", last("uniformity"), 0.05, column="uniformity"),
    "uniformity_random": Measure("uniformity of random clusters", last("uniformity_random"), 0.05),
    "uniformity_labels": Measure("uniformity of clustered labels", last("uniformity_labels"), 0.05),
    "correlation_labels": Measure(
        "correlation with label skew", last("correlation_labels"), 0.1, column="correlation_labels"
    ),
    "correlation_drift": Measure("correlation with drift", last("correlation_drift"), 0.1, column="correlation_drift"),
    "accuracy_changed": Measure(
        "changed clients %", last("accuracy_changed", 100), ACCURACY, column="accuracy_changed", scale=100
    ),
    "robustness": Measure("robustness", last("robustness"), 0.05),
    "rounds_to_target": Measure("rounds", rounds_to_target, 5, 0.25, lower_is_better=True, shown=".0f"),
    "megabytes": Measure("MB", megabytes_moved, 0.0, 0.001, lower_is_better=True, shown=".1f"),
    "megabits_to_target": Measure("Mb a client", megabits_to_target, 2.0, 0.25, lower_is_better=True),
}
