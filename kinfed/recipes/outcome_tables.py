"""Outcomes of recipes as tables to read, and as Markdown, CSV, JSON and LaTeX."""

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import mean

from kinfed.progress import as_markdown as in_markdown
from kinfed.recipes.costs import COSTS, find_target, show_costs
from kinfed.recipes.measures import INCOMPARABLE, MEASURES, OTHER, Found, Printed
from kinfed.recipes.outcome import FAILS, HOLDS, NO_DATA, UNKNOWN, Outcome, Result, Side, values_of
from kinfed.recipes.recipe import Column
from kinfed.recipes.rules import Points

Rows = list[list[str]]
NOTHING = "–"
VERDICTS = (HOLDS, FAILS, UNKNOWN)
MOST = 11  # steps along an axis that a table shows
FEW = 3  # rows at least of which a common offset is said
SPARSE = 2 / 3  # of a column's rows: where more were not run, they are counted instead of listed
NOT_JUDGED = "Not the published protocol: differences are shown, not judged."
QUICK = "quick version: small and short, its numbers mean nothing and are not judged"


def make_tables(outcome: Outcome) -> Iterator[tuple[Column, Rows]]:
    """For each column of the paper's table of which something ran one of ours: a cell for each measure."""
    notes = number_reasons(outcome)
    for column in outcome.recipe.columns.values():
        results = [result for result in outcome.results if result.cell.column == column]
        if not all(result.is_absent for result in results):
            titles = [MEASURES[name].title for name in outcome.recipe.measures]
            shown = [result for result in results if not (result.is_absent and is_sparse(results))]
            rows = [make_row(result, outcome, notes) for result in shown]
            yield column, [["", "protocol", *titles, "seeds", "s"], *rows]


def is_sparse(results: Sequence[Result]) -> bool:
    """Whether most of these were not run."""
    return sum(result.is_absent for result in results) > SPARSE * len(results)


def caption_tables(outcome: Outcome) -> Iterator[tuple[str, Rows]]:
    """The tables of an outcome, each with what it shows."""
    if outcome.recipe.figure and outcome.recipe.figure.kind == "lines":
        yield from line_tables(outcome)
    else:
        for column, rows in make_tables(outcome):
            said = "measured" if outcome.recipe.figure else "published → measured (difference) verdict"
            yield f"{column.title}: {said}", rows
        yield from cost_tables(outcome)


def cost_tables(outcome: Outcome) -> Iterator[tuple[str, Rows]]:
    """For each column what every row costs until it has the recipe's target, where that was measured."""
    for column in outcome.recipe.columns.values():
        results = [r for r in outcome.results if r.cell.column == column and values_of(r.numbers, next(iter(COSTS)))]
        target = find_target(outcome.recipe, column.name)
        if results and target is not None and not outcome.quick:
            rows = [[r.cell.row.title, " = ".join(r.cell.protocols), *show_costs(costs_of(r))] for r in results]
            yield (
                f"{column.title}: cost to {target:g} %, what is published for "
                f"{outcome.recipe.rows[outcome.recipe.target].title} less one point",
                [["", "protocol", *(title for title, _ in COSTS.values())], *rows],
            )


def costs_of(result: Result) -> dict[str, tuple[float, ...]]:
    """The costs of a cell, by seed."""
    return {name: values for name in COSTS if (values := values_of(result.numbers, name))}


def line_tables(outcome: Outcome) -> Iterator[tuple[str, Rows]]:
    """The numbers of a figure's lines, for each measure: over the columns, or over rounds for each column."""
    names = list(outcome.recipe.columns)
    groups = [names] if outcome.is_along_columns else [[name] for name in names]
    for measure in outcome.recipe.measures:
        for group in groups:
            lines = {
                Side(name, tuple(group), protocol, measure): points
                for name, row in outcome.recipe.rows.items()
                for protocol in row.under
                if (points := outcome.points(Side(name, tuple(group), protocol, measure)))
            }
            if lines:
                where = "" if outcome.is_along_columns else f"{outcome.recipe.columns[group[0]].title}: "
                yield f"{where}{MEASURES[measure].title}", line_rows(outcome, lines, MEASURES[measure].shown)


