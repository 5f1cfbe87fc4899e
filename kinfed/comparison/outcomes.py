"""How runs ended: columns of numbers, the CSV files of a comparison, and the table of one run."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, isfinite, log10
from statistics import mean, stdev

from kinfed.comparison.paired import NOBODY, Numbers
from kinfed.config import POPULATION, flatten
from kinfed.experiment import Summary
from kinfed.progress import in_bytes, percent
from kinfed.quality import ACCURACY, MEASURED, Metric
from kinfed.runs.logs import as_csv as rows_as_csv
from kinfed.runs.reader import Run

NOTHING = "–"
SIGNIFICANT = 4  # digits of numbers of any size
LEARNING = ("label_smoothing", "class_weights", "loss", "mean", "std", "metrics")  # of a task: no client's targets
HUGE = 1e12  # errors of models that diverged are written with an exponent


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    method: str
    seed: int
    summary: Summary
    seconds: float
    metric: Metric = ACCURACY  # the main one
    scores: Numbers = field(default_factory=lambda: NOBODY, compare=False)  # of the training clients; NaN: others
    population: str = ""  # runs with the same one and the same seed have the same clients
    settings: Mapping[str, object] = field(default_factory=dict)  # that differ between runs of a sweep
    own: tuple[str, ...] = ()  # the names of the metrics that the user added

    @classmethod
    def of(cls, run: Run, name: str = "", settings: Mapping[str, object] | None = None) -> "Outcome":
        """How a run ended, under this name or that of its method."""
        return cls(
            name or run.method, run.seed, run.summary, run.seconds, run.metric, run.scores_in_training,
            name_population(run), settings or {}, run.own_metrics,
        )  # fmt: skip


def name_population(run: Run) -> str:
    """All settings that a run's clients and their scores depend on, but for the seed and the folder of the data."""
    held = {name: run.config.get(name) for name in POPULATION}
    is_own = ":" in str(flatten(run.config).get("task.name"))  # any of its settings may change targets
    held |= {"data": drop_keys(held["data"], "dir"), "task": drop_keys(held["task"], *(() if is_own else LEARNING))}
    return json.dumps(held, sort_keys=True, default=str)


def drop_keys(section: object, *names: str) -> object:
    """A section of a config without these settings."""
    return {key: value for key, value in section.items() if key not in names} if isinstance(section, dict) else section


@dataclass(frozen=True)
class Column:
    """One column of the comparison."""

    title: str
    name: str  # in the CSV file
    value: Callable[[Outcome], float | None]
    decimals: int | None = 2  # 0: of whole means, else two; None: so many that the largest number has four digits
    always: bool = True  # False: left out of the table where no run has the number
    lower_is_better: bool = False
    is_shown: bool = True  # False: in the CSV file alone
    is_ranked: bool = True  # False: none is better than another
    is_main: bool = False  # the main metric, of which clients' scores are known

    def format(self, outcomes: Sequence[Outcome]) -> str:
        """How all numbers of these runs are written, means and spreads alike."""
        largest = max((abs(number) for run in outcomes if (number := self.value(run)) is not None), default=0.0)
        if largest >= HUGE:
            return f".{SIGNIFICANT - 1}e"
        if self.decimals == 0:
            means = (mean_and_spread(self, runs)[0] for runs in by_method(outcomes).values())
            return ".0f" if all(middle is None or middle == round(middle) for middle in means) else ".2f"
        if self.decimals is not None:
            return f".{self.decimals}f"
        return f".{max(0, SIGNIFICANT - 1 - floor(log10(largest)))}f" if largest > 0 else ".2f"


def of_summary(name: str, scale: float = 1.0) -> Callable[[Outcome], float | None]:
    """A number of a run's summary, scaled; none where the run has none."""

    def value(outcome: Outcome) -> float | None:
        number = outcome.summary.get(name)
        return None if number is None else scale * number

    return value


def megabytes_of(outcome: Outcome) -> float:
    """Megabytes that the method sent both ways."""
    return sum(outcome.summary[name] or 0 for name in ("bytes_down", "bytes_up")) / 1e6


