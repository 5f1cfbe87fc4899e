"""Outcomes of recipes: every cell's numbers beside the published ones, whether claims hold, and all that as tables."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan, nan
from statistics import mean

from kinfed.config import Config
from kinfed.progress import as_markdown as in_markdown
from kinfed.recipes.cells import Cell
from kinfed.recipes.costs import COSTS, find_target, measure_costs, show_costs
from kinfed.recipes.measures import INCOMPARABLE, MEASURES, OTHER, Found, Measure, Printed
from kinfed.recipes.recipe import Claim, Column, Recipe
from kinfed.recipes.rules import RULES, Points, Shape
from kinfed.runs.reader import Run

Runs = Callable[[Config], Run | None]  # the run of a config, if it ended
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "not run"
Rows = list[list[str]]
NOTHING = "–"
MOST = 11  # steps along an axis that a table shows
FEW = 3  # rows at least of which a common offset is said
NOT_JUDGED = "Not the published protocol: differences are shown, not judged."
QUICK = "quick version: small and short, its numbers mean nothing and are not judged"


Numbers = Mapping[str, float]  # of one run, by measure; SECONDS too
SECONDS = "seconds"
AT_ROUND = "@"  # between a measure and a round
ROUND = "round"  # the axis of rounds
EVERY = ""  # the column of a claim that is about several at once


@dataclass(frozen=True)
class Result:
    """One cell: its numbers, or why there are none."""

    cell: Cell
    found: tuple[Found, ...]
    numbers: Mapping[int, Numbers] = field(default_factory=dict)  # by seed
    runs: tuple[Run, ...] = ()  # none where the numbers were kept
    state: str = ""  # why there are no numbers

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.numbers)

    @property
    def seconds(self) -> float:
        """How long a run took, on average; 0 where that was not kept."""
        return mean_of(self.numbers, SECONDS, 0.0)


@dataclass(frozen=True)
class Outcome:
    """All cells of a recipe."""

    recipe: Recipe
    results: tuple[Result, ...]
    quick: bool = False

    def claims(self) -> Iterator[tuple[Claim, str, str, str]]:
        """Each claim in each column, and protocol that its rows run under: (claim, column, protocol, holds or not)."""
        for claim in self.recipe.claims:
            columns = claim.columns or tuple(self.recipe.columns)
            at_once = claim.over_columns or self.is_along_columns
            for some in [columns] if at_once else [(column,) for column in columns]:
                for protocol in protocols_of(claim, self.recipe):
                    yield claim, EVERY if at_once else some[0], protocol, self.judge(claim, some, protocol)

    @property
    def is_along_columns(self) -> bool:
        """Whether it is a figure whose axis the columns are."""
        return self.recipe.figure is not None and self.recipe.figure.x != ROUND

    def judge(self, claim: Claim, columns: Sequence[str], protocol: str) -> str:
        """Whether a claim holds in these columns."""
        measure = claim.measure or self.recipe.main
        rows = {row: self.points(row, columns, protocol, measure, claim.over_columns) for row in self.recipe.rows}
        known = {row: points for row, points in rows.items() if points}
        under = claim.than_protocol or protocol, claim.than_measure or measure
        than = self.points(claim.than, columns, *under, claim.over_columns) if claim.than else ()
        if claim.better not in known or (claim.than and not than):
            return UNKNOWN
        shape = Shape(known[claim.better], than, known, claim.by, claim.between)
        return HOLDS if RULES[claim.rule](shape) else FAILS

    def points(self, row: str, columns: Sequence[str], protocol: str, measure: str, mean_only: bool = False) -> Points:
        """A row's numbers as points: over rounds, over the columns of an axis, or one, of a column or of their mean."""
        found = {name: result for name in columns if (result := self.result(row, name, protocol)) and result.numbers}
        if self.recipe.figure and not self.is_along_columns:
            return [point for result in found.values() for point in curve_of(result, measure)]
        values = {name: mean_of(result.numbers, measure, nan) for name, result in found.items()}
        known = {name: value for name, value in values.items() if not isnan(value)}
        if mean_only:
            return [(0.0, mean(known.values()))] if len(known) == len(columns) else []
        return sorted((self.recipe.columns[name].x or 0.0, value) for name, value in known.items())

    def result(self, row: str, column: str, protocol: str) -> Result | None:
        """The result of a cell."""
        for result in self.results:
            cell = result.cell
            if (cell.row.name, cell.column.name) == (row, column) and protocol in cell.protocols:
                return result
        return None


