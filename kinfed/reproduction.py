"""`kinfed reproduce`: runs what a recipe's cells need, each run once, and writes published against measured."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kinfed.commands import Interrupted, Place, go_on, start
from kinfed.config import Config, make_population
from kinfed.data import Population, load
from kinfed.errors import ConfigError, DataError, KinfedError
from kinfed.progress import Display
from kinfed.recipes import (
    Cell,
    Outcome,
    Recipe,
    Run,
    Wanted,
    cells_of,
    digest,
    load_recipe,
    references,
    refuse_unknown,
    result_of,
)
from kinfed.recipes.tables import as_csv, as_json, as_latex, as_markdown, claim_rows, notes_of, shown_tables
from kinfed.runs import CHECKPOINT, CONFIG, SUMMARY
from kinfed.runs.logs import write_text


@dataclass(frozen=True)
class Job:
    """One run that some cell needs."""

    config: Config
    said: str  # which cell

    @property
    def population(self) -> tuple[object, ...]:
        """What its clients hang on: jobs that share it meet the same ones."""
        c = self.config
        return (c.seed, c.data, c.partition, c.shift, c.roles, c.change)


@dataclass
class Bench:
    """The folder of all runs, and the clients of the last one: the next job mostly has the same."""

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)  # run folder -> why
    last: tuple[tuple[object, ...], Population] | None = None

    def path(self, config: Config) -> Path:
        """Where the run of a config is: the same for all tables that need it."""
        return self.folder / "runs" / f"{config.method}-{config.data.name}-{digest(config)}-seed{config.seed}"

    def run(self, config: Config) -> Run | None:
        """The run of this config, if it has ended."""
        path = self.path(config)
        return Run.read(path, config) if (path / SUMMARY).exists() else None

    def clients(self, job: Job) -> Population:
        """The clients of a job."""
        if self.last is None or self.last[0] != job.population:
            self.last = None  # two populations at once may be too many
            self.last = (job.population, make_population(job.config))
        return self.last[1]

    def do(self, job: Job, display: Display) -> None:
        """Takes a run to its end, from where it is."""
        path = self.path(job.config)
        if (path / SUMMARY).exists():
            return
        try:
            if (path / CONFIG).exists():
                go_on(job.config, path, display, self.clients(job))
            else:
                start(job.config, Place(path, force=True), display, self.clients(job))
            (path / CHECKPOINT).unlink(missing_ok=True)  # it is large, and this run needs no more of it
        except KinfedError as error:
            self.failed[path.name] = str(error)
            display.say(f"failed: {error}")


def wanted(
    rows: Sequence[str] | None, columns: Sequence[str] | None, protocols: Sequence[str] | None, seeds: int, quick: bool
) -> Wanted:
    """What the command line asks for."""
    if seeds < 1:
        raise ConfigError(f"--seeds: wanted how many, at least 1, got {seeds}")
    return Wanted(tuple(rows or ()), tuple(columns or ()), tuple(protocols or ()), tuple(range(seeds)), quick)


def reproduce(
    names: Sequence[str], wanted: Wanted, folder: Path, display: Display, fetch: bool = False, page: Path | None = None
) -> list[Outcome]:
    """Runs all wanted cells of these tables, writes and shows them; what has ended is not run again."""
    recipes = [load_recipe(name) for name in names]
    check(recipes, wanted)
    planned = [(recipe, cells_of(recipe, wanted)) for recipe in recipes]
    if fetch:
        planned = [(recipe, cells_of(recipe, wanted)) for recipe in fetched(planned, wanted, display)]
    elif wanted.columns:
        refuse_missing([cell for _, cells in planned for cell in cells])
    bench = Bench(folder)
    jobs = list(jobs_of(planned, wanted))
    todo = [job for job in jobs if not (bench.path(job.config) / SUMMARY).exists()]
    display.say(f"{len(jobs)} runs, {len(jobs) - len(todo)} of them done before; all in {folder}")
    try:
        with display.live(), one_thread(wanted.quick):
            for number, job in enumerate(todo, 1):
                display.say(f"run {number} of {len(todo)}: {job.said}")
                bench.do(job, display)
    except Interrupted:
        raise Interrupted("stopped; the same command goes on from here") from None
    finally:
        outcomes = [outcome_of(recipe, cells, wanted, bench) for recipe, cells in planned]
        for outcome in outcomes:
            write_outcome(folder, outcome)
            if page:
                fill(page, outcome)
    for outcome in outcomes:
        show(outcome, display)
    display.say(f"written to {folder}: {', '.join(f'{recipe.name}.md' for recipe in recipes)} (and .csv, .json, .tex)")
    if bench.failed:
        raise KinfedError(f"{len(bench.failed)} runs failed: {next(iter(bench.failed.values()))}")
    return outcomes


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Inside it torch has one thread, if that is wanted: for small work several only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check(recipes: Sequence[Recipe], wanted: Wanted) -> None:
    """Raises where a filter fits nothing."""
    if not recipes:
        raise ConfigError("wanted at least one table; `kinfed reproduce --list` shows all")
    refuse_unknown(wanted.rows, [name for recipe in recipes for name in recipe.rows], "row")
    refuse_unknown(wanted.columns, [name for recipe in recipes for name in recipe.columns], "column")
    refuse_unknown(wanted.protocols, [name for recipe in recipes for name in recipe.protocols], "protocol")


def refuse_missing(cells: Sequence[Cell]) -> None:
    """Raises where a column was asked for by name and its data are not here."""
    for cell in cells:
        if cell.missing:
            raise DataError(
                f"column '{cell.column.name}' needs the dataset {' and '.join(cell.missing)}, which is not here: put "
                f"{cell.missing[0]}.npz into the data folder (--data-dir), or let --fetch get it from the hub"
            )


def fetched(planned: Sequence[tuple[Recipe, Sequence[Cell]]], wanted: Wanted, display: Display) -> Iterator[Recipe]:
    """The recipes, after their missing datasets were fetched."""
    for name in dict.fromkeys(name for _, cells in planned for cell in cells for name in cell.missing):
        display.say(f"fetching {name}")
        load(name, wanted.data_dir or None)
    return (recipe for recipe, _ in planned)


def jobs_of(planned: Sequence[tuple[Recipe, Sequence[Cell]]], wanted: Wanted) -> list[Job]:
    """All runs, each once; those on the same clients one after the other."""
    jobs: dict[tuple[str, int], Job] = {}
    for recipe, cells in planned:
        for cell in cells:
            for config in cell.configs(wanted.seeds) if not cell.missing else ():
                said = f"{recipe.name}: {cell.row.title}, {cell.column.title}, {' and '.join(cell.protocols)}"
                for each in (config, *references(recipe, config)):
                    jobs.setdefault((digest(each), each.seed), Job(each, f"{said}, seed {each.seed}"))
    order = {key: place for place, key in enumerate(dict.fromkeys(job.population for job in jobs.values()))}
    return sorted(jobs.values(), key=lambda job: order[job.population])


def outcome_of(recipe: Recipe, cells: Sequence[Cell], wanted: Wanted, bench: Bench) -> Outcome:
    """What became of a recipe so far."""
    results = []
    for cell in cells:
        failed = [bench.failed.get(bench.path(config).name) for config in cell.configs(wanted.seeds)]
        state = next((f"failed: {why}" for why in failed if why), "")
        state = f"data not here: {', '.join(cell.missing)}" if cell.missing else state
        results.append(result_of(recipe, cell, wanted.seeds, bench.run, state))
    return Outcome(recipe, tuple(results), wanted.quick)


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Writes the tables of a recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    writers = {"md": as_markdown, "csv": as_csv, "json": as_json, "tex": as_latex}
    for ending, write in writers.items():
        write_text(folder / f"{outcome.recipe.name}.{ending}", write(outcome))


def fill(page: Path, outcome: Outcome) -> None:
    """Puts the tables of a recipe between their marks on a page."""
    begin, end = (f"<!-- {word}{outcome.recipe.name} -->" for word in ("", "end of "))
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise ConfigError(f"{page} has no place for {outcome.recipe.name}: wanted the marks {begin} and {end}")
    before, rest = text.split(begin, 1)
    write_text(page, f"{before}{begin}\n\n{as_markdown(outcome)}\n{end}{rest.split(end, 1)[1]}")


def show(outcome: Outcome, display: Display) -> None:
    """Shows the tables of a recipe."""
    display.say(f"\n{outcome.recipe.title}")
    for column, rows in shown_tables(outcome):
        display.say(f"\n{column.title}: published → measured (difference) verdict")
        display.table(rows)
    if claims := claim_rows(outcome):
        display.table(claims)
    for note in notes_of(outcome):
        display.say(f"- {note}")


def listed() -> list[tuple[str, str]]:
    """All tables there are, with a line each."""
    from kinfed.recipes import names

    return [(name, load_recipe(name).title) for name in names()]
