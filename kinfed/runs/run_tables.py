"""The tables of a run's folder as columns of numbers, and its summary, with checks that a run can have written them."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinfed.config.schema import Table
from kinfed.data.population import MOST_CLASSES
from kinfed.errors import CheckpointError
from kinfed.experiment import Summary
from kinfed.quality import MEASURED, Metric
from kinfed.ranges import SLACK
from kinfed.runs.logs import client_columns, metrics_of, whole_lines

Numbers = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
LARGEST = 1e100  # score: those of models that diverged are far below
SHARES = ("at_target", "nmi", "purity", "clustering_accuracy")  # columns within 0..1
ROUNDING = 2 * SLACK  # of shares that nodes sent
ABSURD = 10**7  # clients, rounds or samples of one: no run has as many
MOST = 2**63  # of a whole number of a summary
BYTES = ("bytes_down", "bytes_up")  # every run counts them
TEXT = ("role", "task")  # columns that are not numbers


@dataclass(frozen=True)
class Columns:
    """A table by column; what is not a number is NaN."""

    numbers: dict[str, Numbers]
    text: dict[str, list[str]]

    def __getitem__(self, name: str) -> Numbers:
        return self.numbers[name]

    def __len__(self) -> int:
        return len(next(iter(self.numbers.values()), ()))

    def whole(self, name: str, least: int = -1) -> Whole:
        """A column of whole numbers; -1 where there is none. ValueError where they are not, or absurdly large."""
        found = np.nan_to_num(self.numbers[name], nan=-1)
        if len(found) and not (least <= found.min() and found.max() < ABSURD and (found % 1 == 0).all()):
            raise ValueError(f"{name} must be whole numbers from {least} on, got {found.min():g}..{found.max():g}")
        return found.astype(np.int64)

    def check_amounts(self, *names: str) -> None:
        """Raises ValueError for a column of bytes, seconds or samples that is not finite, or below 0."""
        for name in names:
            found = self.numbers[name]
            if len(found) and not (found.min() >= 0 and found.max() < MOST):
                raise ValueError(f"{name} must be numbers from 0 on, got {found.min():g}..{found.max():g}")

    def check_scores(self, metric: Metric) -> None:
        """Raises ValueError for a number that no run measures: an infinite one, or a share below 0 or above 1."""
        shares = metrics_of(metric.name) if metric.name in MEASURED and metric.unit == "%" else ()
        for name, column in self.numbers.items():
            is_share = name in SHARES or (name in shares and name.startswith(metric.name))
            low, high = (0.0, 1.0) if is_share else (-LARGEST, LARGEST)
            for value in column[(column < low - ROUNDING) | (column > high + ROUNDING)]:
                raise ValueError(f"{name} must be within {low:g}..{high:g}, got {value:g}")


@dataclass(frozen=True)
class History:
    """How clients did over rounds; not a number where one was not scored."""

    rounds: Whole  # [k]
    scores: Numbers  # [k, clients] main metric
    losses: Numbers  # [k, clients]


def read_table(path: Path, wanted: Sequence[str] = (), kept: Sequence[str] = ()) -> Columns:
    """The columns of a CSV file, or the `kept` ones; none if there is no file."""
    return columns(whole_lines(path), wanted, kept)


def columns(lines: list[str], wanted: Sequence[str] = (), kept: Sequence[str] = ()) -> Columns:
    """The columns of a CSV table with a header, or the `kept` ones; ValueError where one that is wanted is missing."""
    header, *rows = csv.reader(lines) if lines else [[]]
    if len(set(header)) < len(header):
        raise ValueError("two of its columns have the same name")
    if lines and (missing := [name for name in wanted if name not in header]):
        raise ValueError(f"it has no column {', '.join(missing)}")
    whole = [row for row in rows if len(row) == len(header)]
    by_name = dict(zip(header, zip(*whole, strict=True), strict=True)) if whole else {name: () for name in header}
    by_name = {name: by_name[name] for name in kept if name in by_name} if kept else by_name
    text = {name: list(by_name.pop(name)) for name in TEXT if name in by_name}
    return Columns({name: np.array([float(c or "nan") for c in column]) for name, column in by_name.items()}, text)


def read_rounds(path: Path, metric: Metric) -> Columns:
    """Metrics and bytes by round: rounds.csv."""
    table = read_table(path, ("round", metric.name))
    if len(table):
        check_growth(table.whole("round", 0))
    counted = [name for name in BYTES if name in table.numbers]
    table.check_amounts(*counted)
    for name in counted:
        if (np.diff(table[name]) < 0).any():
            raise ValueError(f"{name} counts all bytes so far, and must not fall")
    table.check_scores(metric)
    return table


def check_growth(rounds: Whole) -> None:
    """Raises ValueError unless each of the rounds is later than the one before."""
    if (np.diff(rounds) <= 0).any():
        raise ValueError("its rounds must grow from row to row")


def read_last_clients(path: Path, metric: Metric) -> Columns:
    """Every client at the last evaluated round: the last rows of clients.csv."""
    lines = whole_lines(path)
    last = lines[-1].split(",", 1)[0] + "," if len(lines) > 1 else ""
    first = next((i for i in range(len(lines) - 1, 0, -1) if not lines[i].startswith(last)), 0) + 1
    table = columns([*lines[:1], *lines[first:]], client_columns(metric.name))
    table.check_amounts(*("test_samples",) * bool(lines))
    table.check_scores(metric)
    return table


def read_history(path: Path, metric: Metric, count: int) -> History:
    """The main metric and the loss of so many clients, or more, at every round of clients.csv."""
    names = ("round", "client", metric.name, "loss")
    table = read_table(path, names, names)
    table.check_scores(metric)
    rounds, at = np.unique(table.whole("round"), return_inverse=True)
    clients = table.whole("client", 0)
    values = np.full((2, len(rounds), max(count, int(clients.max(initial=-1)) + 1)), np.nan)
    for which, name in enumerate(names[2:]):
        values[which, at, clients] = table[name]
    return History(rounds, values[0], values[1])


def read_clusters(path: Path) -> list[tuple[int, Whole]]:
    """The clusters whenever they changed: the round, and the cluster of each client (-1: none); clusters.csv."""
    table = read_table(path)
    if not len(table):
        return []
    rounds, found = table.whole("round"), table.whole("cluster")
    starts = np.flatnonzero(np.diff(rounds, prepend=-1))
    parts, clients = np.split(found, starts[1:]), table.whole("client", 0)
    if len({len(part) for part in parts}) > 1:
        raise ValueError("rounds differ in how many clients they have")
    if (clients != np.tile(np.arange(len(parts[0])), len(parts))).any():
        raise ValueError("the clients of a round must be 0, 1, …")
    return [(int(rounds[at]), part) for at, part in zip(starts, parts, strict=True)]


def read_labels(path: Path) -> Whole | None:
    """How many training samples of each label each client up to the last in labels.csv has: [clients, labels]."""
    table = read_table(path)
    if not len(table):
        return None
    client, label = table.whole("client", 0), table.whole("label", 0)
    if label.max() >= MOST_CLASSES:
        raise ValueError(f"label {label.max()} is beyond the most classes, {MOST_CLASSES}")
    held = np.zeros((int(client.max()) + 1, int(label.max()) + 1), dtype=np.int64)
    held[client, label] = table.whole("samples", 0)
    return held


def read_summary(path: Path, metric: Metric) -> Summary:
    """The numbers of a summary.json."""
    whole = read_json(path)
    found: Summary = {name: v for name, v in whole.items() if v is None or isinstance(v, int | float)}
    for name in {*BYTES, *({metric.name} & whole.keys())} - found.keys():
        raise CheckpointError(f"{path} is damaged: {name} must be a number, or null")
    for name in [name for name, v in found.items() if isinstance(v, int) and abs(v) > MOST]:
        raise CheckpointError(f"{path} is damaged: {name} is beyond {MOST:.0e}")
    for name in [name for name in BYTES if not 0 <= (found[name] or 0) < MOST]:
        raise CheckpointError(f"{path} is damaged: {name} must be from 0 on, got {found[name]}")
    return found


def read_json(path: Path) -> Table:
    """The table in a JSON file."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(table, ensure_ascii=False).encode()  # half of a character that takes two can be written nowhere
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if not isinstance(table, dict):
        raise CheckpointError(f"{path} is damaged: wanted a table, got {type(table).__name__}")
    return table
