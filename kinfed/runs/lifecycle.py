"""The life of a run: where it is written, how it starts, resumes, ends, fails or is interrupted."""

import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import torch

from kinfed import checkpoint
from kinfed.config import Config, assemble, check_encoders, flatten, list_own_parts, read_toml
from kinfed.config.assembly import OWN
from kinfed.config.schema import Table
from kinfed.data.population import Population
from kinfed.engines import NODES
from kinfed.errors import CheckpointError, ConfigError, FileError, OutOfMemory
from kinfed.experiment import Experiment
from kinfed.files import begins_with, clear_unfinished, lock, refuse_foreign
from kinfed.method import Method
from kinfed.methods import title_of
from kinfed.progress import Display, Watcher, forward_log
from kinfed.registry import as_file
from kinfed.runs.logs import (
    CHECKPOINT,
    COMPARED,
    COMPARISON,
    CONFIG,
    FILES,
    STATUS,
    STATUS_BEGINS,
    SUMMARY,
    SWEEP,
    TRACKED,
    EventLog,
    name_resume,
    read_format,
)
from kinfed.runs.writer import RunWriter, refuse_damaged, write_config
from kinfed.threads import Listeners, SharedChange
from kinfed.trackers import check_trackers, make_trackers

MAY_DIFFER = (
    "data.dir",
    "engine.device",
    "engine.block",
    "engine.timeout",
    "engine.attempts",
    "evaluation.signatures",
    "trackers",
)


class Interrupted(KeyboardInterrupt):
    """The user interrupted a run; the message says how to resume it."""


@dataclass(frozen=True)
class Place:
    """Where a run or a comparison is written."""

    out: Path | None = None  # None: a new folder under runs/
    force: bool = False  # replace what is there
    kind: str = ""  # what is written: a run, or COMPARISON

    def check(self) -> None:
        """Raises if something is there that must not be replaced; before any work is done."""
        if self.out:
            refuse_taken(self.out, self.force, self.kind)

    def make(self, stem: str) -> Path:
        """The folder, ready to be written to."""
        return make_folder(self.out, self.force, self.kind) if self.out else free_folder(Path("runs") / stem)


@dataclass(frozen=True)
class Given:
    """What Python gives as objects; None: the config's."""

    population: Population | None = None
    method: Method[object] | None = None


CONFIGURED = Given()


def start(config: Config, place: Place, display: Display, given: Given = CONFIGURED) -> Path:
    """Runs from the first round on; gives back the folder."""
    with explain_full_gpu():
        experiment = assemble(config, given.population, given.method)  # bad input shows before a folder is made
        check_encoders(experiment.method, experiment.fed.population)
    check_trackers(config.trackers)
    path = place.make(f"{as_file(config.method)}-{config.data.folder_name}-seed{config.seed}")
    return conduct(config, path, display, experiment, resume=False)


def resume(config: Config, path: Path, display: Display, given: Given = CONFIGURED) -> Path:
    """Runs from the checkpoint on, or from the start if there is none yet."""
    if (path / STATUS).exists():
        raise CheckpointError(
            f"the run at {path} is of a deployment, whose clients only its server reaches: go on with "
            f"`{name_resume(path)}`"
        )
    resuming = can_resume(path, config)
    with explain_full_gpu():
        experiment = assemble(config, given.population, given.method)
    return conduct(config, path, display, experiment, resume=resuming)


def conduct(config: Config, path: Path, display: Display, experiment: Experiment[object], resume: bool) -> Path:
    """Takes an experiment to its end, observed by its folder and the display; no other process may write the folder."""
    refuse_links(path)
    with hold(path):
        return conduct_held(config, path, display, experiment, resume)


def conduct_held(config: Config, path: Path, display: Display, experiment: Experiment[object], resume: bool) -> Path:
    """The same where the caller holds the folder."""
    if resume:
        experiment.check_checkpoint(path / CHECKPOINT)  # a refusal leaves all files as they are
    clear_unfinished(path)
    write_config(path, config)
    (path / SUMMARY).unlink(missing_ok=True)
    experiment.fed.settle(path)
    about: dict[str, str | int] = {"method": config.method, "dataset": config.data.name, "seed": config.seed}
    writer = RunWriter(path, experiment.fed, about | {"rounds": config.rounds}, metric=experiment.metric)
    watcher = display.watch(f"{title_of(config.method)} seed {config.seed}")
    experiment.attach((writer, watcher, *make_trackers(config, path)), path / CHECKPOINT)
    writer.events.repair()
    writer.events.note("resumed" if resume else "started", device=str(experiment.fed.device))
    try:
        with (
            NoteEnd(writer.events, resume_command(path, config)),
            explain_full_gpu(),
            forward_warnings(writer.events, watcher),
        ):
            writer.finish(experiment, experiment.run(resume=resume))
    finally:
        experiment.fed.close()
    return path


