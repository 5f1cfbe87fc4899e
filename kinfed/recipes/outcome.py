"""Outcomes of recipes: every cell's numbers beside the published ones, whether claims hold, and all that as tables."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import mean

from kinfed.config import Config
from kinfed.progress import as_markdown as in_markdown
from kinfed.recipes.cells import Cell
from kinfed.recipes.measures import INCOMPARABLE, MEASURES, Found, Measure, Printed
from kinfed.recipes.recipe import Claim, Column, Recipe
from kinfed.runs.reader import Run

Runs = Callable[[Config], Run | None]  # the run of a config, if it ended
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "not known"
Rows = list[list[str]]
NOTHING = "–"
QUICK = "quick version: small and short, its numbers mean nothing and are not judged"


@dataclass(frozen=True)
class Result:
    """One cell: its numbers, or why there are none."""

    cell: Cell
    found: tuple[Found, ...]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    state: str = ""  # why there are no numbers


@dataclass(frozen=True)
class Outcome:
    """All cells of a recipe."""

    recipe: Recipe
    results: tuple[Result, ...]
    quick: bool = False

    def claims(self) -> Iterator[tuple[Claim, str, str, str]]:
        """Each claim in each column and protocol: (claim, column, protocol, holds or not)."""
        for claim in self.recipe.claims:
            for column in claim.columns or self.recipe.columns:
                for protocol in claim.protocols or self.recipe.protocols:
                    yield claim, column, protocol, self.judge(claim, column, protocol)

    def judge(self, claim: Claim, column: str, protocol: str) -> str:
        """Whether a claim holds."""
        better, than = (self.main(row, column, protocol) for row in (claim.better, claim.than))
        if better is None or (claim.than and than is None):
            return UNKNOWN
        return HOLDS if better - (than or 0.0) >= claim.by else FAILS

    def main(self, row: str, column: str, protocol: str) -> float | None:
        """The main number of a cell."""
        for result in self.results:
            cell = result.cell
            if (cell.row.name, cell.column.name) == (row, column) and protocol in cell.protocols:
                return result.found[self.recipe.measures.index(self.recipe.main)].mean if result.found else None
        return None


def result_of(recipe: Recipe, cell: Cell, seeds: Sequence[int], runs: Runs, state: str) -> Result:
    """The numbers of a cell from those of its runs that ended; of a sweep the variant with the best main number."""
    measures = [MEASURES[name] for name in recipe.measures]
    main = recipe.measures.index(recipe.main)
    if not all(select_ended(variant, seeds, runs) for variant in cell.variants):
        return Result(cell, (), (), (), state or "not run")
    sign = -1 if measures[main].lower_is_better else 1
    tried = [(variant, numbers_of(variant, measures, seeds, runs)) for variant in cell.variants]
    variant, numbers = max(tried, key=lambda each: mean(sign * x for x in each[1][main]) if each[1][main] else -inf)
    ended = select_ended(variant, seeds, runs)
    printed = cell.printed or (None,) * len(measures)
    found = tuple(Found(m, p, n, cell.incomparable) for m, p, n in zip(measures, printed, numbers, strict=True))
    return Result(cell, found, tuple(seed for seed, _ in ended), tuple(run for _, run in ended))


def select_ended(config: Config, seeds: Sequence[int], runs: Runs) -> list[tuple[int, Run]]:
    """The seeds whose run of this config has ended, and these runs."""
    return [(seed, run) for seed in seeds if (run := runs(replace(config, seed=seed)))]


def numbers_of(
    config: Config, measures: Sequence[Measure], seeds: Sequence[int], runs: Runs
) -> list[tuple[float, ...]]:
    """For each measure its numbers over the seeds that have them."""
    numbers: list[list[float]] = [[] for _ in measures]
    for seed in seeds:
        mine = replace(config, seed=seed)
        run = runs(mine)
        for into, measure in zip(numbers, measures, strict=True):
            value = measure.of(run, mine, runs(reference(mine, measure))) if run else None
            into += [] if value is None else [value]
    return [tuple(each) for each in numbers]


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


def make_row(result: Result, outcome: Outcome, notes: Sequence[str]) -> list[str]:
    """One row of a shown table."""
    cell = result.cell
    marks = "".join(f" [{notes.index(note) + 1}]" for note in (*cell.remarks, cell.incomparable) if note)
    head = [cell.row.title + marks, " = ".join(cell.protocols)]
    width = len(outcome.recipe.measures)
    if not result.found:
        printed = cell.printed or (None,) * width
        numbers = [f"{as_printed(number)} → {result.state if i == 0 else NOTHING}" for i, number in enumerate(printed)]
        return [*head, *numbers, NOTHING, NOTHING]
    seconds = sum(run.seconds for run in result.runs) / len(result.runs)
    return [
        *head,
        *(show_number(found, outcome.quick) for found in result.found),
        str(len(result.seeds)),
        f"{seconds:.0f}",
    ]


def show_number(found: Found, quick: bool = False) -> str:
    """published → measured (difference) verdict."""
    style = found.measure.shown
    if found.mean is None:
        return f"{as_printed(found.printed)} → {NOTHING}"
    measured = f"{found.mean:{style}}" + ("" if found.spread is None else f" ± {found.spread:{style}}")
    if found.printed is None:
        return measured
    judged = "" if quick else f" {'n/c' if found.verdict == INCOMPARABLE else found.verdict}"
    return f"{as_printed(found.printed)} → {measured} ({found.difference:+{style}}){judged}"


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


def claim_rows(outcome: Outcome) -> Rows:
    """The claims that could be looked at: a header, then one row each."""
    if outcome.quick:
        return []
    lines = [
        [claim.says, outcome.recipe.columns[column].title, protocol, verdict]
        for claim, column, protocol, verdict in outcome.claims()
        if verdict != UNKNOWN
    ]
    return [["claim", "column", "protocol", ""], *lines] if lines else []


def notes_of(outcome: Outcome) -> list[str]:
    """Lines that explain the tables: protocols, the numbered reasons, and what else there is to know."""
    recipe = outcome.recipe
    said = [f"{name}: {protocol.says}." for name, protocol in recipe.protocols.items()]
    numbered = [f"[{i}] {reason}." for i, reason in enumerate(number_reasons(outcome), 1)]
    return [*([QUICK] if outcome.quick else []), *said, *numbered, *recipe.notes]


def as_markdown(outcome: Outcome) -> str:
    """The whole outcome as a piece of a page."""
    parts = [f"**{outcome.recipe.title}** ({outcome.recipe.paper})"]
    for column, rows in make_tables(outcome):
        parts += [f"{column.title}: published → measured (difference) verdict", in_markdown(rows)]
    if claims := claim_rows(outcome):
        parts.append(in_markdown(claims))
    parts.append("\n".join(f"- {note}" for note in (*explain_absence(outcome), *notes_of(outcome))))
    return "\n\n".join(parts) + "\n"


FLAT = (
    "table", "row", "column", "protocol", "measure", "published", "published_spread", "measured", "spread",
    "difference", "tolerance", "verdict", "reason", "seeds", "seconds",
)  # fmt: skip


def flatten(outcome: Outcome) -> Iterator[dict[str, object]]:
    """One line for each number under each protocol, in full precision."""
    for result in outcome.results:
        cell = result.cell
        seconds = sum(run.seconds for run in result.runs)
        printed = cell.printed or (None,) * len(outcome.recipe.measures)
        for i, name in enumerate(outcome.recipe.measures):
            found = result.found[i] if result.found else Found(MEASURES[name], printed[i], (), cell.incomparable)
            number = found.printed or Printed(float("nan"))
            values = (
                found.printed and number.value, number.spread, found.mean, found.spread, found.difference,
                found.tolerance, "" if outcome.quick else found.verdict, cell.incomparable or result.state,
            )  # fmt: skip
            for protocol in cell.protocols:
                head = (outcome.recipe.name, cell.row.name, cell.column.name, protocol, name)
                yield dict(zip(FLAT, (*head, *values, len(result.seeds), seconds), strict=True))


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
