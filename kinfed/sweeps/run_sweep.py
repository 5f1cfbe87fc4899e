"""A sweep from its command to its end: checked, run, selected, tested, written."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kinfed.checkpoint import FORMAT
from kinfed.config import DEMO, Table, make_population, read_base, to_toml
from kinfed.config.assembly import ConfigLike, check_needs, configure
from kinfed.errors import ConfigError, KinfedError
from kinfed.files import quote
from kinfed.processes import Spawned
from kinfed.progress import Display, Silence, choose_display, log_once
from kinfed.registry import refuse_code
from kinfed.runs.jobs import Job
from kinfed.runs.lifecycle import Interrupted, free_folder
from kinfed.runs.logs import SWEEP, write_text
from kinfed.runs.parallel import AtOnce, Workers
from kinfed.sweeps.outcome_files import show_sweep, write_sweep
from kinfed.sweeps.space import Space
from kinfed.sweeps.sweep_folder import Definition, Sweep, is_sweep, read_definition
from kinfed.trackers import check_trackers


def sweep(
    config: ConfigLike | str | None = None, over: Mapping[str, object] | Sequence[str] = (), *,
    seeds: Sequence[int] | None = None, random: int = 0, validation: float = 0.2, jobs: int | str = 1,
    out: Path | str | None = None, quiet: bool = False, display: Display | None = None, **settings: object,
) -> Sweep:  # fmt: skip
    """Runs a config, or a method by name, with all points of a grid or of a random search, and tests the best.

    `over` is {"training.lr": [0.01, 0.1]}, or {"training.lr": "0.001..0.1"} with `random` points; or words as on the
    command line. A sweep in `out` goes on; runs that ended are kept.
    """
    at_once = AtOnce.parse(jobs)
    words = to_words(over) if isinstance(over, Mapping) else tuple(over)
    base = configure(config, None, settings).resolve() if config is not None or settings else read_base(DEMO, words)
    chosen = tuple(seeds) if seeds is not None else find_seeds(base)
    definition = Definition(Space(base, words), chosen, random, validation)
    display = display or choose_display(quiet=quiet)
    folder = find_folder(definition, Path(out) if out else None)
    return run_sweep(Sweep(folder, definition), display, at_once)


def to_words(over: Mapping[str, object]) -> tuple[str, ...]:
    """The words of a mapping of keys to values, or to a range."""
    return tuple(
        f"{key}={value}" if isinstance(value, str) else f"{key}={','.join(map(to_word, as_list(value)))}"
        for key, value in over.items()
    )


def to_word(value: object) -> str:
    """A value as TOML has it."""
    return json.dumps(value)


def as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, Sequence) else [value]


def find_seeds(table: Table) -> tuple[int, ...]:
    """The seeds of a config's table."""
    seeds, seed = table.get("seeds"), table.get("seed", 0)
    return tuple(seeds) if isinstance(seeds, list) and seeds else (int(str(seed)),)


def resume_sweep(
    folder: Path, *, jobs: int | str | AtOnce = 1, display: Display | None = None, trust: bool = False,
    device: str | None = None, data_dir: Path | str | None = None,
) -> Sweep:  # fmt: skip
    """Takes a stopped sweep to its end, on another device and with data elsewhere where these are given.

    Only with `trust` its config may import code.
    """
    at_once = AtOnce.parse(jobs)
    where = {"engine.device": device, "data.dir": str(Path(data_dir).absolute()) if data_dir else None}
    found = Sweep(folder, set_words(read_definition(folder), {key: value for key, value in where.items() if value}))
    with refuse_code(f"{folder / SWEEP}", trust):
        return run_sweep(found, display or choose_display(), at_once)


def set_words(definition: Definition, settings: Mapping[str, str]) -> Definition:
    """The definition with these settings for every run."""
    kept = (word for word in definition.space.words if word.partition("=")[0] not in settings)
    given = to_words({key: [value] for key, value in settings.items()})
    return replace(definition, space=replace(definition.space, words=(*kept, *given)))


def find_folder(definition: Definition, out: Path | None) -> Path:
    """The folder of a sweep: `out`, that of the same sweep under runs/, or a new one there."""
    if out is not None:
        if is_sweep(out):
            definition.refuse_other(read_definition(out), out)
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} is there and holds no sweep: choose another --out")
        return out
    stem = Path("runs") / f"sweep-{definition.configs[0].data.folder_name}"
    for folder in sorted(stem.parent.glob(f"{stem.name}*")):
        if is_sweep(folder) and read_definition(folder) == definition:
            return folder
    return free_folder(stem)


def check_sweep(definition: Definition) -> None:
    """Raises where some run could not start, or not end, for want of something: data, encoders, packages."""
    clients = {}
    for config in definition.configs:
        scored = replace(config, data=replace(config.data, selection=definition.share))
        key = Job(scored, "", Path()).clients
        if key not in clients:
            clients = {key: make_population(scored)}  # no more than one at a time
        check_needs(scored, clients[key])
        check_trackers(config.trackers)


@log_once()
def run_sweep(found: Sweep, display: Display, at_once: AtOnce, early: Sequence[Spawned] = ()) -> Sweep:
    """Takes all runs of a sweep to their end, tests the best, writes and shows what came of it.

    `early` are processes that have started already.
    """
    todo = found.jobs("runs", found.tried)
    with Workers(at_once, early=list(early)) as workers:  # those of the first runs do the last ones too
        workers.prepare(todo)
        check_sweep(found.definition)
        failed = run_points(found, todo, workers, display)
    found = Sweep(found.path, found.definition)
    show_sweep(found, display)
    if failed:
        first, why = next(iter(failed.items()))
        runs = f"{len(failed)} run{'s' * (len(failed) > 1)}"
        raise KinfedError(f"{runs} failed, listed in {found.path / 'failed.csv'}; {first.name}: {why}")
    return found


def run_points(found: Sweep, todo: Sequence[Job], workers: Workers, display: Display) -> dict[Path, str]:
    """Runs all points, then the best on test samples, and writes what came of it; gives back why runs failed."""
    found.path.mkdir(parents=True, exist_ok=True)
    write_text(found.path / SWEEP, f"# kinfed run, format {FORMAT}: a sweep\n" + to_toml(found.definition.to_table()))
    failed: dict[Path, str] = {}
    points, whole = len(found.definition.points), len(found.definition.points) * len(found.definition.seeds)
    try:
        display.say(f"{points} points, {whole} runs, {whole - len(todo)} of them done before; all in {found.path}")
        failed |= workers.run(todo, Silence(display.say))
        found = Sweep(found.path, found.definition)
        failed |= workers.run(found.jobs("test", found.selected), Silence(display.say))
    except KeyboardInterrupt:
        workers.close()
        raise Interrupted(
            f"interrupted; the same command, or kinfed resume {quote(found.path)}, goes on from here"
        ) from None
    finally:
        write_sweep(Sweep(found.path, found.definition), failed)
    return failed
