"""The reader of run folders: a run and its files (`run_tables` reads tables); what is missing is None or empty."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from kinfed.checkpoint import FORMAT, explain_format
from kinfed.config import Config, flatten, load_config, read_toml
from kinfed.config.schema import Table, build
from kinfed.errors import CheckpointError, FileError, KinfedError
from kinfed.experiment import Summary
from kinfed.files import Arrays, read_arrays, refuse_device, refuse_large
from kinfed.quality import ACCURACY, Metric
from kinfed.registry import refuse_code
from kinfed.runs.array_checks import FITS
from kinfed.runs.logs import (
    CHECKPOINT,
    COMPARISON,
    CONFIG,
    FILES,
    SUMMARY,
    SWEEP,
    TASK,
    name_resume,
    read_format,
)
from kinfed.runs.run_tables import (
    BYTES,
    Columns,
    History,
    Numbers,
    Whole,
    check_growth,
    read_clusters,
    read_history,
    read_json,
    read_labels,
    read_last_clients,
    read_rounds,
    read_summary,
    read_table,
)

PARTS = (
    (CONFIG, "method"), ("clusters.csv", "clusters"), ("clients.csv", "roles"), ("clients.csv", "true_clusters"),
    ("labels.csv", "labels"), ("ledger.csv", "ledger"), ("ledger_clients.csv", "client_ledger"),
    ("timing.csv", "timing"), (SUMMARY, "summary"),
)  # fmt: skip
TRAINS = ("trains", "late", "leaves")  # roles whose scores the means are of; not "too late"


@dataclass(frozen=True)
class Run:
    """One run; files are read when they are first asked for; only with `trust` its config may import code."""

    path: Path
    trust: bool = False
    machine_seconds: float | None = None  # that it took of a machine which it shared; None: not known

    @cached_property
    def config(self) -> Table:
        """All settings, as the run wrote them."""
        check_format(self.path)
        return read_toml(self.path / CONFIG)

    @cached_property
    def settings(self) -> Config:
        """All settings, typed."""
        return read_config(self.path, trust=self.trust)

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def seed(self) -> int:
        return int(str(self.config.get("seed", 0)))

    @property
    def place(self) -> int:
        """Where its method comes in the comparison it is part of."""
        compared = self.config.get("compare", [])
        methods = compared if isinstance(compared, list) else []
        return [*methods, self.method].index(self.method)

    @cached_property
    def rounds(self) -> Columns:
        """Metrics and bytes by round."""
        return read_rounds(self.path / "rounds.csv", self.metric)

    @cached_property
    def task(self) -> Table:
        """What task.json says: the main metric and the names of the classes; empty where it is not there."""
        return read_json(self.path / TASK) if (self.path / TASK).exists() else {}

    @cached_property
    def metric(self) -> Metric:
        """The main metric."""
        return build(Metric, self.task["metric"], TASK) if "metric" in self.task else ACCURACY

    @property
    def own_metrics(self) -> tuple[str, ...]:
        """The names of the metrics that the user added."""
        paths = flatten(self.config).get("task.metrics", [])
        return tuple(str(path).partition(":")[2] for path in paths) if isinstance(paths, list) else ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, where they are known."""
        return self._names("class_names")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns of a table that samples are made of, where they are known."""
        return self._names("feature_names")

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the first clients, where they are known."""
        return self._names("client_names")

    def name_client(self, client: int) -> str:
        """The number of a client, and its name where it has one."""
        names = self.client_names
        return f"{client} ({names[client]})" if client < len(names) else str(client)

    @property
    def main(self) -> Numbers:
        """The main metric of each row of `rounds`."""
        return self.rounds[self.metric.name]

    @cached_property
    def clients(self) -> Columns:
        """Every client at the last evaluated round."""
        return read_last_clients(self.path / "clients.csv", self.metric)

    @cached_property
    def clusters(self) -> list[tuple[int, Whole]]:
        """The clusters whenever they changed: the round, and the cluster of each client (-1: none)."""
        return read_clusters(self.path / "clusters.csv")

    @cached_property
    def labels(self) -> Whole | None:
        """How many training samples of each label each client has ([clients, labels])."""
        held = read_labels(self.path / "labels.csv")
        return None if held is None else np.pad(held, ((0, max(0, self.count - len(held))), (0, 0)))

    @cached_property
    def ledger(self) -> Columns:
        """Bytes by round and task."""
        table = read_table(self.path / "ledger.csv", ("round", "task", "clients", *BYTES))
        if len(table):
            self._check_last_round(table)
            table.check_amounts("clients", *BYTES)
        return table

    @cached_property
    def client_ledger(self) -> Columns:
        """Bytes by task and client."""
        table = read_table(self.path / "ledger_clients.csv", ("task", "client", *BYTES))
        if len(table):
            table.whole("client", 0)
            table.check_amounts(*BYTES)
        return table

    @cached_property
    def timing(self) -> Columns:
        """Seconds without evaluation by round; of the clients' tasks, unless an earlier version wrote it."""
        table = read_table(self.path / "timing.csv", ("round", "seconds"))
        if len(table):
            check_growth(self._check_last_round(table))
        table.check_amounts(*(name for name in ("seconds", "clients") if name in table.numbers))
        return table

    @cached_property
    def seconds(self) -> float:
        """How long it took, without evaluation."""
        return float(self.timing["seconds"].sum()) if len(self.timing) else 0.0

    def seconds_until(self, round: int) -> float:
        """How long it took to the end of this round, without evaluation."""
        table = self.timing
        return float(table["seconds"][table["round"] <= round].sum()) if len(table) else 0.0

    def server_seconds_until(self, round: int) -> float | None:
        """How much of that the server's own work took; None of a run that an earlier version wrote."""
        table = self.timing
        if not len(table) or "clients" not in table.numbers:
            return None
        return float((table["seconds"] - table["clients"])[table["round"] <= round].sum())

    @cached_property
    def summary(self) -> Summary:
        """The last metrics and the cost; of a run that has not ended, those of its last evaluated round."""
        if (self.path / SUMMARY).exists():
            return read_summary(self.path / SUMMARY, self.metric)
        last = int(np.flatnonzero(~np.isnan(self.main))[-1])
        numbers = {name: float(column[last]) for name, column in self.rounds.numbers.items() if name != "round"}
        return {name: None if np.isnan(value) else value for name, value in numbers.items()}

    @property
    def diagnosis(self) -> str:
        """What the method found of the clients, in words; empty where it says nothing, or the run has not ended."""
        path = self.path / SUMMARY
        return str(read_json(path).get("diagnosis", "")) if path.exists() else ""

    def final(self, metric: str) -> float | None:
        """A metric at the end; None where it was not measured."""
        value = self.summary.get(metric)
        return None if value is None else float(value)

    def after(self, round: int, column: str) -> float | None:
        """A number of the row of this round; None where it was not measured."""
        found = self.rounds[column][self.rounds["round"] == round]
        return float(found[0]) if len(found) and not np.isnan(found[0]) else None

    def first_round_at(self, target: float) -> int | None:
        """The first evaluated round whose mean over clients reaches the target."""
        reached = np.flatnonzero(self.main <= target if self.metric.lower_is_better else self.main >= target)
        return int(self.rounds["round"][reached[0]]) if len(reached) else None

    @property
    def has_ended(self) -> bool:
        return (self.path / SUMMARY).exists()

    @cached_property
    def count(self) -> int:
        """How many clients there are."""
        scored = int(self.clients.whole("client", 0).max()) + 1 if len(self.clients) else 0
        if self.clusters and scored > len(self.clusters[-1][1]):
            raise ValueError(f"client {scored - 1} is not in clusters.csv")
        return max(scored, len(self.clusters[-1][1]) if self.clusters else 0)

    @cached_property
    def found(self) -> Whole | None:
        """The cluster that the method found for each client (-1: none); None if it looks for no clusters."""
        return self.clusters[-1][1] if self.clusters else None

    @cached_property
    def true_clusters(self) -> Whole | None:
        """The ground-truth cluster of each client (-1: none); None if the data have none."""
        return self._by_client("true_cluster")

    @cached_property
    def scores(self) -> Numbers:
        """Every client's main metric at the last evaluation; NaN for a client that was not scored."""
        every = np.full(self.count, np.nan)
        every[self.clients.whole("client", 0)] = self.clients[self.metric.name]
        return every

    @cached_property
    def roles(self) -> list[str]:
        """Every client's role in a word or two."""
        named = dict(zip(self.clients.whole("client").tolist(), self.clients.text["role"], strict=True))
        return [named.get(client, "") for client in range(self.count)]

    @property
    def scores_in_training(self) -> Numbers:
        """Every client's main metric at the last evaluation; NaN for one that does not train, or was not scored."""
        return np.where([role in TRAINS for role in self.roles], self.scores, np.nan)

    @property
    def training_scores(self) -> Numbers:
        """The main metric of the clients that train, which means and deciles are of."""
        found: Numbers = self.scores_in_training[~np.isnan(self.scores_in_training)]
        return found

    @cached_property
    def history(self) -> History:
        """Every client's main metric and loss at every evaluated round."""
        path = self.path / "clients.csv"
        try:
            every = read_history(path, self.metric, self.count)
            known = np.isin(every.rounds, self.rounds["round"])  # of a run that goes on one may not be there yet
            if self.has_ended and not known.all():
                raise ValueError(f"round {every.rounds[~known][0]} is not in rounds.csv")
        except (ValueError, KeyError, csv.Error) as error:
            raise CheckpointError(f"{path} is missing, damaged or incomplete: {error}") from None
        return History(every.rounds[known], every.scores[known], every.losses[known])

    def arrays(self, name: str) -> Arrays | None:
        """The arrays of NAME.npz."""
        path = self.path / f"{name}.npz"
        try:
            arrays = read_arrays(path) if path.exists() else None
            if arrays is not None and name in FITS and not FITS[name](arrays, self.count):
                shapes = ", ".join(f"{key} {array.dtype} {list(array.shape)}" for key, array in arrays.items())
                raise FileError(f"it does not fit the run's {self.count} clients, got {shapes or 'nothing'}")
            return arrays
        except (FileError, KeyError) as error:
            raise CheckpointError(f"{path} is damaged or incomplete: {error}") from None

    def _names(self, key: str) -> tuple[str, ...]:
        names = self.task.get(key, [])
        return tuple(map(str, names)) if isinstance(names, list) else ()

    def _check_last_round(self, table: Columns) -> Whole:
        """The rounds of a table; ValueError where the run that has ended had no such round."""
        found = table.whole("round", 0)
        if self.has_ended and len(self.rounds) and found.max() > self.rounds["round"][-1]:
            raise ValueError(f"round {found.max()} is not in rounds.csv")
        return found

    def _by_client(self, name: str) -> Whole | None:
        every = np.full(self.count, -1, dtype=np.int64)
        every[self.clients.whole("client", 0)] = self.clients.whole(name)
        return every if (every >= 0).any() else None


