"""Where the runs of recipes are, and which of them are wanted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kinfed.config import Config
from kinfed.recipes import Cell, Recipe, Wanted, digest, references
from kinfed.registry import as_file
from kinfed.runs import SUMMARY
from kinfed.runs.parallel import Job, group_by_clients
from kinfed.runs.reader import Run


@dataclass
class Store:
    """The folder of all runs."""

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)  # run folder -> why

    def path(self, config: Config) -> Path:
        """Where the run of a config is: the same for all tables that need it."""
        return self.folder / "runs" / f"{as_file(config.method)}-{config.data.name}-{digest(config)}-seed{config.seed}"

    def has(self, config: Config) -> bool:
        """Whether the run of this config has ended."""
        return (self.path(config) / SUMMARY).exists()

    def run(self, config: Config) -> Run | None:
        """The run of this config, if it has ended."""
        return Run(self.path(config)) if self.has(config) else None


def jobs_of(planned: Sequence[tuple[Recipe, Sequence[Cell]]], wanted: Wanted, store: Store) -> list[Job]:
    """All runs, each once; those on the same clients one after the other."""
    jobs: dict[tuple[str, int], Job] = {}
    for recipe, cells in planned:
        for cell in cells:
            for config in cell.configs(wanted.seeds) if not cell.missing else ():
                said = f"{recipe.name}: {cell.row.title}, {cell.column.title}, {' and '.join(cell.protocols)}"
                for each in (config, *references(recipe, config)):
                    job = Job(each, f"{said}, seed {each.seed}", store.path(each), keeps_checkpoint=False)
                    jobs.setdefault((digest(each), each.seed), job)
    return group_by_clients(list(jobs.values()))
