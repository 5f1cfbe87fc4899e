"""`kinfed reproduce`: runs what the cells of tables need, and writes published against measured."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import mean

from kinfed.data import load
from kinfed.errors import ConfigError, DataError, KinfedError
from kinfed.files import begins_with, refuse_foreign
from kinfed.progress import Display
from kinfed.recipes import Cell, Outcome, Recipe, Wanted, cells_of, list_recipes, load_recipe, refuse_unknown, result_of
from kinfed.recipes.costs import MACHINE
from kinfed.recipes.figures import embed_figures, list_files, save_figures
from kinfed.recipes.kept import KeptNumbers
from kinfed.recipes.outcome import NO_DATA, SECONDS, judge_numbers
from kinfed.recipes.outcome_tables import (
    as_csv,
    as_json,
    as_latex,
    as_markdown,
    caption_tables,
    claim_rows,
    explain_absence,
    find_offsets,
    list_checks,
    notes_of,
)
from kinfed.recipes.recipe_files import tables_of
from kinfed.recipes.store import Store, jobs_of
from kinfed.registry import look_up
from kinfed.runs.jobs import Job
from kinfed.runs.lifecycle import Interrupted
from kinfed.runs.logs import write_text
from kinfed.runs.parallel import AtOnce, run_jobs

JSON_BEGINS = '{\n "title": '  # as_json's
WRITERS = {"json": as_json, "md": as_markdown, "csv": as_csv, "tex": as_latex}  # the JSON says whose they are
Planned = list[tuple[Recipe, list[Cell]]]


@dataclass(frozen=True)
class Order:
    """Which tables, which of their cells, and where everything goes."""

    tables: tuple[str, ...]
    wanted: Wanted
    folder: Path
    page: Path | None = None  # that is filled with the tables, too; or a folder of pages
    fetch: bool = False  # missing datasets from the hub
    jobs: AtOnce = AtOnce()  # runs at once
    show: bool = False  # run nothing, and take the runs that have ended
    keep: Path | None = None  # a file of numbers: of runs that ended, and in place of runs that are not here
    minutes: float = 0.0  # after which runs are stopped; 0: never
    lacking: bool = False  # run only what the kept numbers lack

    def __post_init__(self) -> None:
        if not self.tables:
            raise ConfigError("wanted at least one table; `kinfed reproduce --list` shows all")
        if not self.wanted.seeds:
            raise ConfigError("--seeds: wanted how many, at least 1, got none")
        if self.lacking and not self.keep:
            raise ConfigError("--lacking runs what a file of kept numbers lacks: wanted --keep FILE, too")
        if not 0 <= self.minutes < inf:
            raise ConfigError(f"--minutes: wanted after how many to stop, 0 for never, got {self.minutes}")

    @property
    def keeps(self) -> bool:
        """Whether there is a file of kept numbers: those of quick runs are not kept."""
        return bool(self.keep) and not self.wanted.quick


def reproduce(order: Order, display: Display) -> list[Outcome]:
    """Runs all wanted cells, writes and shows their tables; what has ended is not run again."""
    began, store = time.monotonic(), Store(order.folder)
    refuse_other_files(order)
    kept = KeptNumbers.read(order.keep) if order.keep and order.keeps else KeptNumbers()
    planned = plan(order, kept, display)
    try:
        with stop_after(order.minutes, display):
            run_all(planned, order, store, kept, display)
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command goes on from here") from None
    finally:
        store.measure_shares()
        outcomes = [outcome_of(recipe, cells, order, store, kept) for recipe, cells in planned]
        for outcome in outcomes:
            write_outcome(order, outcome)
        if order.page:
            fill_checks(order.page, outcomes)
        if order.keep and order.keeps:
            KeptNumbers.add(order.keep, outcomes)
    for outcome in outcomes:
        show(outcome, display)
    written = ", ".join(f"{outcome.recipe.name}.md" for outcome in outcomes)
    display.say(f"written to {order.folder}: {written} (and .csv, .json, .tex), in {time.monotonic() - began:.0f} s")
    if store.failed:
        raise KinfedError(f"{len(store.failed)} runs failed: {next(iter(store.failed.values()))}")
    return outcomes


def refuse_other_files(order: Order) -> None:
    """Raises where files have names of a table's and are not of an earlier run of it."""
    for recipe in map(load_recipe, order.tables):
        if not begins_with(order.folder / f"{recipe.name}.json", JSON_BEGINS):
            figures = [ending for ending, _ in list_files(recipe)] if recipe.figure else []
            endings = (*(f".{form}" for form in WRITERS), *figures)
            refuse_foreign(order.folder, [f"{recipe.name}{ending}" for ending in endings], "the tables")