def protocols_of(claim: Claim, recipe: Recipe) -> list[str]:
    """The protocols that a claim speaks of and that its rows run under."""
    better, than = recipe.rows[claim.better].under, recipe.rows[claim.than or claim.better].under
    asked = claim.protocols or tuple(recipe.protocols)
    return [name for name in asked if name in better and (claim.than_protocol or name) in than]


def result_of(recipe: Recipe, cell: Cell, seeds: Sequence[int], runs: Runs, state: str) -> Result:
    """The numbers of a cell from those of its runs that ended; of a sweep the variant with the best main number.

    A cell that is a mean has the seeds of which all variants ended.
    """
    tried = [read_numbers(recipe, cell, variant, seeds, runs) for variant in cell.variants]
    if not all(tried):
        return Result(cell, (), state=state or "not run")
    if cell.is_mean:
        numbers = average_variants(tried)
        if not numbers:
            return Result(cell, (), state=state or "not run")
        all_runs = tuple(run for config in cell.configs(list(numbers)) if (run := runs(config)))
        return replace(judge_numbers(recipe, cell, numbers), runs=all_runs)
    sign = -1 if MEASURES[recipe.main].lower_is_better else 1
    best = max(range(len(tried)), key=lambda at: sign * mean_of(tried[at], recipe.main, -sign * inf))
    ended = [run for seed in tried[best] if (run := runs(replace(cell.variants[best], seed=seed)))]
    return replace(judge_numbers(recipe, cell, tried[best]), runs=tuple(ended))


def average_variants(tried: Sequence[Mapping[int, Numbers]]) -> dict[int, Numbers]:
    """By seed the means over variants; a measure that only some variants have is the mean over those."""
    seeds = [seed for seed in tried[0] if all(seed in numbers for numbers in tried)]
    names = {name: None for numbers in tried for of_seed in numbers.values() for name in of_seed}
    return {
        seed: {
            name: mean(numbers[seed][name] for numbers in tried if name in numbers[seed])
            for name in names
            if any(name in numbers[seed] for numbers in tried)
        }
        for seed in seeds
    }


def judge_numbers(recipe: Recipe, cell: Cell, numbers: Mapping[int, Numbers]) -> Result:
    """A cell with these numbers beside the published ones."""
    printed = cell.printed or (None,) * len(recipe.measures)
    found = tuple(
        Found(MEASURES[name], p, values_of(numbers, name), cell.incomparable, cell.is_judged)
        for name, p in zip(recipe.measures, printed, strict=True)
    )
    return Result(cell, found, numbers)


def read_numbers(recipe: Recipe, cell: Cell, config: Config, seeds: Sequence[int], runs: Runs) -> dict[int, Numbers]:
    """What the runs of a config that ended have of each measure, by seed."""
    found: dict[int, Numbers] = {}
    for mine in (replace(config, seed=seed) for seed in seeds):
        if run := runs(mine):
            values = {
                name: MEASURES[name].of(run, mine, runs(reference(mine, MEASURES[name]))) for name in recipe.measures
            }
            known = {name: value for name, value in values.items() if value is not None}
            curves = read_curves(recipe, run) if recipe.figure and recipe.figure.x == ROUND else {}
            found[mine.seed] = {**known, **curves, **measure_costs(recipe, cell, run, mine), SECONDS: run.seconds}
    return found


def read_curves(recipe: Recipe, run: Run) -> Numbers:
    """Each measure that has a column by round, by round."""
    curved = [(name, column) for name in recipe.measures if (column := MEASURES[name].column)]
    return {
        f"{name}{AT_ROUND}{at:.0f}": MEASURES[name].scale * float(value)
        for name, column in curved
        for at, value in zip(run.rounds["round"], run.rounds.numbers.get(column, ()), strict=False)
        if not isnan(value)
    }