def columns_of(metric: Metric) -> tuple[Column, ...]:
    """The columns of a comparison by this main metric."""
    name, scale, unit = metric.name, metric.scale, " %" if metric.unit == "%" else ""
    percent = "_percent" if unit else ""
    decimals, low = 2 if unit else None, metric.lower_is_better

    def alike(title: str, name: str, always: bool = False) -> Column:
        csv_name = f"{name}{percent}"
        return Column(f"{title}{unit}", csv_name, of_summary(name, scale), decimals, always, low)

    others = (m for m in MEASURED.values() if m.name != name)
    return (
        Column(metric.column, metric.csv_column, of_summary(name, scale), decimals, True, low, is_main=True),
        Column("variance", "variance", of_summary("variance"), lower_is_better=True),
        alike("worst decile", "worst_decile", always=True),
        Column("at target %", "at_target_percent", of_summary("at_target", 100), 1),
        Column("ARI", "ari", of_summary("ari")),
        Column("clusters", "clusters", of_summary("clusters"), 0, is_ranked=False),
        alike("adapted", f"{name}_adapted"),
        alike("unseen", f"{name}_unseen"),
        alike("unseen adapted", f"{name}_unseen_adapted"),
        *(Column(m.column, m.csv_column, of_summary(m.name, m.scale), 2, False, m.lower_is_better, False)
          for m in others),
        Column("uniformity", "uniformity", of_summary("uniformity"), always=False),
        Column("robustness", "robustness", of_summary("robustness"), always=False),
        Column("label correlation", "correlation_labels", of_summary("correlation_labels"), always=False),
        Column("drift correlation", "correlation_drift", of_summary("correlation_drift"), always=False),
        Column("noticed after", "drift_delay", of_summary("drift_delay"), 1, False, True),
        Column("noticed %", "drift_delay_share_percent", of_summary("drift_delay_share", 100), 1, False),
        Column("recovered after", "drift_recovery", of_summary("drift_recovery"), 1, False, True),
        Column("recovered %", "drift_recovery_share_percent", of_summary("drift_recovery_share", 100), 1, False),
        Column("ε of a signature", "signature_epsilon", of_summary("signature_epsilon"), 2, False, True),
        Column("ε of training", "training_epsilon", of_summary("training_epsilon"), 2, False, True),
        Column("MB moved", "megabytes", megabytes_of, 1, lower_is_better=True),
        Column("seconds", "seconds", lambda outcome: outcome.seconds, 1, is_ranked=False),
    )  # fmt: skip


COLUMNS = columns_of(ACCURACY)


def columns_for(outcomes: Sequence[Outcome]) -> tuple[Column, ...]:
    """The columns of these runs, by the main metric of the first; one with another has no number there."""
    if not outcomes:
        return COLUMNS
    own = dict.fromkeys(name for outcome in outcomes for name in outcome.own)
    added = (Column(as_title(name), name, of_summary(name), None, False, is_ranked=False) for name in own)
    return (*columns_of(outcomes[0].metric), *added)


def is_useful(column: Column, outcomes: Sequence[Outcome]) -> bool:
    """Whether a column is shown: not if it is empty, and uniformity not where ground-truth clusters say more."""
    if column.name == "uniformity" and any(outcome.summary.get("ari") is not None for outcome in outcomes):
        return False
    return column.is_shown and (column.always or has_number(column, outcomes))


def has_number(column: Column, outcomes: Sequence[Outcome]) -> bool:
    """Whether some run has a number for a column."""
    return any(column.value(outcome) is not None for outcome in outcomes)


def as_csv(outcomes: Sequence[Outcome]) -> str:
    """One row a method in full precision: mean and spread of each column."""
    columns = columns_for(outcomes)
    header = ["method", "seeds", *(name for c in columns for name in (c.name, f"{c.name}_spread"))]
    rows = []
    for method, runs in by_method(outcomes).items():
        cells = [number for column in columns for number in mean_and_spread(column, runs)]
        rows.append([method, " ".join(str(run.seed) for run in runs), *cells])
    return rows_as_csv([header, *rows])


