"""Comparisons: several methods on the same clients and seeds, run in turn or beside each other, resumed and read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kinfed.api.arguments import Text, change, give, to_path
from kinfed.api.one_run import RunResult, load_pandas, report, say_diagnoses
from kinfed.comparison import (
    Outcome,
    as_csv,
    comparison_table,
    headline,
    markdown_table,
    means_by_method,
    pairs_as_csv,
    runs_as_csv,
    win_matrix,
)
from kinfed.config import Config, build, find_method, make_population, read_toml
from kinfed.config.assembly import ConfigLike, DataLike, check_needs, configure, is_config, name_method, put_method
from kinfed.data.population import Population
from kinfed.errors import ConfigError, KinfedError
from kinfed.files import quote
from kinfed.method import Method
from kinfed.methods import title_of
from kinfed.progress import Display, as_html, as_markdown, as_text, choose_display, log_once
from kinfed.registry import as_file, refuse_code
from kinfed.runs import lifecycle
from kinfed.runs.jobs import Job, explain_failure, group_by_clients
from kinfed.runs.lifecycle import Given, Interrupted, Place, refuse_other, resume_command
from kinfed.runs.logs import COMPARISON, CONFIG, write_text
from kinfed.runs.parallel import AtOnce, run_jobs
from kinfed.runs.reader import Run, check_format, is_comparison, read_config
from kinfed.runs.writer import write_config
from kinfed.trackers import check_trackers

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods on the same clients and seeds."""

    path: Path
    runs: tuple[RunResult, ...]

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """How each run ended."""
        return [Outcome.of(each.run) for each in self.runs]

    @property
    def summary(self) -> dict[str, dict[str, float | None]]:
        """Method -> column of compare.csv -> mean over the seeds."""
        return means_by_method(self.outcomes)

    @property
    def table(self) -> list[list[str]]:
        """The table of `kinfed compare`: a header, then one row a method."""
        return comparison_table(self.outcomes)

    def to_frame(self) -> "DataFrame":
        """One row a run: method, seed, its summary, seconds."""
        rows = [{"method": o.method, "seed": o.seed, **o.summary, "seconds": o.seconds} for o in self.outcomes]
        frame: DataFrame = load_pandas().DataFrame(rows)
        return frame

    @property
    def headline(self) -> str:
        """Which method is best and by how much, by paired intervals; empty for one method."""
        return headline(self.outcomes)

    @property
    def wins(self) -> list[list[str]]:
        """For how many clients and seeds a method is better than another: a header, then one row a method."""
        return win_matrix(self.outcomes)

    def to_markdown(self) -> str:
        """The table in Markdown, the headline and the win matrix."""
        wins = as_markdown(self.wins) if self.wins else ""
        return "\n\n".join(part for part in (markdown_table(self.outcomes), self.headline, wins) if part)

    def report(self, out: Text | None = None, figures: Sequence[str] = ()) -> Path:
        """Writes the report of all runs; gives back the page."""
        return report(self.path, out=out, figures=figures)

    def __repr__(self) -> str:
        return f"comparison at {self.path}\n{as_text(self.table)}"

    def _repr_html_(self) -> str:
        return as_html(self.table)