def curve_of(result: Result, measure: str) -> Points:
    """A measure over the rounds that all seeds have, as the mean over seeds."""
    begin = f"{measure}{AT_ROUND}"
    names = [name for name in next(iter(result.numbers.values())) if name.startswith(begin)]
    shared = [name for name in names if all(name in numbers for numbers in result.numbers.values())]
    return sorted((float(name.removeprefix(begin)), mean_of(result.numbers, name, nan)) for name in shared)


def values_of(numbers: Mapping[int, Numbers], name: str) -> tuple[float, ...]:
    """A measure over the seeds that have it."""
    return tuple(of_seed[name] for of_seed in numbers.values() if name in of_seed)


def mean_of(numbers: Mapping[int, Numbers], name: str, default: float) -> float:
    """The mean of a measure over seeds."""
    values = values_of(numbers, name)
    return mean(values) if values else default


def reference(config: Config, measure: Measure) -> Config:
    """The run that a measure divides by: the same clients and training, another method with its defaults."""
    return replace(config, method=measure.over or config.method, methods={} if measure.over else config.methods)


def references(recipe: Recipe, config: Config) -> Iterator[Config]:
    """All runs that a run's numbers are divided by."""
    others = {MEASURES[name].over: MEASURES[name] for name in recipe.measures if MEASURES[name].over}
    return (reference(config, measure) for measure in others.values())


def make_tables(outcome: Outcome) -> Iterator[tuple[Column, Rows]]:
    """For each column of the paper's table one of ours: rows by protocol, a cell for each measure."""
    notes = number_reasons(outcome)
    for column in outcome.recipe.columns.values():
        results = [result for result in outcome.results if result.cell.column == column]
        if any(not result.cell.missing for result in results):
            titles = [MEASURES[name].title for name in outcome.recipe.measures]
            rows = [make_row(result, outcome, notes) for result in results]
            yield column, [["", "protocol", *titles, "seeds", "s"], *rows]


def caption_tables(outcome: Outcome) -> Iterator[tuple[str, Rows]]:
    """The tables of an outcome, each with what it shows."""
    if outcome.recipe.figure and outcome.recipe.figure.kind == "lines":
        yield from line_tables(outcome)
    else:
        for column, rows in make_tables(outcome):
            yield f"{column.title}: published → measured (difference) verdict", rows
        yield from cost_tables(outcome)


def cost_tables(outcome: Outcome) -> Iterator[tuple[str, Rows]]:
    """For each column what every row costs until it has the recipe's target, where that was measured."""
    for column in outcome.recipe.columns.values():
        results = [r for r in outcome.results if r.cell.column == column and values_of(r.numbers, next(iter(COSTS)))]
        target = find_target(outcome.recipe, column.name)
        if results and target is not None and not outcome.quick:
            rows = [[r.cell.row.title, " = ".join(r.cell.protocols), *show_costs(mean_costs(r))] for r in results]
            yield (
                f"{column.title}: cost to {target:g} %, what is published for "
                f"{outcome.recipe.rows[outcome.recipe.target].title} less one point",
                [["", "protocol", *(title for title, _ in COSTS.values())], *rows],
            )


def mean_costs(result: Result) -> dict[str, float]:
    """The costs of a cell, as means over seeds."""
    return {name: mean_of(result.numbers, name, inf) for name in COSTS if values_of(result.numbers, name)}


def line_tables(outcome: Outcome) -> Iterator[tuple[str, Rows]]:
    """The numbers of a figure's lines, for each measure: over the columns, or over rounds for each column."""
    names = list(outcome.recipe.columns)
    groups = [names] if outcome.is_along_columns else [[name] for name in names]
    for measure in outcome.recipe.measures:
        for group in groups:
            lines = {
                (row.title, protocol): points
                for name, row in outcome.recipe.rows.items()
                for protocol in row.under
                if (points := outcome.points(name, group, protocol, measure))
            }
            if lines:
                where = "" if outcome.is_along_columns else f"{outcome.recipe.columns[group[0]].title}: "
                yield f"{where}{MEASURES[measure].title}", line_rows(outcome, lines, MEASURES[measure].shown)


