"""A finished run as a bundle."""

from pathlib import Path

from torch import Tensor

from kinfed import snapshot
from kinfed.algorithm import Algorithm
from kinfed.config import Config, make_population
from kinfed.config.tables import Table
from kinfed.engines.flower.deployed import ROSTER
from kinfed.errors import CheckpointError, RoleError
from kinfed.runs import CHECKPOINT, SUMMARY, stored_config
from kinfed.runs.folder import CLIENT
from kinfed.runs.logs import CsvLog
from kinfed.serving.bundle import Bundle, algorithm_of
from kinfed.serving.row_kind import RowKind


def export(run: Path) -> Bundle:
    """The bundle of a run that has ended; RoleError where its method has nothing for strangers."""
    config = stored_config(run)
    if not (run / SUMMARY).exists():
        raise CheckpointError(f"the run at {run} has not ended: take it to its end with `kinfed resume {run}`")
    said = snapshot.about(run / CHECKPOINT)
    if "rows" not in said:
        raise CheckpointError(f"{run / CHECKPOINT} is from an earlier kinfed: run it again to export it")
    rows = RowKind.read(said["rows"])
    algorithm = algorithm_of(config, rows)
    state, clients = snapshot.load_served(run / CHECKPOINT, algorithm)
    served = algorithm.for_strangers(state, clients["training"], clients["sizes"])
    own = server_rows(run, config) if algorithm.asks_server_rows() else rows.nothing()
    about = described(config, algorithm, run)
    return Bundle(config, rows, served, clients["sizes"][clients["training"]], own, about)


def server_rows(run: Path, config: Config) -> Tensor:
    """The rows that the server of this run owns."""
    if (run / ROSTER).exists():
        raise RoleError("strangers are compared on the server's own rows, and a deployment's run does not hold these")
    population = make_population(config)
    return population.x[population.public]


def described(config: Config, algorithm: Algorithm[object], run: Path) -> Table:
    """What people want to know of a bundle."""
    return {
        "method": config.method,
        "placement": algorithm.placement(),
        "needs_labels": bool(algorithm.needs_labels),
        "dataset": config.data.name,
        "rounds": config.rounds,
        "seed": config.seed,
        "groups": groups_of(run),
    }


def groups_of(run: Path) -> list[Table]:
    """The groups of those who trained, as the run's last evaluation had them: how many, and their mean accuracy."""
    table = [dict(zip(CLIENT, row, strict=True)) for row in CsvLog(run / "clients.csv", CLIENT).rows()]
    last = [row for row in table if row["round"] == table[-1]["round"] and row["role"] in ("trains", "late")]
    found = {row["found"] for row in last}
    return [
        group_of(name, [row for row in last if row["found"] == name])
        for name in sorted(found, key=lambda n: int(n or -1))
    ]


def group_of(name: str, members: list[dict[str, str]]) -> Table:
    """One group in numbers."""
    scores = [float(row["accuracy"]) for row in members if row["accuracy"]]
    mean = sum(scores) / len(scores) if scores else None
    return {"group": int(name) if name else None, "clients": len(members), "accuracy": mean}
