"""The files of a run folder: their names and columns, and logs that grow by lines and can be cut back to a round."""

import csv
import io
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import eq
from pathlib import Path

from kinfed.errors import CheckpointError, FileError
from kinfed.files import quote, reason_of, write_bytes

Cell = str | int | float | None
CONFIG, CHECKPOINT, SUMMARY = "config.toml", "checkpoint.safetensors", "summary.json"
COMPARISON, SWEEP = "compare.toml", "sweep.toml"
COMPARED = (COMPARISON, "compare.csv", "compare.md", "runs.csv", "pairs.csv")  # what a comparison writes
STATUS = "status.json"  # of a deployed run, also before it begins
STATUS_BEGINS = '{\n "state": "'
TASK = "task.json"  # the main metric and the names of the classes, where they are not plain
METRICS = (
    "accuracy", "variance", "worst_decile", "at_target", "accuracy_adapted", "accuracy_unseen",
    "accuracy_unseen_adapted", "accuracy_val", "accuracy_holdout", "accuracy_changed", "ari", "nmi", "purity",
    "clusters", "clustering_error", "clustering_accuracy", "uniformity", "correlation_labels", "correlation_labels_se",
    "correlation_drift", "correlation_drift_se",
)  # fmt: skip


def read_format(config: Path) -> str:
    """The number of the format that the first line of a run's config names; empty where it names none."""
    if not config.is_file():
        return ""
    with open(config, encoding="utf-8", errors="replace") as file:
        found = re.match(r"# kinfed run, format (\d{1,9})\b", file.readline(100))
    return found[1] if found else ""


def name_resume(folder: Path, trust: bool = False) -> str:
    """The command that takes a stopped run on; the clients of a deployment only its server reaches."""
    if (folder / STATUS).exists():
        given = f'out="{folder}" {read_run_config(folder)}'.rstrip()
        return f"flwr run . SUPERLINK --run-config {shlex.quote(given)}"
    return f"kinfed resume {quote(folder)}{' --trust' if trust else ''}"


def read_run_config(folder: Path) -> str:
    """What `--run-config` set for a deployed run beside its folder; empty where its status does not say."""
    try:
        given = json.loads((folder / STATUS).read_text(encoding="utf-8")).get("run_config", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return given if isinstance(given, str) and given.isprintable() else ""


def metrics_of(main: str) -> tuple[str, ...]:
    """The metrics of a round where this is the main one."""
    own = {name: name.replace("accuracy", main, 1) for name in METRICS if name.startswith("accuracy")}
    return tuple(own.get(name, name) for name in METRICS)


def round_columns(main: str) -> tuple[str, ...]:
    """The columns of rounds.csv where this is the main metric."""
    return ("round", *metrics_of(main), "bytes_down", "bytes_up")


def client_columns(main: str) -> tuple[str, ...]:
    """The columns of clients.csv where this is the main metric."""
    return ("round", "client", "role", "true_cluster", "cluster", main, f"{main}_adapted", "loss", "test_samples")


FILES = (
    CONFIG, CHECKPOINT, SUMMARY, "rounds.csv", "clients.csv", "clusters.csv", "ledger.csv", "ledger_clients.csv",
    "timing.csv", "events.jsonl", STATUS, "relatedness.npz", "tree.npz", "signatures.npz", "confusion.npz",
    "labels.csv", "drift.csv", TASK,
    "mlflow_run.txt", "wandb_run.txt",
)  # fmt: skip
TRACKED = ("tensorboard", "wandb")  # folders of trackers


@dataclass(frozen=True)
class CsvLog:
    """A CSV file whose first column is the round; a file is opened for each append, so nothing waits in a buffer."""

    path: Path
    columns: tuple[str, ...]

    def append(self, rows: Iterable[Sequence[Cell]]) -> None:
        """Adds rows at the end."""
        append_text(self.path, as_csv(rows))

    def rewrite(self, rows: Iterable[Sequence[Cell]]) -> None:
        """Replaces the file, in one step."""
        write_text(self.path, as_csv([self.columns]) + as_csv(rows))

    def cut_after(self, round: int) -> None:
        """Drops the rows of later rounds, and a line that a killed process left half-written."""
        self.rewrite(row for row in self.rows() if int(row[0]) <= round)

    def rows(self) -> list[list[str]]:
        """All whole rows, without the header."""
        lines = whole_lines(self.path)[1:]
        try:
            return [row for row in csv.reader(lines) if len(row) == len(self.columns) and row[0].isdigit()]
        except csv.Error as error:
            raise CheckpointError(f"{self.path} is damaged, or no table: {error}") from None


@dataclass(frozen=True)
class EventLog:
    """What happened and when, one JSON object a line."""

    path: Path

    def note(self, event: str, **details: Cell) -> None:
        """Adds an event."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **details}
        append_text(self.path, json.dumps(line, ensure_ascii=False) + "\n")

    def repair(self) -> None:
        """Drops a line that a killed process left half-written."""
        write_text(self.path, "".join(whole_lines(self.path)))


def as_csv(rows: Iterable[Sequence[Cell]]) -> str:
    """Rows as CSV; floats are written so that they read back as the same number, what is not a number is left empty."""
    text = io.StringIO()
    blanked = (row if all(map(eq, row, row)) else [None if value != value else value for value in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(blanked)
    return text.getvalue()


def append_text(path: Path, text: str) -> None:
    """Adds text to the end of a file; FileError where it cannot."""
    try:
        with open(path, "a", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {reason_of(error)}") from error


def write_text(path: Path, text: str) -> None:
    """Replaces a text file in one step."""
    write_bytes(path, text.encode())


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that end; none if there is no file."""
    text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    return [f"{line}\n" for line in text.split("\n")[:-1]]
