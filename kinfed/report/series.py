"""Series: runs that differ only in the seed; their metrics over rounds and bytes, their accuracies over clients."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from kinfed.comparison import Outcome
from kinfed.config import flatten
from kinfed.config.toml import shorten_keys
from kinfed.errors import ConfigError
from kinfed.methods import title_of
from kinfed.quality import ACCURACY, Metric
from kinfed.registry import explain_unknown
from kinfed.runs.reader import TRAINS, Run, read_runs
from kinfed.runs.run_tables import Numbers, Whole

SAME = ("seed", "seeds", "compare", "checkpoint_every", "data.dir", "trackers", "evaluation.signatures")
SOME = ("engine.",)  # how it was computed, not what
WIDTHS = (1.0, 2.0, 2.5, 5.0)  # of a histogram's bins, in percentage points
MOST = 30  # bins
ENDLESS = 1e30  # a loss that is not finite is written as a larger number


LOSS = Metric("loss", "Test loss", lower_is_better=True)  # mean over the training clients; rounds.csv does not have it


@runtime_checkable
class OnDisk(Protocol):
    """What has a run's or a comparison's folder: a `Run`, or what `kinfed.run` and `kinfed.compare` give back."""

    @property
    def path(self) -> Path: ...


Place = OnDisk | Path | str


@dataclass(frozen=True)
class Series:
    """One method with one config, for one seed or several."""

    name: str
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        """The method as the field writes it."""
        return title_of(self.runs[0].method)

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def outcomes(self) -> list[Outcome]:
        """How its runs ended, under the series' name."""
        return [Outcome.of(run, self.name) for run in self.runs]


def gather(runs: Iterable[Place] | Place) -> list[Series]:
    """The runs (or their folders) by method and config, in the order in which methods came."""
    by_settings: dict[str, list[Run]] = {}
    for run in open_runs(runs):
        by_settings.setdefault(repr(sorted(settings_of(run).items())), []).append(run)
    together = [sorted(some, key=lambda run: run.seed) for some in by_settings.values()]
    return [Series(name, tuple(some)) for name, some in zip(name_series(together), together, strict=True)]


def open_runs(runs: Iterable[Place] | Place) -> list[Run]:
    """The runs at these places."""
    given = [runs] if isinstance(runs, OnDisk | Path | str) else runs
    return [run for one in given for run in ([one] if isinstance(one, Run) else read_runs([folder_of(one)]))]


def folder_of(place: Place) -> Path:
    """The folder of a run or a comparison."""
    return place.path if isinstance(place, OnDisk) else Path(place)


def settings_of(run: Run) -> dict[str, object]:
    """The settings that make a run what it is, by dotted key."""
    other = [f"methods.{name}." for name in _methods(run) if name != run.method]
    left_out = (*SOME, *other)
    return {key: v for key, v in flatten(run.config).items() if key not in SAME and not key.startswith(left_out)}


def name_series(together: Sequence[Sequence[Run]]) -> list[str]:
    """A name for each: the method, and what sets it apart from others of the same method."""
    methods = [some[0].method for some in together]
    settings = [settings_of(some[0]) for some in together]
    names = []
    for at, method in enumerate(methods):
        others = [settings[i] for i, name in enumerate(methods) if name == method]
        differing = sorted({key for other in others for key in settings[at] if other.get(key) != settings[at][key]})
        said = ", ".join(f"{short}={settings[at][key]}" for key, short in shorten_keys(differing[:3]).items())
        names.append(f"{title_of(method)} ({said})" if said else title_of(method))
    return [
        name if names.count(name) == 1 else f"{name} #{names[:at].count(name) + 1}" for at, name in enumerate(names)
    ]


def _methods(run: Run) -> list[str]:
    methods = run.config.get("methods", {})
    return list(methods) if isinstance(methods, dict) else []


def is_scored_on_training(series: Sequence[Series]) -> bool:
    """Whether clients are scored on training samples that they set apart, as in a sweep, and not on test samples."""
    data = series[0].runs[0].config.get("data", {}) if series else {}
    return isinstance(data, dict) and bool(data.get("selection"))


def change_rounds(run: Run) -> list[int]:
    """The rounds after which samples of clients changed, counted from 1, as far as the run went."""
    drift, change = (run.config.get(name) for name in ("drift", "change"))
    found = drift.get("change_rounds", []) if isinstance(drift, dict) else []
    found = [*found, change.get("round", 0)] if isinstance(change, dict) else list(found)
    return sorted({round for round in found if isinstance(round, int) and 0 < round < run.rounds["round"][-1]})


def main_metric(series: Sequence["Series"]) -> Metric:
    """The main metric of these series: that of the first."""
    return series[0].runs[0].metric if series and series[0].runs else ACCURACY