def read_config(folder: Path, name: str = CONFIG, trust: bool = False) -> Config:
    """The config that a run's folder was written with; only with `trust` is code imported that it names."""
    check_format(folder, name)
    with refuse_code(f"{folder / name}", trust):
        return load_config(folder / name)


def check_format(folder: Path, name: str = CONFIG) -> None:
    """Raises unless this version wrote the folder, and its files are files."""
    if not (folder / name).is_file():
        raise CheckpointError(f"no run at {folder}: wanted a folder of `kinfed run`, `compare` or `sweep`")
    if int(found := read_format(folder / name) or "1") != FORMAT:
        raise CheckpointError(explain_format(folder, found))
    for each in FILES:
        try:
            refuse_device(folder / each)
            if each != CHECKPOINT:  # whose header says how large it is
                refuse_large(folder / each)
        except FileError as error:
            raise CheckpointError(f"{folder / each} cannot be read: {error}") from None


def is_comparison(folder: Path) -> bool:
    """Whether a folder holds a comparison."""
    return (folder / COMPARISON).exists()


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs at these folders; a comparison's folder stands for all runs in it."""
    found = [run for path in paths for run in runs_at(path)]
    return list({run.path.resolve(): run for run in found}.values())


def runs_at(path: Path) -> list[Run]:
    """The run of a folder, or the runs of the folders in it; of a sweep, those on validation samples."""
    if (path / CONFIG).exists():
        return [check_run(path)]
    inner = sorted(folder.parent for folder in path.glob(f"{'runs/' * (path / SWEEP).exists()}*/{CONFIG}"))
    if not inner:
        raise CheckpointError(f"no run at {path}: wanted a folder of `kinfed run`, `compare` or `sweep`")
    runs = [check_run(folder) for folder in inner]
    return sorted(runs, key=lambda run: (run.place, run.seed))


