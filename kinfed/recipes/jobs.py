"""The runs that cells need: each once, on shared clients, from where it was stopped."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kinfed.config import Config, make_population, to_toml
from kinfed.data import Population
from kinfed.errors import CheckpointError, KinfedError
from kinfed.progress import Display
from kinfed.recipes import Cell, Recipe, Wanted, digest, references
from kinfed.registry import as_file
from kinfed.runs import CHECKPOINT, CONFIG, SUMMARY, Given, Place, resume, start
from kinfed.runs.reader import Run

CLIENTS = ("seed", "data", "partition", "shift", "roles", "change")  # settings that a population depends on


@dataclass(frozen=True)
class Job:
    """One run that some cell needs."""

    config: Config
    said: str  # which cell

    @property
    def clients(self) -> str:
        """All that its clients depend on: jobs that share it have the same ones."""
        whole = self.config.resolve()
        return to_toml({key: whole[key] for key in CLIENTS if key in whole})


@dataclass
class Store:
    """The folder of all runs, and the clients of the last one: the next job mostly has the same."""

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)  # run folder -> why
    last: tuple[str, Population] | None = None

    def path(self, config: Config) -> Path:
        """Where the run of a config is: the same for all tables that need it."""
        return self.folder / "runs" / f"{as_file(config.method)}-{config.data.name}-{digest(config)}-seed{config.seed}"

    def has(self, config: Config) -> bool:
        """Whether the run of this config has ended."""
        return (self.path(config) / SUMMARY).exists()

    def run(self, config: Config) -> Run | None:
        """The run of this config, if it has ended."""
        return Run(self.path(config)) if self.has(config) else None

    def clients(self, job: Job) -> Population:
        """The clients of a job."""
        if self.last is None or self.last[0] != job.clients:
            self.last = None  # two populations at once may be too many
            self.last = (job.clients, make_population(job.config))
        return self.last[1]

    def do(self, job: Job, display: Display) -> KinfedError | None:
        """Takes a run to its end, from where it is; gives back why it failed, if it did."""
        path = self.path(job.config)
        try:
            if not self.resume(job, display):
                start(job.config, Place(path, force=True), display, Given(self.clients(job)))
            (path / CHECKPOINT).unlink(missing_ok=True)  # it is large, and this run needs no more of it
        except KinfedError as error:
            self.failed[path.name] = str(error)
            return error
        return None

    def resume(self, job: Job, display: Display) -> bool:
        """Whether a run that was stopped could be taken to its end."""
        path = self.path(job.config)
        if not (path / CONFIG).exists():
            return False
        try:
            resume(job.config, path, display, Given(self.clients(job)))
        except CheckpointError as error:  # it was damaged, or another version of kinfed wrote it
            display.say(f"begins again: {error}")
            return False
        return True


def jobs_of(planned: Sequence[tuple[Recipe, Sequence[Cell]]], wanted: Wanted) -> list[Job]:
    """All runs, each once; those on the same clients one after the other."""
    jobs: dict[tuple[str, int], Job] = {}
    for recipe, cells in planned:
        for cell in cells:
            for config in cell.configs(wanted.seeds) if not cell.missing else ():
                said = f"{recipe.name}: {cell.row.title}, {cell.column.title}, {' and '.join(cell.protocols)}"
                for each in (config, *references(recipe, config)):
                    jobs.setdefault((digest(each), each.seed), Job(each, f"{said}, seed {each.seed}"))
    order = {key: place for place, key in enumerate(dict.fromkeys(job.clients for job in jobs.values()))}
    return sorted(jobs.values(), key=lambda job: order[job.clients])


@contextmanager
def limit_threads(wanted: bool) -> Iterator[None]:
    """Inside it torch has one thread, if that is wanted: for small work several only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