@dataclass(frozen=True)
class NoteEnd:
    """Notes how a run ended other than well; an interrupt says how to resume."""

    events: EventLog
    resume_with: str  # the command

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.note("interrupted")
            raise Interrupted(f"interrupted; resume with: {self.resume_with}") from None
        if error is not None:
            self.note("failed", message=" ".join(str(error).split()) or type(error).__name__)
        if isinstance(error, FileError):
            raise FileError(f"{error}; make room or give access, then resume with: {self.resume_with}") from error

    def note(self, event: str, **details: str) -> None:
        """Adds an event, unless the disk is full."""
        with suppress(FileError):
            self.events.note(event, **details)


# What CUDA's libraries say where they find no memory for themselves; all but the first have other causes, too.
NO_WORKSPACE = ("_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED", "CUSOLVER_STATUS_INTERNAL_ERROR",
                "CUSOLVER_STATUS_EXECUTION_FAILED")  # fmt: skip
LITTLE = 2**30  # bytes: less than this is free on a GPU that others fill


def lacks_workspace(said: str) -> bool:
    """Whether one of CUDA's libraries failed for want of memory: it says so, or there is little left."""
    if NO_WORKSPACE[0] in said:
        return True
    return any(status in said for status in NO_WORKSPACE) and torch.cuda.mem_get_info()[0] < LITTLE


@contextmanager
def explain_full_gpu() -> Iterator[None]:
    """Inside it a GPU that is full is an error in one line."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not lacks_workspace(str(error)):
            raise
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        more = f", {asked[1]} more were asked for" if asked else ""
        raise OutOfMemory(f"GPU memory is full{more}: let fewer runs share it, or set engine.device=cpu") from None


@dataclass(frozen=True)
class WarningLog:
    """The warnings of a run: each text is an event once."""

    events: EventLog
    known: set[str] = field(default_factory=set)

    def note(self, text: str) -> bool:
        """Whether it is new."""
        if text in self.known:
            return False
        self.known.add(text)
        self.events.note("warning", message=text)
        return True


@contextmanager
def show_warnings() -> Iterator[None]:
    """Inside it warnings are one line on standard error, where they are new to a run that they are of."""

    def warn(message: Warning | str, *where: object, **more: object) -> None:
        text = " ".join(str(message).split())
        if any([log.note(text) for log in WARNING_LISTENERS.here()]):
            print(f"warning: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UserWarning)  # "default": the first of several runs alone
        warnings.showwarning = warn
        yield


WARNING_LISTENERS: Listeners[WarningLog] = Listeners()
SHOWN = SharedChange(show_warnings)


@contextmanager
def forward_warnings(events: EventLog, watcher: Watcher) -> Iterator[None]:
    """Inside it warnings are one line on standard error and an event each; what kinfed logs goes to the watcher."""
    with forward_log(watcher.message), WARNING_LISTENERS.add(WarningLog(events)), SHOWN.hold():
        yield


def make_folder(wanted: Path, force: bool, kind: str) -> Path:
    """The folder, empty of any earlier run; one that holds a run is refused unless forced."""
    refuse_taken(wanted, force, kind)
    wanted.mkdir(parents=True, exist_ok=True)
    with hold(wanted):
        for inner in (NODES, *TRACKED):
            shutil.rmtree(wanted / inner, ignore_errors=True)
        for name in reversed(FILES):  # last of all the config, which says whose they are
            (wanted / name).unlink(missing_ok=True)
    return wanted


def refuse_links(folder: Path) -> None:
    """Raises where a file of the run is a link: to write it would change a file somewhere else."""
    for name in (*FILES, *TRACKED, NODES, ".lock"):
        if (folder / name).is_symlink():
            raise CheckpointError(f"{folder / name} is a link, wanted a file: replace it by what it leads to")


def resume_command(folder: Path, config: Config) -> str:
    """The command that resumes a run or a comparison; one of the user's own code says that it is trusted."""
    is_own = any(not name.startswith(OWN) for name in list_own_parts(config.resolve()))
    return name_resume(folder, trust=is_own)