@log_once()
def compare(
    methods: Sequence[str | Method[object]] | ConfigLike | None = None, /, data: DataLike | None = None, *,
    seeds: Sequence[int] | None = None, jobs: int | str = 1, out: Text | None = None, force: bool = False,
    resume: bool = False, quiet: bool = False, display: Display | None = None, **settings: object,
) -> Comparison:  # fmt: skip
    """Runs several methods on the same clients and seeds, and writes one folder with a run folder for each.

    `jobs` runs go on at once, each in a process of its own; "4x8" is four processes, in each of which eight runs train
    together on a GPU. Methods and data that are objects run one at a time. `settings` are those of `kinfed.run`, as in
    methods={"ifca": {"clusters": 2}}.
    """
    if "methods" in settings and not isinstance(settings["methods"], Mapping):  # compare(methods=["fedavg", "flt"])
        methods = cast("Sequence[str | Method[object]]", settings.pop("methods"))
    at_once = AtOnce.parse(jobs)
    several = () if methods is None or is_config(methods) else tuple(cast("Sequence[str | Method[object]]", methods))
    own = {name_method(each): each for each in several if isinstance(each, Method)}
    named = {"compare": [name_method(each) for each in several] or None, "seeds": None if seeds is None else [*seeds]}
    config = configure(None if several else cast("ConfigLike", methods), data, named | settings)
    given = give(None, data)
    display, place = (
        display or choose_display(quiet=quiet),
        Place(None if out is None else to_path(out), force, COMPARISON),
    )
    if place.out and is_comparison(place.out) and not force:
        if not resume:
            raise ConfigError(
                f"{place.out} already holds a comparison: go on with `kinfed resume {quote(place.out)}`, "
                "choose another --out, or replace it with --force"
            )
        return resume_comparison(
            place.out, display=display, config=config, population=given.population, own=own, jobs=at_once
        )
    check_comparison(config, given.population, own)
    folder = place.make(f"compare-{config.data.folder_name}")
    write_config(folder, config, COMPARISON)
    return run_all(config, folder, display, Objects(given.population, own), at_once, force=force)


@dataclass(frozen=True)
class Objects:
    """What Python gives a comparison as objects."""

    population: Population | None = None
    methods: Mapping[str, Method[object]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.population or self.methods)


def check_comparison(config: Config, population: Population | None, own: Mapping[str, Method[object]]) -> None:
    """Raises on bad input, before a folder is made."""
    clients = population or make_population(replace(config, seed=(config.seeds or (config.seed,))[0]))
    for name in config.compare:
        check_needs(put_method(replace(config, method=name), own.get(name)), clients, own.get(name))
    check_trackers(config.trackers)


@log_once()
def resume_comparison(
    folder: Text, *, rounds: int | None = None, device: str | None = None, quiet: bool = False,
    display: Display | None = None, config: Config | None = None, population: Population | None = None,
    own: Mapping[str, Method[object]] | None = None, trust: bool = False, jobs: int | str | AtOnce = 1,
    data_dir: Text | None = None,
) -> Comparison:  # fmt: skip
    """Takes a stopped comparison to its end; runs that ended are not run again. Trust is as in `resume`."""
    at_once = AtOnce.parse(jobs)
    path, display = to_path(folder, "folder"), display or choose_display(quiet=quiet)
    stored = read_config(path, COMPARISON, trust)
    wanted = change(config or stored, rounds, device, data_dir)
    refuse_other(stored.resolve(), wanted, f"the comparison at {path} has another config")
    write_config(path, wanted, COMPARISON)
    with refuse_code(f"{path / COMPARISON}", trust or config is not None):
        return run_all(wanted, path, display, Objects(population, own or {}), at_once)


def load_comparison(folder: Text, trust: bool = False) -> Comparison:
    """The comparison in a folder that `kinfed compare` or `kinfed.compare` wrote; missing runs are left out."""
    path = to_path(folder, "folder")
    check_format(path, COMPARISON)
    table = read_toml(path / COMPARISON)
    config = build(Config, {name: table[name] for name in ("compare", "seed", "seeds") if name in table}, "")
    seeds = config.seeds or (config.seed,)
    paths = [run_folder(path, replace(config, method=m, seed=seed)) for seed in seeds for m in config.compare]
    return Comparison(path, tuple(RunResult(each, trust=trust) for each in paths if (each / CONFIG).exists()))


