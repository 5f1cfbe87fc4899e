"""Tables of runs: the end of one, and several side by side, one row a method with the mean over its seeds."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from kinfed.experiment import Summary
from kinfed.progress import in_bytes, percent
from kinfed.quality import ACCURACY, MEASURED, Metric

NOTHING = "–"


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    method: str
    seed: int
    summary: Summary
    seconds: float
    metric: Metric = ACCURACY  # the main one


@dataclass(frozen=True)
class Column:
    """One column of the comparison."""

    title: str
    name: str  # in the CSV file
    value: Callable[[Outcome], float | None]
    shown: str = ".2f"
    always: bool = True  # False: left out of the table where no run has the number
    lower_is_better: bool = False
    is_shown: bool = True  # False: in the CSV file alone


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
    shown, low = ".2f" if unit else ".4g", metric.lower_is_better
    more = (
        Column(m.column, m.csv_column, of_summary(m.name, m.scale), ".2f", False, m.lower_is_better, False)
        for m in MEASURED.values()
        if m.name != name
    )
    return (
        Column(metric.column, metric.csv_column, of_summary(name, scale), shown, True, low),
        Column("variance", "variance", of_summary("variance")),
        Column(f"worst decile{unit}", f"worst_decile{percent}", of_summary("worst_decile", scale), shown, True, low),
        Column("at target %", "at_target_percent", of_summary("at_target", 100), ".1f"),
        Column("ARI", "ari", of_summary("ari")),
        Column("clusters", "clusters", of_summary("clusters"), ".3g"),
        Column(f"adapted{unit}", f"{name}_adapted{percent}", of_summary(f"{name}_adapted", scale), shown, False, low),
        Column(f"unseen{unit}", f"{name}_unseen{percent}", of_summary(f"{name}_unseen", scale), shown, False, low),
        Column(
            f"unseen adapted{unit}", f"{name}_unseen_adapted{percent}", of_summary(f"{name}_unseen_adapted", scale),
            shown, False, low,
        ),
        *more,
        Column("uniformity", "uniformity", of_summary("uniformity"), always=False),
        Column("robustness", "robustness", of_summary("robustness"), always=False),
        Column("label correlation", "correlation_labels", of_summary("correlation_labels"), always=False),
        Column("drift correlation", "correlation_drift", of_summary("correlation_drift"), always=False),
        Column("noticed after", "drift_delay", of_summary("drift_delay"), ".1f", False, True),
        Column("noticed %", "drift_delay_share_percent", of_summary("drift_delay_share", 100), ".1f", False),
        Column("recovered after", "drift_recovery", of_summary("drift_recovery"), ".1f", False, True),
        Column("recovered %", "drift_recovery_share_percent", of_summary("drift_recovery_share", 100), ".1f", False),
        Column("ε of a signature", "signature_epsilon", of_summary("signature_epsilon"), always=False),
        Column("ε of training", "training_epsilon", of_summary("training_epsilon"), always=False),
        Column("MB moved", "megabytes", megabytes_of, ".1f"),
        Column("seconds", "seconds", lambda outcome: outcome.seconds, ".1f"),
    )  # fmt: skip


COLUMNS = columns_of(ACCURACY)


def columns_for(outcomes: Sequence[Outcome]) -> tuple[Column, ...]:
    """The columns of these runs, by the main metric of the first; one with another has no number there."""
    return columns_of(outcomes[0].metric) if outcomes else COLUMNS


def comparison_table(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """The table to show: a header, then one row a method; mean ± standard deviation over several seeds."""
    columns = [column for column in columns_for(outcomes) if is_useful(column, outcomes)]
    header = ["method", *(column.title for column in columns)]
    return [header, *([m, *(format_cell(c, runs) for c in columns)] for m, runs in by_method(outcomes).items())]


def is_useful(column: Column, outcomes: Sequence[Outcome]) -> bool:
    """Whether a column is shown: not if it is empty, and uniformity not where ground-truth clusters say more."""
    if column.name == "uniformity" and any(outcome.summary.get("ari") is not None for outcome in outcomes):
        return False
    return column.is_shown and (column.always or has_number(column, outcomes))


def has_number(column: Column, outcomes: Sequence[Outcome]) -> bool:
    """Whether some run has a number for a column."""
    return any(column.value(outcome) is not None for outcome in outcomes)


def as_csv(outcomes: Sequence[Outcome]) -> str:
    """The same as CSV, in full precision: mean and spread of each column."""
    text = io.StringIO()
    writer, columns = csv.writer(text, lineterminator="\n"), columns_for(outcomes)
    writer.writerow(["method", "seeds", *(name for c in columns for name in (c.name, f"{c.name}_spread"))])
    for method, runs in by_method(outcomes).items():
        cells = [number for column in columns for number in mean_and_spread(column, runs)]
        writer.writerow([method, " ".join(str(run.seed) for run in runs), *cells])
    return text.getvalue()


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
    """Mean and sample standard deviation over the runs that have the number."""
    numbers = [number for run in runs if (number := column.value(run)) is not None]
    return mean(numbers) if numbers else None, stdev(numbers) if len(numbers) > 1 else None


def format_cell(column: Column, runs: Sequence[Outcome]) -> str:
    middle, spread = mean_and_spread(column, runs)
    if middle is None:
        return NOTHING
    return f"{middle:{column.shown}}" + ("" if spread is None else f" ± {spread:{column.shown}}")


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


def summary_table(summary: Summary, metric: Metric = ACCURACY) -> list[tuple[str, str]]:
    """The end of a run as a table."""
    rows = metric_rows(summary, metric)
    rows += [(title, format_number(summary[name])) for name, title in NUMBERS.items() if name in summary]
    unused = [name for name in summary if name.startswith("replies_")]
    rows += [(f"replies: {name[8:].replace('_', ' ')}", format_number(summary[name])) for name in unused]
    cost = [(title, in_bytes(summary[name] or 0)) for name, title in BYTES.items() if name in summary]
    return [("", "last round"), *rows, *cost]


def format_number(value: float | int | None) -> str:
    return NOTHING if value is None else f"{value:.2f}".rstrip("0").rstrip(".")