def plan(order: Order, kept: KeptNumbers, display: Display) -> Planned:
    """The cells of each table; raises where a filter fits nothing, or a column asked for by name has no data."""
    recipes, wanted = [load_recipe(name) for name in order.tables], order.wanted
    refuse_unknown(wanted.rows, [name for recipe in recipes for name in recipe.rows], "row")
    refuse_unknown(wanted.columns, [name for recipe in recipes for name in recipe.columns], "column")
    refuse_unknown(wanted.protocols, [name for recipe in recipes for name in recipe.protocols], "protocol")
    if order.show:
        return [(recipe, cells_of(recipe, replace(wanted, assumed=kept.datasets(recipe.name)))) for recipe in recipes]
    planned = [(recipe, cells_of(recipe, wanted)) for recipe in recipes]
    missing = {name: cell for _, cells in planned for cell in cells for name in cell.missing}
    if missing and order.fetch:
        for name in missing:
            display.say(f"fetching {name}")
            load(name, wanted.data_dir or None)
        return [(recipe, cells_of(recipe, wanted)) for recipe in recipes]
    if missing and wanted.columns:
        name, cell = next(iter(missing.items()))
        raise DataError(
            f"column '{cell.column.name}' needs the dataset {name}, which is not here: put {name}.npz into the data "
            "folder (--data-dir), or let --fetch get it from the hub"
        )
    return planned


@contextmanager
def stop_after(minutes: float, display: Display) -> Iterator[None]:
    """What is inside is stopped after so many minutes as by Ctrl-C, and the caller goes on; 0: never."""
    over = threading.Event()

    def stop() -> None:
        over.set()
        os.kill(os.getpid(), signal.SIGINT)  # also ends a wait for processes

    timer = threading.Timer(60 * minutes, stop)
    timer.daemon = True
    if minutes:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
            signal.signal(signal.SIGINT, signal.default_int_handler)
        timer.start()
    try:
        yield
    except KeyboardInterrupt:
        if not over.is_set():
            raise
        display.say(f"stopped after {minutes:g} min; the same command goes on from here")
    finally:
        timer.cancel()


def run_all(planned: Planned, order: Order, store: Store, kept: KeptNumbers, display: Display) -> None:
    """Takes all runs to their end."""
    jobs = jobs_of(planned, order.wanted, store, kept if order.lacking else None)
    todo = [job for job in jobs if not store.has(job.config)]
    display.say(f"{len(jobs)} runs, {len(jobs) - len(todo)} of them done before; all in {order.folder}")
    if (said := explain_missing(planned)) and not order.show:
        display.say(said)
    if said := estimate_time(planned, order, store, kept, {job.path for job in todo}):
        display.say(said)
    if not order.show:
        keep = partial(keep_run, find_users(planned, order, store), order, store)
        failed = run_jobs(todo, order.jobs, display, threads=1 if order.wanted.quick else 0, note=keep)
        store.failed |= {path.name: why for path, why in failed.items()}


def find_users(planned: Planned, order: Order, store: Store) -> dict[Path, Planned]:
    """The cells that have numbers of a run, by its folder."""
    users: dict[Path, Planned] = {}
    for recipe, cells in planned if order.keeps else ():
        for cell in (each for each in cells if not each.missing):
            for path in {store.path(store.find_richer(config)) for config in cell.configs(order.wanted.seeds)}:
                users.setdefault(path, []).append((recipe, [cell]))
    return users


def keep_run(users: dict[Path, Planned], order: Order, store: Store, job: Job) -> None:
    """Adds the numbers of a run that has ended to the kept ones, so that a command that is killed loses none."""
    if not order.keep or job.path not in users:
        return
    store.measure_shares()
    seeds, quick = order.wanted.seeds, order.wanted.quick
    KeptNumbers.add(
        order.keep,
        [
            Outcome(recipe, tuple(result_of(recipe, cell, seeds, store.run, "") for cell in cells), quick)
            for recipe, cells in users[job.path]
        ],
    )


def explain_missing(planned: Planned) -> str:
    """Which cells are left out for want of data; else empty."""
    missing = [cell.missing for _, cells in planned for cell in cells if cell.missing]
    names = ", ".join(sorted({name for each in missing for name in each}))
    return f"left out: {len(missing)} cells whose data are not here ({names})" if missing else ""