def run_all(
    config: Config, folder: Path, display: Display, given: Objects, at_once: AtOnce, *, force: bool = False
) -> Comparison:
    """The comparison; runs that ended are read, stopped ones resume, the others start (all, if forced)."""
    wanted = [replace(config, method=name, seed=s) for s in config.seeds or (config.seed,) for name in config.compare]
    if at_once.runs > 1 and not given:
        results, failed = run_beside(wanted, folder, display, force, at_once)
    else:
        results, failed = run_in_turn(wanted, folder, display, given, force)
    comparison = Comparison(folder, tuple(results))
    if results:
        show_comparison(comparison, display)
    if failed:
        first, why = next(iter(failed.items()))
        then = resume_command(folder, wanted[0])
        raise KinfedError(f"{len(failed)} of {len(wanted)} runs failed, {first.name}: {why}; mend it, then: {then}")
    return comparison


def show_comparison(comparison: Comparison, display: Display) -> None:
    """Writes the tables of a comparison, and shows what came of it."""
    write_tables(comparison)
    display.table(comparison.table)
    if comparison.headline:
        display.say(comparison.headline)
    say_diagnoses(comparison.runs, display)
    display.say(f"written to {comparison.path}")


def write_tables(comparison: Comparison) -> None:
    """Writes a comparison's tables: by method, by run and by pair of methods."""
    made = {"compare.csv": as_csv, "runs.csv": runs_as_csv, "pairs.csv": pairs_as_csv}
    for name, make in made.items():
        write_text(comparison.path / name, make(comparison.outcomes))
    write_text(comparison.path / "compare.md", comparison.to_markdown() + "\n")


Ran = tuple[list[RunResult], dict[Path, str]]  # runs that ended; why others failed, by their folders


def run_in_turn(configs: Sequence[Config], folder: Path, display: Display, given: Objects, force: bool) -> Ran:
    """The runs of a comparison, one after the other; those that fail leave the others alone."""
    results, known, failed = [], given.population, {}
    seed = None if known is None else configs[0].seed
    with display.live():
        for config in configs:
            try:
                if known is None or (given.population is None and config.seed != seed):
                    known, seed = make_population(config), config.seed
                method = given.methods.get(config.method)
                results.append(run_one(put_method(config, method), folder, display, Given(known, method), force))
            except Exception as error:  # code of the user's own may raise anything, and other runs go on
                failed[run_folder(folder, config)] = why = explain_failure(error)
                display.say(f"{title_of(config.method)} seed {config.seed} failed: {why}")
    return results, failed


def run_beside(configs: Sequence[Config], folder: Path, display: Display, force: bool, at_once: AtOnce) -> Ran:
    """The runs of a comparison, several at once; those that fail leave the others alone."""
    paths = [run_folder(folder, config) for config in configs]
    todo = [
        Job(config, f"{title_of(config.method)}, seed {config.seed}", path, is_fresh=force)
        for config, path in zip(configs, paths, strict=True)
        if force or not has_ended(config, path, folder)
    ]
    try:
        failed = run_jobs(group_by_clients(todo), at_once, display)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; resume with: {resume_command(folder, configs[0])}") from None
    return [RunResult(path) for path in paths if path not in failed], failed


def run_one(config: Config, folder: Path, display: Display, given: Given, force: bool) -> RunResult:
    """One run of a comparison, at its end."""
    path = run_folder(folder, config)
    try:
        if force or not (path / CONFIG).exists():
            lifecycle.start(config, Place(path, force=True), display, given)
        elif not has_ended(config, path, folder):
            lifecycle.resume(config, path, display, given)
    except Interrupted:
        raise Interrupted(f"interrupted; resume with: {resume_command(folder, config)}") from None
    return RunResult(path, given)


def run_folder(folder: Path, config: Config) -> Path:
    """Where a run of a comparison is."""
    return folder / f"{as_file(config.method)}-seed{config.seed}"


def has_ended(config: Config, path: Path, folder: Path) -> bool:
    """Whether a run of a comparison is there with all its rounds; raises where it is of another config."""
    if not (path / CONFIG).exists():
        return False
    find_method(config.method)  # a folder may name what its comparison does
    stored = Run(path)
    refuse_other(stored.settings.resolve(), config, f"{path} is from another config than {folder / COMPARISON}")
    return stored.has_ended and stored.settings.rounds >= config.rounds
