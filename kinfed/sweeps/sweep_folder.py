"""A sweep in its folder: all runs are scored on held-out training samples, and the best point is tested.

    sweep.toml     what is varied over which config; the same command goes on from here
    runs/          a run of each point and seed, without test samples
    test/          a run of the best point of each method and of each seed, with all training samples, on test samples
    sweep.csv      one row a point; sweep.md: the same to read; runs.csv: one row a run; failed.csv: runs that failed
    sweep.svg      the metric against each parameter
    best.toml      the config of the best point, for `kinfed run`; best-METHOD.toml where methods are swept

Test samples decide nothing: only the points that were selected are ever scored on them.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from kinfed.comparison import Outcome, mean_and_spread
from kinfed.comparison.outcomes import COLUMNS, Column, columns_for
from kinfed.config import Config, Table, flatten, read, read_toml
from kinfed.errors import CheckpointError, ConfigError
from kinfed.runs.jobs import Job, group_by_clients
from kinfed.runs.lifecycle import MAY_DIFFER, refuse_other
from kinfed.runs.logs import SWEEP
from kinfed.runs.reader import Run, check_format
from kinfed.sweeps.space import Point, Space, name_points

LONGEST = 100  # characters of a folder's name
LEFT_OUT = (*MAY_DIFFER, "seed", "seeds")


@dataclass(frozen=True)
class Definition:
    """What a sweep runs."""

    space: Space
    seeds: tuple[int, ...] = (0,)
    draws: int = 0  # random points; 0: the grid
    share: float = 0.2  # of a client's training samples that it is scored on

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"--validation: wanted a share above 0 and below 1, got {self.share}")
        if self.draws < 0:
            raise ConfigError(f"--random: wanted how many points, at least 1, got {self.draws}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"--seeds: wanted every seed once, and at least one, got {list(self.seeds)}")

    @cached_property
    def points(self) -> list[Point]:
        return self.space.points(self.draws)

    @cached_property
    def configs(self) -> list[Config]:
        """The config of each point, with the first seed and all training samples."""
        found = []
        for point, name in zip(self.points, name_points(self.points), strict=True):
            try:
                found.append(replace(read(self.space.settings(point)), seed=self.seeds[0]))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from error
        return found

    def to_table(self) -> Table:
        """What sweep.toml holds."""
        own: Table = {"words": list(self.space.words), "seeds": list(self.seeds), "random": self.draws}
        return {"sweep": own | {"validation": self.share}, "base": self.space.base}

    @classmethod
    def of(cls, table: Table) -> "Definition":
        """The sweep that sweep.toml holds."""
        own, base = table.get("sweep"), table.get("base", {})
        if not isinstance(own, dict) or not isinstance(base, dict):
            raise CheckpointError(f"{SWEEP} is damaged: wanted the tables [sweep] and [base]")
        words, seeds = own.get("words", []), own.get("seeds", [0])
        draws, share = own.get("random", 0), own.get("validation", 0.2)
        return cls(Space(base, tuple(map(str, words))), tuple(map(int, seeds)), int(draws), float(share))

    def refuse_other(self, other: "Definition", folder: Path) -> None:
        """Raises unless the other varies the same config; what it varies, and its seeds, may be more or fewer."""
        before, now = (
            flatten(each.space.fixed) | {"--validation": each.share} for each in (other, self)
        )  # values that are swept are in the names of runs
        swept = {axis.key for each in (self, other) for axis in each.space.axes}
        differing = [
            key for key in before | now
            if before.get(key) != now.get(key) and key not in LEFT_OUT and key not in swept
        ]  # fmt: skip
        if differing:
            listed = "; ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differing)
            raise CheckpointError(
                f"the sweep at {folder} has another config: {listed}. Set them back, or choose another --out"
            )


@dataclass(frozen=True)
class Tried:
    """A point, its config, and its runs by seed."""

    name: str
    point: Point
    config: Config
    runs: tuple[Run, ...]  # those that have ended
    is_whole: bool  # all of them have

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """How its runs ended."""
        return [Outcome.of(run, self.name, self.point) for run in self.runs]


@dataclass(frozen=True)
class Sweep:
    """A sweep on disk."""

    path: Path
    definition: Definition

    @cached_property
    def tried(self) -> list[Tried]:
        """All points, with the runs on validation samples that have ended."""
        return list(self._collect("runs"))

    @cached_property
    def tested(self) -> list[Tried]:
        """The selected points, with their runs on test samples."""
        chosen = [tried.name for tried in self.selected]
        return [tried for tried in self._collect("test") if tried.name in chosen]

    def _collect(self, part: str) -> Iterator[Tried]:
        """All points with their ended runs of one part of the folder."""
        parts = zip(self.definition.points, self.definition.configs, strict=True)
        for (point, config), name in zip(parts, name_points(self.definition.points), strict=True):
            folders = [self.folder(part, replace(config, seed=seed), point) for seed in self.definition.seeds]
            runs = tuple(run for run in map(Run, folders) if run.has_ended)
            yield Tried(name, point, config, runs, len(runs) == len(folders))

    @cached_property
    def column(self) -> Column:
        """The main metric."""
        outcomes = [outcome for tried in self.tried for outcome in tried.outcomes]
        return columns_for(outcomes)[0] if outcomes else COLUMNS[0]

    def score(self, tried: Tried) -> float:
        """The mean over seeds on validation samples: the larger, the better."""
        mean = mean_and_spread(self.column, tried.outcomes)[0]
        return float("-inf") if mean is None or mean != mean else -mean if self.column.lower_is_better else mean

    @cached_property
    def selected(self) -> list[Tried]:
        """The best point of each method, the best method first, by validation samples alone."""
        best: dict[str, Tried] = {}
        for tried in self.tried:
            known = best.get(tried.config.method)
            if tried.is_whole and (known is None or self.score(tried) > self.score(known)):
                best[tried.config.method] = tried
        return sorted(best.values(), key=lambda tried: -self.score(tried))

    @property
    def best(self) -> Config | None:
        """The config of the best point; None where no point has all its runs."""
        return self.selected[0].config if self.selected else None

    def folder(self, part: str, config: Config, point: Point) -> Path:
        """Where the run of a point and a seed is."""
        return self.path / part / f"{name_folder(point)}-seed{config.seed}"

    def jobs(self, part: str, chosen: Sequence[Tried]) -> list[Job]:
        """The runs of these points that have not ended."""
        share = self.definition.share if part == "runs" else 0.0
        jobs = []
        for tried in chosen:
            for seed in self.definition.seeds:
                data = replace(tried.config.data, selection=share)
                config = replace(tried.config, seed=seed, data=data)
                path = self.folder(part, config, tried.point)
                if not has_ended(path, config):
                    said = f"{tried.name}, seed {seed}{', tested' * (part == 'test')}"
                    jobs.append(Job(config, said, path, keeps_checkpoint=part == "test"))
        return group_by_clients(jobs)


def name_folder(point: Point) -> str:
    """The name of a point's folders: its settings, or a digest where they are long."""
    text = json.dumps(point, sort_keys=True, default=str)
    plain = ",".join(f"{key}={value}" for key, value in point.items())
    name = re.sub(r"[^\w.=,+-]", "_", plain)
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    return name if name == plain and len(name) <= LONGEST else f"{name[:LONGEST]}-{digest}"


def has_ended(path: Path, config: Config) -> bool:
    """Whether the run of this config is there; raises where that of another one is."""
    run = Run(path)
    if not run.has_ended:
        return False
    refuse_other(run.settings.resolve(), config, f"{path} is from another config")
    return True


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep."""
    return (folder / SWEEP).exists()


def read_definition(folder: Path) -> Definition:
    """What the sweep in a folder runs."""
    check_format(folder, SWEEP)
    return Definition.of(read_toml(folder / SWEEP))