def estimate_time(planned: Planned, order: Order, store: Store, kept: KeptNumbers, todo: set[Path]) -> str:
    """How long the runs that are left will take, by the kept numbers of their cells or table; else empty.

    A run takes what those of its cell took of the machine before, or else their share of their seconds.
    """
    known: dict[Path, float] = {}
    for recipe, cells in planned:
        kept_of = [kept.find(recipe.name, cell).values() for cell in cells]
        seconds = [
            [n[MACHINE] for n in each if MACHINE in n] or [n[SECONDS] / order.jobs.runs for n in each if SECONDS in n]
            for each in kept_of
        ]
        others = [value for values in seconds for value in values]
        for cell, own in zip(cells, seconds, strict=True) if others else ():
            asked = map(store.find_richer, cell.configs(order.wanted.seeds))
            left = set(map(store.path, asked)) & todo - known.keys()
            known |= dict.fromkeys(left, mean(own or others))
    if not known:
        return ""
    minutes = sum(known.values()) / 60
    said = f"about {minutes:.0f} min for {len(known)} runs, {order.jobs.runs} at once"
    return f"{said}, if they take as long as those of which --keep has numbers did, maybe on another machine"


def outcome_of(recipe: Recipe, cells: Sequence[Cell], order: Order, store: Store, kept: KeptNumbers) -> Outcome:
    """What became of a table so far; where nothing was to run, missing data are no reason."""
    results, wanted = [], order.wanted
    for cell in cells:
        asked = cell.configs(wanted.seeds) if store.failed else ()
        failures = (store.failed.get(store.path(store.find_richer(config)).name) for config in asked)
        state = next((f"failed: {why}" for why in failures if why), "")
        state = f"{NO_DATA}: {', '.join(cell.missing)}" if cell.missing and not order.show else state
        result = result_of(recipe, cell, wanted.seeds, store.run, state)
        if before := kept.find(recipe.name, cell):
            result = replace(judge_numbers(recipe, cell, {**before, **result.numbers}), runs=result.runs)
        results.append(result)
    return Outcome(recipe, tuple(results), wanted.quick)


def write_outcome(order: Order, outcome: Outcome) -> None:
    """Writes a table in all forms, and onto the page."""
    order.folder.mkdir(parents=True, exist_ok=True)
    for ending, write in WRITERS.items():
        write_text(order.folder / f"{outcome.recipe.name}.{ending}", write(outcome))
    save_figures(outcome, order.folder)
    if order.page:
        fill(order.page, outcome)


def fill(place: Path, outcome: Outcome) -> None:
    """Puts a table between its marks on a page, or on that page of a folder which has them."""
    name = outcome.recipe.name
    page = find_marks(place, name)
    if page is None:
        raise ConfigError(f"{place} has no place for {name}: wanted the marks {' and '.join(marks_of(name))}")
    save_figures(outcome, page.parent)
    drawn = embed_figures(outcome.recipe, page.parent) if outcome.recipe.figure else ""
    replace_between(page, name, as_markdown(outcome) + drawn)


def fill_checks(place: Path, outcomes: Sequence[Outcome]) -> None:
    """Puts the list of all claims onto the page of each paper of which all tables are here, if it has marks for it."""
    by_name = {outcome.recipe.name: outcome for outcome in outcomes}
    for paper in dict.fromkeys(name.split("-")[0] for name in by_name):
        names = tables_of(paper)
        page = find_marks(place, f"checks of {paper}")
        if page and names and all(name in by_name for name in names):
            replace_between(page, f"checks of {paper}", list_checks([by_name[name] for name in names]) + "\n")


def marks_of(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def find_marks(place: Path, name: str) -> Path | None:
    """The page that has these marks: the one given, or one of the folder."""
    for page in sorted(place.glob("*.md")) if place.is_dir() else [place]:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if all(mark in text for mark in marks_of(name)):
            return page
    return None


def replace_between(page: Path, name: str, middle: str) -> None:
    """Writes a page anew, with this between the marks."""
    begin, end = marks_of(name)
    before, rest = page.read_text(encoding="utf-8").split(begin, 1)
    write_text(page, f"{before}{begin}\n\n{middle}\n{end}{rest.split(end, 1)[1]}")


def show(outcome: Outcome, display: Display) -> None:
    """Shows a table."""
    display.say(f"\n{outcome.recipe.title}")
    if outcome.recipe.figure:
        display.say(f"The paper's figure: {outcome.recipe.figure.shows}.")
    for caption, rows in caption_tables(outcome):
        display.say(f"\n{caption}")
        display.table(rows)
    if claims := claim_rows(outcome):
        display.table(claims)
    for note in (*explain_absence(outcome), *find_offsets(outcome), *notes_of(outcome)):
        display.say(f"- {note}")


def find_tables(paper: str) -> tuple[str, ...]:
    """All tables and figures of a paper; one that is not known is refused."""
    look_up(paper, dict.fromkeys(name.split("-")[0] for name in list_recipes()), "paper")
    return tables_of(paper)


def list_tables() -> list[tuple[str, str]]:
    """All tables there are, with a line each."""
    return [(name, load_recipe(name).title) for name in list_recipes()]