def metrics_by(main: Metric) -> tuple[Metric, ...]:
    """The columns of rounds.csv by this main metric, and how they are shown."""
    return (
        replace(main, title=f"Mean {main.title}"),
        replace(main, name="worst_decile", title="Worst decile"),
        Metric("at_target", "Clients at target", 100, "%"),
        Metric("variance", "Variance over clients", lower_is_better=True),
        LOSS,
        replace(main, name=f"{main.name}_adapted", title="After adaptation"),
        replace(main, name=f"{main.name}_unseen", title="Unseen clients"),
        replace(main, name=f"{main.name}_unseen_adapted", title="Unseen clients, adapted"),
        replace(main, name=f"{main.name}_changed", title="Clients whose samples changed"),
        Metric("ari", "ARI with ground-truth clusters"),
        Metric("clusters", "Clusters found"),
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


def metric_named(name: str, series: Sequence[Series] = ()) -> Metric:
    """The metric of this name; none: the main one."""
    main = main_metric(series)
    by_name = {"": metrics_by(main)[0]} | {metric.name: metric for metric in metrics_by(main)}
    if name not in by_name:
        raise ConfigError(explain_unknown(name, list(by_name)[1:], "metric"))
    return by_name[name]


def list_metrics(series: Sequence[Series]) -> list[Metric]:
    """The metrics that some run has."""
    return [metric for metric in metrics_by(main_metric(series)) if any(curves(series, metric))]


def curves(series: Sequence[Series], metric: Metric) -> list[Curve]:
    """The curve of each series that has the metric."""
    found = (curve_of(one, metric) for one in series)
    return [curve for curve in found if curve is not None]


def curve_of(series: Series, metric: Metric) -> Curve | None:
    """The mean over the rounds that all runs of the series evaluated; None where there are none."""
    by_run = [values_by_round(run, metric) for run in series.runs]
    common = sorted(set.intersection(*(set(values) for values in by_run)))
    if not common:
        return None
    values = metric.scale * np.array([[values[round] for round in common] for values in by_run])
    mean = values.mean(0)
    spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    moved = np.mean([megabytes_at(run, common) for run in series.runs], axis=0)
    return Curve(series.name, len(values), np.array(common, float), moved, mean, mean - spread, mean + spread)


def values_by_round(run: Run, metric: Metric) -> dict[int, float]:
    """Round -> value, where it was measured."""
    if metric == LOSS:
        return losses_by_round(run)
    if metric.name not in run.rounds.numbers:
        return {}
    pairs = zip(run.rounds["round"], run.rounds[metric.name], strict=True)
    return {int(round): float(value) for round, value in pairs if not np.isnan(value)}


def losses_by_round(run: Run) -> dict[int, float]:
    """Round -> mean loss of the training clients, where it was finite."""
    history = run.history
    trains = np.array([role in TRAINS for role in run.roles] + [False] * (history.losses.shape[1] - run.count), bool)
    losses = history.losses[:, trains]
    means = np.where(np.isnan(losses), 0, losses).sum(1) / np.maximum(1, (~np.isnan(losses)).sum(1))
    known = (~np.isnan(losses)).any(1) & (means < ENDLESS) if trains.any() else np.zeros(len(losses), bool)
    return {
        int(round): float(mean) for round, mean, is_known in zip(history.rounds, means, known, strict=True) if is_known
    }


def megabytes_at(run: Run, rounds: Sequence[int]) -> Numbers:
    """Megabytes both ways until each of these rounds."""
    moved = (run.rounds["bytes_down"] + run.rounds["bytes_up"]) / 1e6
    found: Numbers = moved[np.searchsorted(run.rounds["round"], rounds)]
    return found


@dataclass(frozen=True)
class Spread:
    """Accuracies in percent, or the main metric, of the training clients of all runs of a series, as a histogram."""

    name: str
    edges: Numbers  # of the bins; the same for all series
    counts: Whole
    mean: float  # over seeds
    worst_decile: float  # mean of the tenth that fares worst; over seeds


def spreads(series: Sequence[Series]) -> list[Spread]:
    """The spread of each series, in common bins; scores that are not finite have no bin."""
    metric = main_metric(series)
    scored = [(one.name, [metric.scale * run.training_scores for run in one.runs]) for one in series]
    scored = [(name, [values[np.isfinite(values)] for values in runs]) for name, runs in scored]
    scored = [(name, some) for name, runs in scored if (some := [values for values in runs if len(values)])]
    if not scored:
        return []
    low, high = (f(float(f(values)) for _, runs in scored for values in runs) for f in (min, max))
    edges = bins(low) if metric.unit == "%" else np.linspace(low, high if high > low else low + 1, MOST + 1)
    return [spread_of(name, runs, edges, metric.lower_is_better) for name, runs in scored]


def spread_of(name: str, runs: Sequence[Numbers], edges: Numbers, lower_is_better: bool = False) -> Spread:
    """The spread of the scores of these runs."""
    sign = -1 if lower_is_better else 1
    worst = [sign * np.sort(sign * values)[: max(1, len(values) // 10)].mean() for values in runs]
    counts = np.histogram(np.concatenate(runs), edges)[0].astype(np.int64)
    return Spread(name, edges, counts, float(np.mean([values.mean() for values in runs])), float(np.mean(worst)))


def bins(lowest: float) -> Numbers:
    """Edges from a round number below the lowest accuracy up to 100 percent, not too many."""
    width = next((w for w in WIDTHS if (100 - lowest) / w <= MOST), WIDTHS[-1])
    first = max(0.0, 100 - width * max(4, int(np.ceil((100 - lowest) / width - 1e-9))))
    return np.arange(first, 100 + width / 2, width)