def line_rows(outcome: Outcome, lines: Mapping[Side, Points], style: str) -> Rows:
    """A header of places on the axis, and a row for each line; where some line is a mean over seeds, the last column
    says of each over how many.
    """
    places = choose_places(lines.values())
    axis = outcome.recipe.figure.x if outcome.recipe.figure else ""
    seeds = {side: count_seeds(outcome, side) for side in lines}
    are_means = any(count != "1" for count in seeds.values())
    rows = [[axis, "protocol", *(f"{x:g}" for x in places), *["seeds"] * are_means]]
    for side, points in lines.items():
        at = dict(points)
        shown = [f"{at[x]:{style}}" if x in at else NOTHING for x in places]
        rows.append([outcome.recipe.rows[side.row].title, side.protocol, *shown, *[seeds[side]] * are_means])
    return rows


def choose_places(lines: Collection[Points]) -> list[float]:
    """A dozen of the places that half of the lines have, so that one long line leaves the others theirs; all ends."""
    counts = Counter(x for points in lines for x, _ in points)
    shared = sorted(x for x, count in counts.items() if 2 * count >= len(lines))
    step = -(-(len(shared) - 1) // MOST) or 1
    return sorted({*shared[::step], *(max(x for x, _ in points) for points in lines)})


def count_seeds(outcome: Outcome, side: Side) -> str:
    """Over how many seeds the points of a line are means: "3", or "1 to 3" where these differ."""
    counts = {len(result.numbers) for result in outcome.results_of(side)} - {0}
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


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
    """Which columns have no data here, were run in part, or were not run at all."""
    lines, partly, left = list[str](), defaultdict[str, list[str]](list), list[str]()
    for column in outcome.recipe.columns.values():
        results = [result for result in outcome.results if result.cell.column == column]
        if not results:
            continue
        if not all(result.is_absent for result in results):
            if is_sparse(results) and not outcome.recipe.figure:
                absent = sum(result.is_absent for result in results)
                partly[f"{absent} of {len(results)} rows were not run"].append(column.title)
            continue
        missing = ", ".join(dict.fromkeys(name for result in results for name in result.cell.missing))
        rows = len({result.cell.row.name for result in results})
        if all(result.state.startswith(NO_DATA) for result in results):
            lines.append(f"{column.title}: {NO_DATA} ({missing}); {rows} rows were left out.")
        else:
            left.append(column.title)
    said = {**partly, **({"Columns that were not run": left} if left else {})}
    return [*lines, *(f"{what}: {'; '.join(columns)}." for what, columns in said.items())]


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


def count_verdicts(outcome: Outcome) -> dict[str, Counter[str]]:
    """How often each claim of a table or figure holds, over its columns and protocols."""
    found: dict[str, Counter[str]] = {}
    for claim, _, _, verdict in outcome.claims():
        found.setdefault(claim.says, Counter())[verdict] += 1
    return found


def list_checks(outcomes: Sequence[Outcome]) -> str:
    """A sentence with the sums, and a row for each claim: in how many columns and protocols it holds."""
    counts = [(o.recipe.name, says, verdicts) for o in outcomes for says, verdicts in count_verdicts(o).items()]
    total = sum((verdicts for _, _, verdicts in counts), Counter[str]())
    head = [["claim", "where", *VERDICTS]]
    rows = [[says, name, *(str(verdicts[v] or "") for v in VERDICTS)] for name, says, verdicts in counts]
    ran = sum(bool(verdicts[HOLDS] + verdicts[FAILS]) for _, _, verdicts in counts)
    never = sum(bool(verdicts[FAILS]) and not verdicts[HOLDS] for _, _, verdicts in counts)
    said = (
        f"{len(counts)} claims, of which {ran} were looked at; {never} of these hold nowhere. A claim is checked in "
        f"each column and under each protocol that it speaks of: {total[HOLDS]} checks hold, {total[FAILS]} do not, "
        f"{total[UNKNOWN]} were not run."
    )
    return f"{said}\n\n{in_markdown(head + rows)}"


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
