"""Methods side by side: one row a method, the best by paired intervals; the headline; and who wins over whom."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from kinfed.comparison.outcomes import (
    NOTHING,
    Column,
    Outcome,
    by_method,
    columns_for,
    is_useful,
    mean_and_spread,
)
from kinfed.comparison.paired import NOBODY, Interval, Measured, Pair, Wins
from kinfed.methods import title_of
from kinfed.progress import as_markdown
from kinfed.runs.logs import as_csv

TO_BEST = "to best (95 % CI)"
PAIRS = (
    "method", "other", "difference", "low", "high", "how", "seeds_better", "seeds_equal", "seeds_worse",
    "clients_better", "clients_equal", "clients_worse",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A number and how it is shown; without a number it is text, or nothing."""

    shown: str
    value: float | None = None
    spread: str = ""
    is_best: bool = False

    def __str__(self) -> str:
        return f"{self.shown} {self.spread}".strip()


@dataclass(frozen=True)
class Ranking:
    """The methods by one column, and how far each is behind the best of them."""

    column: Column
    outcomes: Sequence[Outcome]

    @property
    def measured(self) -> dict[str, list[Measured]]:
        """Method -> what its runs came to: the larger, the better."""
        sign = -1.0 if self.column.lower_is_better else 1.0
        found = {}
        for method, runs in by_method(self.outcomes).items():
            known = [(run, value) for run in runs if (value := self.column.value(run)) is not None]
            if known:
                found[method] = [Measured(run.population, run.seed, sign * v, self._scores(run)) for run, v in known]
        return found

    def _scores(self, run: Outcome) -> "np.typing.NDArray[np.float64]":
        return run.metric.gain(run.metric.scale) * run.scores if self.column.is_main else NOBODY

    def best(self) -> str:
        """The method with the best mean, unless another is ahead of it on common seeds; empty: there is none."""
        measured = self.measured
        ranked = sorted(measured, key=lambda name: -float(np.mean([run.value for run in measured[name]])))
        best = ranked[0] if ranked else ""
        for name in ranked[1:]:
            if Pair(measured[name], measured[best]).difference.mean > 0:
                best = name
        return best

    def behind(self) -> dict[str, Interval]:
        """Method -> how far it is ahead of the best, which is mostly below zero; without the best itself."""
        measured, best = self.measured, self.best()
        return {name: Pair(runs, measured[best]).difference for name, runs in measured.items() if name != best}

    def not_worse(self, shown: dict[str, str]) -> set[str]:
        """The best and those whose interval holds zero, or, without an interval, who are shown alike; none: all are."""
        best, behind = self.best(), self.behind()
        ties = {
            name
            for name, gap in behind.items()
            if (not gap.is_resolved if gap.is_known else shown[name] == shown[best])
        }
        return {best, *ties} if len(ties) < len(behind) else set()


def make_cells(outcomes: Sequence[Outcome], filled: bool = False) -> tuple[list[str], list[list[Cell]]]:
    """The header and one row a method: mean ± standard deviation over seeds, the best of each column marked.

    With `filled`, columns that no run has a number for are left out.
    """
    shown = [column for column in columns_for(outcomes) if is_useful(column, outcomes)]
    shown = [c for c in shown if not filled or any(c.value(run) is not None for run in outcomes)]
    methods = by_method(outcomes)
    columns: dict[str, dict[str, Cell]] = {}
    for column in shown:
        columns[column.title] = mark_best(column, outcomes)
        if column.is_main and len(methods) > 1:
            columns[TO_BEST] = gap_cells(column, outcomes)
    rows = [
        [Cell(title_of(method)), *(cells.get(method, Cell(NOTHING)) for cells in columns.values())]
        for method in methods
    ]
    return ["method", *columns], rows


def mark_best(column: Column, outcomes: Sequence[Outcome]) -> dict[str, Cell]:
    """Method -> its cell; the best marked, with those that are not worse by their paired intervals."""
    form = column.format(outcomes)
    cells = {method: make_cell(column, runs, form) for method, runs in by_method(outcomes).items()}
    known = {method: cell.shown for method, cell in cells.items() if cell.value is not None}
    if not column.is_ranked or len(set(known.values())) < 2:
        return cells
    best = Ranking(column, outcomes).not_worse(known)
    return {method: replace(cell, is_best=method in best) for method, cell in cells.items()}


def make_cell(column: Column, runs: Sequence[Outcome], form: str = "") -> Cell:
    """A mean over seeds, and its spread."""
    middle, spread = mean_and_spread(column, runs)
    form = form or column.format(runs)
    if middle is None:
        return Cell(NOTHING)
    return Cell(f"{middle:{form}}", middle, "" if spread is None else f"± {spread:{form}}")


