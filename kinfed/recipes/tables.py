"""A recipe's outcome as tables: Markdown and lines for people, CSV and JSON in full precision, LaTeX."""

import csv
import io
import json
from collections.abc import Iterator, Sequence

from kinfed.progress import as_markdown as in_markdown
from kinfed.recipes.measures import MEASURES
from kinfed.recipes.outcome import UNKNOWN, Outcome, Result
from kinfed.recipes.recipe import Column, Printed
from kinfed.recipes.verdict import INCOMPARABLE, Found

Rows = list[list[str]]
NOTHING = "–"
QUICK = "quick version: small and short, its numbers mean nothing and are not judged"


def shown_tables(outcome: Outcome) -> Iterator[tuple[Column, Rows]]:
    """For each column of the paper's table one of ours: rows by protocol, a cell for each measure."""
    notes = reasons_of(outcome)
    for column in outcome.recipe.columns.values():
        results = [result for result in outcome.results if result.cell.column == column]
        if any(not result.cell.missing for result in results):
            titles = [MEASURES[name].title for name in outcome.recipe.measures]
            rows = [shown_row(result, outcome, notes) for result in results]
            yield column, [["", "protocol", *titles, "seeds", "s"], *rows]


def shown_row(result: Result, outcome: Outcome, notes: Sequence[str]) -> list[str]:
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
    return [*head, *(shown(found, outcome.quick) for found in result.found), str(len(result.seeds)), f"{seconds:.0f}"]


def shown(found: Found, quick: bool = False) -> str:
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


def reasons_of(outcome: Outcome) -> list[str]:
    """Why cells cannot be compared, and remarks, each once: note n of the tables is the n-th."""
    found = [note for r in outcome.results for note in (*r.cell.remarks, r.cell.incomparable) if note]
    return list(dict.fromkeys(found))


def absent(outcome: Outcome) -> list[str]:
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
    numbered = [f"[{i}] {reason}." for i, reason in enumerate(reasons_of(outcome), 1)]
    return [*([QUICK] if outcome.quick else []), *said, *numbered, *recipe.notes]


def as_markdown(outcome: Outcome) -> str:
    """The whole outcome as a piece of a page."""
    parts = [f"**{outcome.recipe.title}** ({outcome.recipe.paper})"]
    for column, rows in shown_tables(outcome):
        parts += [f"{column.title}: published → measured (difference) verdict", in_markdown(rows)]
    if claims := claim_rows(outcome):
        parts.append(in_markdown(claims))
    parts.append("\n".join(f"- {note}" for note in (*absent(outcome), *notes_of(outcome))))
    return "\n\n".join(parts) + "\n"


FLAT = (
    "table", "row", "column", "protocol", "measure", "published", "published_spread", "measured", "spread",
    "difference", "tolerance", "verdict", "reason", "seeds", "seconds",
)  # fmt: skip


def flat(outcome: Outcome) -> Iterator[dict[str, object]]:
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
    writer.writerows(flat(outcome))
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
    return json.dumps({**about, "cells": list(flat(outcome)), "claims": claims, "runs": runs}, indent=1) + "\n"


LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "→": r"$\rightarrow$", "×": r"$\times$",
         "–": "--", "α": r"$\alpha$", "ρ": r"$\rho$"}  # fmt: skip


def as_latex(outcome: Outcome) -> str:
    """The shown tables as LaTeX tabulars."""
    return "\n".join(f"% {column.title}\n{tabular(rows)}" for column, rows in shown_tables(outcome))


def tabular(rows: Rows) -> str:
    lines = [" & ".join("".join(LATEX.get(c, c) for c in cell) for cell in row) + r" \\" for row in rows]
    begin = rf"\begin{{tabular}}{{ll{'r' * (len(rows[0]) - 2)}}}"
    return "\n".join([begin, r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}", ""])