def runs_as_csv(outcomes: Sequence[Outcome]) -> str:
    """One row a run: method, seed, settings that differ, all numbers of its summary, seconds."""
    keys = dict.fromkeys(key for outcome in outcomes for key in outcome.settings)
    settings = [key for key in keys if key != "method"]  # which has a column
    known = {"method", "seed", "seconds", *settings}
    names = [n for n in dict.fromkeys(n for outcome in outcomes for n in outcome.summary) if n not in known]
    rows = [
        [run.method, run.seed, *(as_cell(run.settings.get(key)) for key in settings), *map(run.summary.get, names),
         run.seconds]
        for run in outcomes
    ]  # fmt: skip
    return rows_as_csv([["method", "seed", *settings, *names, "seconds"], *rows])


def as_cell(value: object) -> str | int | float | None:
    """A setting as a cell of a CSV file."""
    return value if isinstance(value, int | float) or value is None else str(value)


def by_method(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    methods: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        methods.setdefault(outcome.method, []).append(outcome)
    return methods


def means_by_method(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float | None]]:
    """Method -> column -> mean over its seeds."""
    methods, columns = by_method(outcomes).items(), columns_for(outcomes)
    return {method: {c.name: mean_and_spread(c, runs)[0] for c in columns} for method, runs in methods}


def mean_and_spread(column: Column, runs: Sequence[Outcome]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation over the runs that have the number; infinity has no deviation."""
    numbers = [number for run in runs if (number := column.value(run)) is not None]
    has_spread = len(numbers) > 1 and all(map(isfinite, numbers))
    return mean(numbers) if numbers else None, stdev(numbers) if has_spread else None


def as_title(name: str) -> str:
    """The title of a metric that the user added."""
    return name.replace("_", " ")


def metric_rows(summary: Summary, metric: Metric) -> list[tuple[str, str]]:
    """The main metric, of all kinds of clients, and the other metrics of the task."""
    name = metric.name
    own = {name: metric.title, f"{name}_adapted": "after adaptation", f"{name}_unseen": "unseen clients",
           f"{name}_unseen_adapted": "unseen clients after adaptation", "worst_decile": "worst decile"}  # fmt: skip
    rows = [(title, metric.show(summary[name])) for name, title in own.items() if name in summary]
    rows += [("clients at target", percent(summary["at_target"]))] if "at_target" in summary else []
    return rows + [(m.title, m.show(summary[name])) for name, m in MEASURED.items() if name in summary.keys() - own]


NUMBERS = {
    "variance": "variance over clients", "ari": "ARI with ground-truth clusters", "clusters": "clusters found",
    "clustering_error": "clustering error", "uniformity": "uniformity of labels", "robustness": "robustness",
    "correlation_labels": "correlation with labels", "correlation_drift": "correlation with drift",
    "drift_delay": "rounds until a change is noticed", "drift_recovery": "rounds until clients recover",
    "rounds_to_target": "rounds to target", "converged_at": "converged at round",
    "rejected_replies": "rejected replies", "signature_epsilon": "ε of a signature, for a sample",
    "training_epsilon": "ε of training, for a client",
}  # fmt: skip
BYTES = {"bytes_down": "sent to clients", "bytes_up": "sent by clients"}


def summary_table(
    summary: Summary, metric: Metric = ACCURACY, own: Sequence[str] = ()
) -> list[tuple[str, str]]:  # fmt: skip
    """The end of a run as a table; `own` are the metrics that the user added."""
    rows = metric_rows(summary, metric)
    rows += [(as_title(name), Metric(name, "").show(summary[name])) for name in own if name in summary]
    rows += [(title, format_number(summary[name])) for name, title in NUMBERS.items() if name in summary]
    unused = [name for name in summary if name.startswith("replies_")]
    rows += [(f"replies: {name[8:].replace('_', ' ')}", format_number(summary[name])) for name in unused]
    cost = [(title, in_bytes(summary[name] or 0)) for name, title in BYTES.items() if name in summary]
    return [("", "last round"), *rows, *cost]


def format_number(value: float | int | None) -> str:
    return NOTHING if value is None else f"{value:.2f}".rstrip("0").rstrip(".")