def hold(folder: Path) -> AbstractContextManager[None]:
    """Inside it no other process writes this run; raises if another process does."""
    busy = f"another process is at work on the run at {folder}: let it end, stop it, or choose another folder"
    return lock(folder / ".lock", busy)


def refuse_taken(folder: Path, force: bool, kind: str) -> None:
    """Raises if a run is there already, or a comparison or a sweep, whose tables a run would stand among.

    And where files have names of a run's without being a run's: it would remove them.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose another --out for the run's folder")
    if kind == COMPARISON and not read_format(folder / COMPARISON):
        refuse_foreign(folder, COMPARED, "the comparison")
    for name, held in ((COMPARISON, "comparison"), (SWEEP, "sweep")):
        if (folder / name).exists() and not (force and name == kind):
            raise ConfigError(f"{folder} already holds a {held}: choose another --out")
    refuse_unknown_files(folder)
    if any((folder / name).exists() for name in ("rounds.csv", CHECKPOINT, SUMMARY)) and not force:
        raise ConfigError(
            f"{folder} already holds a run: go on with `{name_resume(folder)}`, choose another --out, "
            "or replace it with --force"
        )


def refuse_unknown_files(folder: Path) -> None:
    """Raises where files have names of a run's in a folder whose config no run wrote."""
    if not read_format(folder / CONFIG):
        is_waiting = begins_with(folder / STATUS, STATUS_BEGINS)  # a deployed run that has not begun
        refuse_foreign(folder, [n for n in (*FILES, NODES, *TRACKED) if n != STATUS or not is_waiting], "the run")


def free_folder(stem: Path) -> Path:
    """The folder itself if it is not there yet, else the first free of stem-2, stem-3, …"""
    number = 1
    while True:
        folder = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def can_resume(folder: Path, config: Config) -> bool:
    """Whether there is a checkpoint to resume from; raises if it belongs to another config.

    A run that was stopped before its first checkpoint has to start again; one that ended must have its checkpoint.
    """
    if not (folder / CHECKPOINT).exists() and not (folder / SUMMARY).exists():
        return False
    refuse_damaged(folder, read_round(folder, config))
    checkpoint.check(folder / CHECKPOINT)
    return True


def refuse_begun(folder: Path, config: Config) -> None:
    """Raises where a run of another config was begun in the folder: this one would replace its tables."""
    if (folder / CONFIG).exists():
        refuse_other(
            read_toml(folder / CONFIG), config, f"{folder} holds a run of another config, without a checkpoint"
        )


def read_round(folder: Path, config: Config) -> int:
    """The rounds that a run's checkpoint has behind it."""
    done = read_about(folder, config).get("round")
    if not isinstance(done, int) or not 1 <= done <= config.rounds:
        raise CheckpointError(f"{folder / CHECKPOINT} is of round {done!r}, wanted one of 1..{config.rounds}")
    return done


def read_about(folder: Path, config: Config) -> dict[str, object]:
    """The `about` of a run's checkpoint; raises if it belongs to another config."""
    about = checkpoint.read_about(folder / CHECKPOINT)
    saved = about.get("config") if isinstance(about, dict) else None
    if not isinstance(saved, dict):
        raise CheckpointError(f"{folder / CHECKPOINT} does not say which config it is from; start the run again")
    refuse_other(saved, config, f"{folder / CHECKPOINT} is from another config")
    return about


def refuse_other(saved: Table, config: Config, what: str) -> None:
    """Raises unless the config differs from the saved one only where a run may change its mind."""
    before, now = flatten(saved), flatten(config.resolve())
    differing = [key for key in before | now if before.get(key) != now.get(key) and key not in MAY_DIFFER]
    rounds = before.get("rounds")
    if "rounds" in differing and isinstance(rounds, int) and rounds < config.rounds:
        differing.remove("rounds")
    if differing:
        listed = "; ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differing)
        raise CheckpointError(f"{what}: {listed}. Set them back, or start a new run")
