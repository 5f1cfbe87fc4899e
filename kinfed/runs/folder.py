"""The folder of a run: everything a report needs, as tidy tables that grow round by round.

    config.toml              all settings, defaults included
    rounds.csv               round, metrics (empty where not evaluated), bytes so far
    clients.csv              round, client, its role, ground-truth and found cluster, its scores
    clusters.csv             round, client, cluster: only when the clusters changed
    ledger.csv               round, task, clients asked, bytes down and up (evaluation too, which rounds.csv leaves out)
    ledger_clients.csv       task, client, bytes down and up
    timing.csv               round, seconds without evaluation; round 0 is what came before the first
    events.jsonl             started, resumed, rejected replies, warnings, ended
    summary.json             the last metrics, what is measured at the end, the cost, how fast it went there
    relatedness.npz          who is related to whom, where the method finds that out
    tree.npz                 how clients were merged into clusters and where that was cut, where the method merges
    signatures.npz           how the method sees each client (evaluation.signatures), at most 32 numbers each
    labels.csv               client, label, samples: how many training samples it has of it
    checkpoint.safetensors   all that is needed to go on
    roster.csv               of a deployment: the name and the number of each client
    tensorboard/, wandb/     of these trackers, where the config asks for them; their ids of the run are in NAME_run.txt
    nodes/                   what clients remember, where the engine is `flower` and they remember something

Rounds count from 1: round 3 is what held after the third. Two equal runs have equal tables, byte for byte, but for
timing.csv and events.jsonl.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat, takewhile
from pathlib import Path

from torch import Tensor

from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.data.population import Role
from kinfed.errors import CheckpointError
from kinfed.experiment import RoundResult
from kinfed.federation import Federation
from kinfed.metrics import Scores
from kinfed.runs.findings import write_arrays
from kinfed.runs.logs import Cell, CsvLog, EventLog, write_text

Summary = dict[str, float | int | None]
METRICS = (
    "accuracy", "variance", "worst_decile", "at_target", "accuracy_adapted", "accuracy_unseen",
    "accuracy_unseen_adapted", "accuracy_val", "accuracy_holdout", "ari", "nmi", "purity", "clusters",
    "clustering_error", "clustering_accuracy", "uniformity", "correlation_labels", "correlation_labels_se",
    "correlation_drift", "correlation_drift_se",
)  # fmt: skip
WHOLE = 4000  # clients up to which all pairs are written
CLIENT = ("round", "client", "role", "true_cluster", "cluster", "accuracy", "accuracy_adapted", "loss", "test_samples")
CONFIG, CHECKPOINT, SUMMARY = "config.toml", "checkpoint.safetensors", "summary.json"
FILES = (
    CONFIG, CHECKPOINT, SUMMARY, "rounds.csv", "clients.csv", "clusters.csv", "ledger.csv", "ledger_clients.csv",
    "timing.csv", "events.jsonl", "relatedness.npz", "tree.npz", "signatures.npz", "labels.csv",
    "mlflow_run.txt", "wandb_run.txt",
)  # fmt: skip
TRACKED = ("tensorboard", "wandb")  # folders of trackers


@dataclass(frozen=True)
class RunFolder:
    """An observer that writes down what it is told."""

    path: Path
    fed: Federation
    about: dict[str, str | int]  # goes into the summary
    opened: float = field(default_factory=time.perf_counter)
    last_clusters: list[int] = field(default_factory=list)  # as clusters.csv has them

    @property
    def events(self) -> EventLog:
        return EventLog(self.path / "events.jsonl")

    def log(self, name: str, *columns: str) -> CsvLog:
        return CsvLog(self.path / f"{name}.csv", columns)

    @property
    def rounds(self) -> CsvLog:
        return rounds_log(self.path)

    @property
    def clients(self) -> CsvLog:
        return self.log("clients", *CLIENT)

    @property
    def clusters(self) -> CsvLog:
        return self.log("clusters", "round", "client", "cluster")

    @property
    def ledger(self) -> CsvLog:
        return self.log("ledger", "round", "task", "clients", "bytes_down", "bytes_up")

    @property
    def timing(self) -> CsvLog:
        return self.log("timing", "round", "seconds")

    def on_start(self, rounds: int, done: int) -> None:
        """Cuts the tables back to the rounds done: a killed run may have written more than its checkpoint knows."""
        for table in (self.rounds, self.clients, self.clusters, self.timing):
            table.cut_after(done if done else -1)
        refuse_damaged(self.path, done)
        self.ledger.rewrite(ledger_rows(self.fed, upto=done))
        if done == 0:
            self.timing.append([(0, round(time.perf_counter() - self.opened, 3))])
        written = self.clusters.rows()
        try:
            self.last_clusters[:] = [int(row[2]) for row in written if row[0] == written[-1][0]]
        except ValueError as error:
            raise CheckpointError(f"{self.clusters.path} is damaged: {error}") from None

    def on_round(self, result: RoundResult) -> None:
        """Adds what a round brought."""
        self.timing.append([(result.round, round(result.seconds, 3))])
        self.ledger.append(new_ledger_rows(self.fed, result.round))
        if result.scores is not None:
            self.clients.append(client_rows(self.fed, result.round, result.scores, result.clusters))
        self._add_clusters(result.round, result.clusters)
        unknown = sorted(result.metrics.keys() - set(METRICS))
        if unknown:
            raise ValueError(f"rounds.csv has no column for the metrics {unknown}: add them to METRICS")
        metrics = (result.metrics.get(name) for name in METRICS)
        self.rounds.append([(result.round, *metrics, result.down, result.up)])
        self._note_rejected(result.round)

    def on_end(self, summary: Summary) -> None:
        """Writes what is known only at the end."""
        self.ledger.rewrite(ledger_rows(self.fed))
        CsvLog(self.path / "ledger_clients.csv", ("task", "client", "bytes_down", "bytes_up")).rewrite(
            by_client(self.fed)
        )
        finite = {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in summary.items()}
        write_text(self.path / SUMMARY, json.dumps(self.about | finite, indent=2) + "\n")
        self.events.note("ended", rejected_replies=summary["rejected_replies"])

    def add_relatedness(self, neighbours: NeighbourSets | None) -> None:
        """Writes who is related to whom, if that is known: `related` [clients, clients], or `rows` and `whose`.

        Of many clients each different set of relatives is written once: client i's is rows[whose[i]].
        """
        if neighbours is None:
            return
        rows, whose = neighbours.rows.cpu().numpy(), neighbours.whose.cpu().numpy()

        arrays = {"related": rows[whose]} if len(whose) <= WHOLE else {"rows": rows, "whose": whose}
        write_arrays(self.path / "relatedness.npz", **arrays)

    def _add_clusters(self, round: int, clusters: Tensor | None) -> None:
        found = [] if clusters is None else [int(cluster) for cluster in clusters]
        if found != self.last_clusters:
            self.clusters.append((round, client, cluster) for client, cluster in enumerate(found))
            self.last_clusters[:] = found

    def _note_rejected(self, round: int) -> None:
        for reply in self.fed.rejected:
            if reply.round + 1 == round:
                event = (
                    "rejected reply" if reply.was_dropped else "missing reply" if reply.is_missing else "memory lost"
                )
                self.events.note(event, round=round, task=reply.task, client=reply.client, reason=reply.reason)


def rounds_log(folder: Path) -> CsvLog:
    """The table of rounds."""
    return CsvLog(folder / "rounds.csv", ("round", *METRICS, "bytes_down", "bytes_up"))


def refuse_damaged(folder: Path, done: int) -> None:
    """Raises unless the table of rounds has all that the checkpoint knows of."""
    there = sum(int(row[0]) <= done for row in rounds_log(folder).rows())
    if there != done:
        raise CheckpointError(
            f"{rounds_log(folder).path} has {there} rounds, the checkpoint {done}: a damaged folder; "
            f"start again with `kinfed run {folder / CONFIG} --out {folder} --force`"
        )


def ledger_rows(fed: Federation, upto: int | None = None) -> Iterator[tuple[Cell, ...]]:
    """The ledger by (round, task), all of it or up to a round."""
    return ((row[0] + 1, *row[1:]) for row in fed.ledger.rounds if upto is None or row[0] < upto)


def new_ledger_rows(fed: Federation, round: int) -> list[tuple[int, str, int, int, int]]:
    """What the ledger counted in this round; the first one has what came before it too."""
    newest = takewhile(lambda row: row[0] == round - 1, reversed(fed.ledger.rounds))
    return [(row[0] + 1, *row[1:]) for row in newest][::-1]


def by_client(fed: Federation) -> Iterator[tuple[Cell, ...]]:
    """The ledger by (task, client), of those who were asked."""
    for task, down in fed.ledger.down.items():
        up = fed.ledger.up[task]
        for client in range(fed.count):
            if down[client] or up[client]:
                yield task, client, int(down[client]), int(up[client])


def client_rows(fed: Federation, round: int, scores: Scores, clusters: Tensor | None) -> Iterator[tuple[Cell, ...]]:
    """One row for each client that is there."""
    present = fed.present.tolist()
    parts = (fed.true_clusters, clusters, scores.accuracy, scores.adapted, scores.loss, scores.samples)
    columns = ([None] * fed.count if part is None or part.isnan().all() else part.tolist() for part in parts)
    here = ([column[i] for i in present] for column in columns)
    return zip(repeat(round), present, (role_name(fed.roles[i]) for i in present), *here, strict=False)


def role_name(role: Role) -> str:
    """A role in a word or two."""
    if role.look_alike_of is not None:
        return f"look-alike of {role.look_alike_of}"
    if not role.labelled:
        return "unlabelled"
    return "holdout" if role.holdout else "late" if role.joins else "trains"