def line_rows(outcome: Outcome, lines: Mapping[tuple[str, str], Points], style: str) -> Rows:
    """A header of places on the axis, and a row for each line; of many rounds a dozen at most."""
    every = sorted({x for points in lines.values() for x, _ in points})
    step = -(-(len(every) - 1) // MOST) or 1
    places = sorted({*every[::step], every[-1]})
    axis = outcome.recipe.figure.x if outcome.recipe.figure else ""
    rows = []
    for (title, protocol), points in lines.items():
        at = dict(points)
        rows.append([title, protocol, *(f"{at[x]:{style}}" if x in at else NOTHING for x in places)])
    return [[axis, "protocol", *(f"{x:g}" for x in places)], *rows]


def make_row(result: Result, outcome: Outcome, notes: Sequence[str]) -> list[str]:
    """One row of a shown table."""
    cell = result.cell
    marks = "".join(f" [{notes.index(note) + 1}]" for note in (*cell.remarks, cell.incomparable) if note)
    head = [cell.row.title + marks, " = ".join(cell.protocols)]
    width = len(outcome.recipe.measures)
    if not result.found:
        printed = cell.printed or (None,) * width
        states = [result.state, *[NOTHING] * (width - 1)]
        numbers = [f"{as_printed(n)} → {state}" if n else state for n, state in zip(printed, states, strict=True)]
        return [*head, *numbers, NOTHING, NOTHING]
    shown = (show_number(found, outcome.quick) for found in result.found)
    return [*head, *shown, str(len(result.seeds)), f"{result.seconds:.0f}" if result.seconds else NOTHING]


def show_number(found: Found, quick: bool = False) -> str:
    """published → measured (difference) verdict."""
    style = found.measure.shown
    if found.mean is None:
        return f"{as_printed(found.printed)} → {NOTHING}"
    measured = f"{found.mean:{style}}" + ("" if found.spread is None else f" ± {found.spread:{style}}")
    if found.printed is None:
        return measured
    judged = {INCOMPARABLE: " n/c", OTHER: ""}.get(found.verdict, f" {found.verdict}")
    return f"{as_printed(found.printed)} → {measured} ({found.difference:+{style}}){'' if quick else judged}"


def as_printed(number: Printed | None) -> str:
    """A published number as the paper has it."""
    if number is None:
        return NOTHING
    return f"{number.value:g}" + ("" if number.spread is None else f" ± {number.spread:g}")


def number_reasons(outcome: Outcome) -> list[str]:
    """Why cells cannot be compared, and remarks, each once: note n of the tables is the n-th."""
    found = [note for r in outcome.results for note in (*r.cell.remarks, r.cell.incomparable) if note]
    return list(dict.fromkeys(found))


def explain_absence(outcome: Outcome) -> list[str]:
    """A line for each column that could not be run at all, since its data are not here."""
    lines = []
    for column in outcome.recipe.columns.values():
        cells = [result.cell for result in outcome.results if result.cell.column == column]
        missing = dict.fromkeys(name for cell in cells for name in cell.missing)
        if cells and all(cell.missing for cell in cells):
            rows = len({cell.row.name for cell in cells})
            lines.append(f"{column.title}: data not here ({', '.join(missing)}); {rows} rows were left out.")
    return lines


def find_offsets(outcome: Outcome) -> list[str]:
    """A line for each column and protocol whose judged rows all lie on one side of the published ones."""
    lines = []
    main = outcome.recipe.measures.index(outcome.recipe.main)
    for column in outcome.recipe.columns.values():
        for name in outcome.recipe.protocols:
            results = [r for r in outcome.results if r.cell.column == column and name in r.cell.protocols and r.found]
            judged = [r.found[main] for r in results if r.found[main].verdict not in ("", INCOMPARABLE, OTHER)]
            apart = [found.difference or 0.0 for found in judged]
            if len(apart) >= FEW and (min(apart) > 0 or max(apart) < 0) and abs(mean(apart)) > judged[0].allowance:
                side = "above" if apart[0] > 0 else "below"
                lines.append(
                    f"A common offset ({column.title}, {name}): all {len(apart)} judged rows are {side} the published "
                    f"ones, by {abs(mean(apart)):{judged[0].measure.shown}} on average."
                )
    return [] if outcome.quick else lines


def claim_rows(outcome: Outcome) -> Rows:
    """The claims that could be looked at: a header, then one row each."""
    if outcome.quick:
        return []
    lines = [
        [claim.says, outcome.recipe.columns[column].title if column else "all", protocol, verdict]
        for claim, column, protocol, verdict in outcome.claims()
        if verdict != UNKNOWN or outcome.recipe.figure
    ]
    return [["claim", "column", "protocol", ""], *lines] if lines else []


def notes_of(outcome: Outcome) -> list[str]:
    """Lines that explain the tables: protocols, the numbered reasons, and what else there is to know."""
    recipe = outcome.recipe
    said = [
        f"{name}: {protocol.says}." + ("" if protocol.judged or outcome.quick else f" {NOT_JUDGED}")
        for name, protocol in recipe.protocols.items()
    ]
    numbered = [f"[{i}] {reason}." for i, reason in enumerate(number_reasons(outcome), 1)]
    return [*([QUICK] if outcome.quick else []), *said, *numbered, *recipe.notes]


def as_markdown(outcome: Outcome) -> str:
    """The whole outcome as a piece of a page."""
    parts = [f"**{outcome.recipe.title}** ({outcome.recipe.paper})"]
    if figure := outcome.recipe.figure:
        parts.append(f"The paper's figure: {figure.shows}.")
    if not any(result.found for result in outcome.results):
        checks = [f"- {says}: not run" for says in dict.fromkeys(claim.says for claim in outcome.recipe.claims)]
        return "\n\n".join([*parts, "Not run yet.", *(["\n".join(checks)] if figure and checks else [])]) + "\n"
    for caption, rows in caption_tables(outcome):
        parts += [caption, in_markdown(rows)]
    if claims := claim_rows(outcome):
        parts.append(in_markdown(claims))
    notes = (*explain_absence(outcome), *find_offsets(outcome), *notes_of(outcome))
    parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


FLAT = (
    "table", "row", "column", "protocol", "measure", "published", "published_spread", "measured", "spread",
    "difference", "tolerance", "verdict", "reason", "seeds", "seconds",
)  # fmt: skip


def flatten(outcome: Outcome) -> Iterator[dict[str, object]]:
    """One line for each number under each protocol, in full precision."""
    for result in outcome.results:
        cell = result.cell
        printed = cell.printed or (None,) * len(outcome.recipe.measures)
        for i, name in enumerate(outcome.recipe.measures):
            found = (
                result.found[i]
                if result.found
                else Found(MEASURES[name], printed[i], (), cell.incomparable, cell.is_judged)
            )
            number = found.printed or Printed(float("nan"))
            values = (
                found.printed and number.value, number.spread, found.mean, found.spread, found.difference,
                found.tolerance, "" if outcome.quick else found.verdict, cell.incomparable or result.state,
            )  # fmt: skip
            for protocol in cell.protocols:
                head = (outcome.recipe.name, cell.row.name, cell.column.name, protocol, name)
                yield dict(zip(FLAT, (*head, *values, len(result.seeds), result.seconds), strict=True))


def as_csv(outcome: Outcome) -> str:
    """All numbers as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FLAT, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flatten(outcome))
    return text.getvalue()


def as_json(outcome: Outcome) -> str:
    """All numbers, claims and the folders of the runs as JSON."""
    runs = {
        f"{r.cell.row.name}/{r.cell.column.name}/{'='.join(r.cell.protocols)}": [run.path.name for run in r.runs]
        for r in outcome.results
    }
    claims = [
        {"says": claim.says, "column": column, "protocol": protocol, "verdict": verdict}
        for claim, column, protocol, verdict in outcome.claims()
    ]
    about = {"title": outcome.recipe.title, "paper": outcome.recipe.paper, "quick": outcome.quick}
    return json.dumps({**about, "cells": list(flatten(outcome)), "claims": claims, "runs": runs}, indent=1) + "\n"


LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "→": r"$\rightarrow$", "×": r"$\times$",
         "–": "--", "α": r"$\alpha$", "ρ": r"$\rho$"}  # fmt: skip


def as_latex(outcome: Outcome) -> str:
    """The shown tables as LaTeX tabulars."""
    return "\n".join(f"% {column.title}\n{tabular(rows)}" for column, rows in make_tables(outcome))


def tabular(rows: Rows) -> str:
    lines = [" & ".join("".join(LATEX.get(c, c) for c in cell) for cell in row) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{ll{'r' * (len(rows[0]) - 2)}}}"
    return "\n".join([begin, r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}", ""])
