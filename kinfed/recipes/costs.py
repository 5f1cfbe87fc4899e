"""What a run costs until it has the accuracy that a paper publishes: rounds, bytes, trainings of clients, seconds.

The target is the main number of the recipe's row `target`, less its allowance, so that all methods of a column run for
the same. A run that never gets there costs infinitely much. Seconds are those of the simulation,
without evaluation; the server's are those beside clients' tasks: of averages, distances, clusters.

And what a run costs the machine, evaluation included: where several go on at once, each has an equal share of the time.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from math import inf, isinf
from pathlib import Path
from statistics import mean

import numpy as np

from kinfed.config import Config
from kinfed.recipes.cells import Cell
from kinfed.recipes.measures import MEASURES
from kinfed.recipes.recipe import Recipe
from kinfed.runs.logs import whole_lines
from kinfed.runs.reader import Run
from kinfed.runs.run_tables import Numbers

COSTS = {
    "cost_rounds": ("rounds", ".0f"),
    "cost_megabytes": ("MB", ".1f"),
    "cost_tasks": ("tasks a client", ".1f"),
    "cost_seconds": ("s", ".0f"),
    "cost_server": ("server s", ".1f"),
}
SCORING = "evaluate"  # how tasks begin that only measure
MACHINE = "machine"  # seconds of the machine
BEGINS, ENDS = ("started", "resumed"), ("ended", "interrupted", "failed")  # events of a run


def find_target(recipe: Recipe, column: str) -> float | None:
    """The main number that runs of this column should have; None where the paper has none."""
    published = recipe.rows[recipe.target].published.get(column, ()) if recipe.target else ()
    printed = published[recipe.measures.index(recipe.main)] if published else None
    return None if printed is None else printed.value - MEASURES[recipe.main].least


def measure_costs(recipe: Recipe, cell: Cell, run: Run, config: Config) -> dict[str, float]:
    """What the run cost until it had the target of its column; nothing where there is no target."""
    target = find_target(recipe, cell.column.name)
    if target is None:
        return {}
    scores = scores_of(recipe, run, config)
    hits = np.flatnonzero(scores >= target)
    if not len(hits):
        return dict.fromkeys(COSTS, inf)
    at = int(hits[0])
    last = run.rounds["round"][at]
    moved = run.rounds["bytes_down"][at] + run.rounds["bytes_up"][at]
    seconds, server = run.seconds_until(int(last)), run.server_seconds_until(int(last))
    values = (float(last), float(moved) / 1e6, count_tasks(run, last) / max(1, run.count), seconds, server)
    return {name: value for name, value in zip(COSTS, values, strict=True) if value is not None}


def scores_of(recipe: Recipe, run: Run, config: Config) -> Numbers:
    """The main number by evaluated round: of what clients use, so after their own training where they adapt."""
    measure = MEASURES[recipe.main]
    column = "accuracy_adapted" if config.evaluation.adapt and measure.column == "accuracy" else measure.column
    found: Numbers = measure.scale * run.rounds[column]
    return found


def count_tasks(run: Run, last: float) -> float:
    """How often clients were asked to compute something until this round, evaluations left out."""
    asked = (run.ledger["round"] <= last) & np.array([not name.startswith(SCORING) for name in run.ledger.text["task"]])
    return float(run.ledger["clients"][asked].sum())


def show_costs(numbers: Mapping[str, Sequence[float]]) -> list[str]:
    """The cells of a row: the means over the seeds that reached the target, how many those are where not all did."""
    finite = {name: [value for value in values if not isinf(value)] for name, values in numbers.items()}
    shown = [f"{mean(finite[name]):{style}}" if finite.get(name) else "–" for name, (_, style) in COSTS.items()]
    reached, seeds = len(finite["cost_rounds"]), len(numbers["cost_rounds"])
    if not reached:
        shown[0] = "not reached"
    elif reached < seeds:
        shown[0] += f" ({reached} of {seeds} seeds)"
    return shown


def share_machine(runs: Path) -> dict[str, float]:
    """The seconds that each run of a folder took of the machine, by its name: those going on at once share the time."""
    folders = sorted(runs.iterdir()) if runs.is_dir() else []
    spans = [(folder.name, *span) for folder in folders for span in read_spans(folder)]
    changes = [
        change for name, begin, end in spans if begin < end for change in ((begin, True, name), (end, False, name))
    ]
    shares, active, last = defaultdict[str, float](float), set[str](), 0.0
    for at, begins, name in sorted(changes):
        for each in active:
            shares[each] += (at - last) / len(active)
        (active.add if begins else active.discard)(name)
        last = at
    return dict(shares)


def read_spans(folder: Path) -> Iterator[tuple[float, float]]:
    """From when to when a run went on, each time: one that was killed until its last event."""
    begin, last = None, 0.0
    for at, kind in read_events(folder):
        if begin is not None and kind in BEGINS:
            yield begin, last
        if kind in BEGINS:
            begin = at
        elif begin is not None and kind in ENDS:
            yield begin, at
            begin = None
        last = at
    if begin is not None:
        yield begin, last


def read_events(folder: Path) -> Iterator[tuple[float, str]]:
    """When each event of a run was, and which; lines that a run did not write are left out."""
    for line in whole_lines(folder / "events.jsonl"):
        with suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            yield datetime.fromisoformat(event["time"]).timestamp(), event["event"]