def gap_cells(column: Column, outcomes: Sequence[Outcome]) -> dict[str, Cell]:
    """Method -> its difference to the best, and half of the paired interval's width."""
    form, sign = column.format(outcomes), -1.0 if column.lower_is_better else 1.0
    found = {}
    for method, gap in Ranking(column, outcomes).behind().items():
        width = f"± {gap.half_width:{form}}" if gap.is_known else ""
        found[method] = Cell(f"{sign * gap.mean:+{form}}", sign * gap.mean, width)
    return found


def comparison_table(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """The table to show: a header, then one row a method."""
    header, rows = make_cells(outcomes)
    return [header, *([str(cell) for cell in row] for row in rows)]


def markdown_table(outcomes: Sequence[Outcome]) -> str:
    """The same in Markdown, the best of each column in bold."""
    header, rows = make_cells(outcomes)
    return as_markdown([header, *([bold(cell) for cell in row] for row in rows)])


def bold(cell: Cell) -> str:
    return f"**{cell.shown}** {cell.spread}".strip() if cell.is_best else str(cell)


def headline(outcomes: Sequence[Outcome]) -> str:
    """Which method is best by the main metric, and by how much, in a sentence; empty for fewer than two methods."""
    column = columns_for(outcomes)[0]
    ranking, runs, form = Ranking(column, outcomes), by_method(outcomes), column.format(outcomes)
    best, behind = ranking.best(), ranking.behind()
    if not behind:
        return ""
    second = max(behind, key=lambda name: behind[name].mean)
    first, other = (make_cell(column, runs[name], form) for name in (best, second))
    unit = " %" if column.title.endswith("%") else f" {column.title}"
    gap = behind[second]
    apart = f"{abs(gap.mean):{form}}{' points' if unit == ' %' else ''}"
    if gap.is_known and not gap.is_resolved:
        both = f"{title_of(best)} at {first}{unit} and {title_of(second)} at {other}{unit}"
        return f"No method is clearly best: {both} differ by {apart} ({say_interval(gap, form)})."
    way = "below" if column.lower_is_better else "above"
    ahead = f"{apart} {way} {title_of(second)} ({say_interval(gap, form)})"
    return f"{title_of(best)} serves clients best: {first}{unit} on average, {ahead}."


def say_interval(gap: Interval, form: str) -> str:
    """How sure it is that the first is ahead by so much of one that is behind it."""
    if not gap.is_known:
        return gap.over or "one run each, so without an interval"
    return f"95 % CI {-gap.high:z{form}} to {-gap.low:z{form}}, {gap.over}"  # z: never -0.00


def pairs_of(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str, Pair]]:
    """All pairs of methods by the main metric."""
    measured = Ranking(columns_for(outcomes)[0], outcomes).measured
    for first, second in combinations(measured, 2):
        yield first, second, Pair(measured[first], measured[second])


def pairs_as_csv(outcomes: Sequence[Outcome]) -> str:
    """One row a pair of methods: difference and interval, positive where the first is better, and wins."""
    rows: list[list[str | float]] = []
    for first, second, pair in pairs_of(outcomes):
        gap, seeds, clients = pair.difference, Wins.of(pair.by_seed), Wins.of(pair.by_client)
        wins = [count for each in (seeds, clients) for count in (each.better, each.equal, each.worse)]
        rows.append([first, second, gap.mean, gap.low, gap.high, gap.over, *wins])
    return as_csv([PAIRS, *rows])


def win_matrix(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """For how many clients (ties count half) and in how many seeds the method of a row is better than a column's.

    A header, then one row a method; empty where no two methods share clients.
    """
    cells: dict[tuple[str, str], str] = {}
    for first, second, pair in pairs_of(outcomes):
        cells[first, second], cells[second, first] = show_wins(pair), show_wins(Pair(pair.second, pair.first))
    if not any(cells.values()):
        return []
    methods = list(by_method(outcomes))
    rows = ([title_of(row), *(cells.get((row, other), NOTHING) for other in methods)] for row in methods)
    return [["better than", *map(title_of, methods)], *rows]


def show_wins(pair: Pair) -> str:
    """Wins over clients and over seeds, in a cell; empty where the two share none."""
    clients, seeds = Wins.of(pair.by_client), Wins.of(pair.by_seed)
    count = len(pair.by_client)
    share = f"{100 * (clients.better + clients.equal / 2) / count:.0f} % of clients, " if count else ""
    return f"{share}{seeds.better} of {len(pair.by_seed)} seeds" if len(pair.by_seed) else ""