def check_run(path: Path) -> Run:
    """The run; raises where nothing was evaluated yet, or a file is damaged."""
    run = Run(path)
    check_format(path)
    read_part(run, "rounds.csv", "rounds")
    if run.has_ended and len(run.rounds) and np.isnan(run.main).all():
        raise CheckpointError(
            f"{path} has no scores: no training client has test samples; give them some, run it again"
        )
    if not len(run.rounds) or np.isnan(run.main).all():
        remedy = "its rounds.csv is lost" if run.has_ended else f"wait, or go on with `{name_resume(path)}`"
        raise CheckpointError(f"{path} has no evaluated round yet: {remedy}")
    check_parts(run)
    return run


def check_parts(run: Run) -> None:
    """Reads the parts of a run that has rounds; raises for the first whose file is missing or damaged."""
    for file, part in PARTS:
        if file != SUMMARY or run.has_ended:
            read_part(run, file, part)


def read_part(run: Run, file: str, part: str) -> None:
    """Reads a part of a run; raises where its file cannot be parsed."""
    try:
        getattr(run, part)
    except KinfedError:
        raise
    except (ValueError, KeyError, IndexError, OverflowError, csv.Error) as error:
        raise CheckpointError(f"{run.path / file} is missing, damaged or incomplete: {error}") from None
