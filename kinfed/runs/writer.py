"""The writer of run folders: everything a report needs, as tidy tables that grow round by round.

    config.toml              all settings, defaults included; its first line names the format of the folder
    rounds.csv               round, metrics (empty where not evaluated), bytes so far
    clients.csv              round, client, its role, ground-truth and found cluster, its scores
    clusters.csv             round, client, cluster: only when the clusters changed
    ledger.csv               round, task, clients asked, bytes down and up (evaluation too, which rounds.csv leaves out)
    ledger_clients.csv       task, client, bytes down and up
    timing.csv               round, seconds without evaluation, those for clients' tasks; round 0: before the first
    events.jsonl             started, resumed, rejected replies, warnings, ended
    relatedness.npz          the related clients of each client, where the method relates clients
    tree.npz                 how clients were merged into clusters and where that was cut, where the method merges
    signatures.npz           the signature of each client (evaluation.signatures), at most 32 numbers each
    confusion.npz            confusion matrices of the test samples, one a cluster (classifiers of up to 100 classes)
    labels.csv               client, label, samples: how many training samples it has of it
    drift.csv                round, client, its score before, when noticed, when recovered: where samples changed
    summary.json             the last metrics, what is measured at the end, the cost; written last: the run has ended
    checkpoint.safetensors   all that is needed to resume
    roster.csv               of a deployment: the name and the number of each client
    status.json              of a deployment: who is connected, the round, and what went wrong, as of now
    tensorboard/, wandb/     of these trackers, where the config asks for them; their ids of the run are in NAME_run.txt
    nodes/                   what clients remember, where the engine is `flower` and they remember something

Rounds count from 1: round 3 is what held after the third. Two equal runs have equal tables, byte for byte, but for
timing.csv and events.jsonl.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat, takewhile
from pathlib import Path
from typing import NoReturn

import numpy as np
from torch import Tensor

from kinfed.capabilities import MergesClients, diagnose, neighbours_of
from kinfed.checkpoint import FORMAT
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.config import Config, to_toml
from kinfed.data.population import LATER, Population, Role
from kinfed.errors import CheckpointError
from kinfed.experiment import Experiment, RoundResult, Summary
from kinfed.federation import Federation
from kinfed.files import quote, write_arrays, write_bytes
from kinfed.metrics import Scores, collect_confusions, collect_signatures, current_clusters
from kinfed.quality import ACCURACY, Metric
from kinfed.replies import EXCLUDED, LONG_UPDATE, OUTLYING, Rejected
from kinfed.runs.logs import (
    CONFIG,
    SUMMARY,
    TASK,
    Cell,
    CsvLog,
    EventLog,
    as_csv,
    client_columns,
    metrics_of,
    round_columns,
    write_text,
)

HEADER = "# kinfed run, format {}: all settings, defaults included. A copy of this file is a config.\n"
GROWING = ("rounds.csv", "clients.csv", "clusters.csv", "timing.csv")  # a resumed run goes on with them
DRIFT_COLUMNS = ("round", "client", "score_before", "noticed", "recovered")
WHOLE = 4000  # clients up to which all pairs are written


@dataclass(frozen=True)
class RunWriter:
    """An observer that writes a run's tables."""

    path: Path
    fed: Federation
    about: Mapping[str, str | int]  # goes into the summary
    opened: float = field(default_factory=time.perf_counter)
    last_clusters: list[int] = field(default_factory=list)  # as clusters.csv has them
    metric: Metric = ACCURACY  # the main one

    @property
    def events(self) -> EventLog:
        return EventLog(self.path / "events.jsonl")

    @property
    def rounds(self) -> CsvLog:
        return CsvLog(self.path / "rounds.csv", round_columns(self.metric.name))

    @property
    def clients(self) -> CsvLog:
        return CsvLog(self.path / "clients.csv", client_columns(self.metric.name))

    @property
    def clusters(self) -> CsvLog:
        return CsvLog(self.path / "clusters.csv", ("round", "client", "cluster"))

    @property
    def ledger(self) -> CsvLog:
        return CsvLog(self.path / "ledger.csv", ("round", "task", "clients", "bytes_down", "bytes_up"))

    @property
    def timing(self) -> CsvLog:
        return CsvLog(self.path / "timing.csv", ("round", "seconds", "clients"))

    def on_start(self, rounds: int, done: int) -> None:
        """Cuts the tables back to the rounds done: a killed run may have written more than its checkpoint knows."""
        refuse_damaged(self.path, done)
        for table in (self.rounds, self.clients, self.clusters, self.timing):
            table.cut_after(done if done else -1)
        self.ledger.rewrite(ledger_rows(self.fed, upto=done))
        if done == 0:
            opening = time.perf_counter() - self.opened
            self.timing.append([(0, round(opening, 3), round(self.fed.client_seconds, 3))])
        self._read_clusters()
        write_task(self.path, self.metric, self.fed.population)

    def on_round(self, result: RoundResult) -> None:
        """Adds the rows of a round."""
        self.timing.append([(result.round, round(result.seconds, 3), round(result.client_seconds, 3))])
        self.ledger.append(new_ledger_rows(self.fed, result.round))
        if result.scores is not None:
            self.clients.append(client_rows(self.fed, result.round, result.scores, result.clusters))
        self.add_clusters(result.round, result.clusters)
        names = metrics_of(self.metric.name)
        if unknown := sorted(result.metrics.keys() - set(names)):
            raise ValueError(f"rounds.csv has no column for the metrics {unknown}: add them to METRICS")
        metrics = (result.metrics.get(name) for name in names)
        self.rounds.append([(result.round, *metrics, result.down, result.up)])
        self._note_rejected(result.round)

    def on_end(self, summary: Summary) -> None:
        """Writes the whole ledger; what is computed later, such as signatures, does not count."""
        self.ledger.rewrite(ledger_rows(self.fed))
        columns = ("task", "client", "bytes_down", "bytes_up")
        CsvLog(self.path / "ledger_clients.csv", columns).rewrite(ledger_by_client(self.fed))

    def finish(self, experiment: Experiment[object], summary: Summary) -> None:
        """Writes what the method found, and then the summary: a folder that has it is complete."""
        write_findings(self.path, experiment)
        self.write_summary(summary, diagnose(experiment.method, experiment.state))

    def write_summary(self, summary: Summary, diagnosis: str = "") -> None:
        """Writes the summary; what is not a number becomes null."""
        finite = {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in summary.items()}
        write_text(self.path / SUMMARY, json.dumps({**self.about, "diagnosis": diagnosis, **finite}, indent=2) + "\n")
        self.events.note("ended", rejected_replies=summary["rejected_replies"])

    def add_clusters(self, round: int, clusters: Tensor | None) -> None:
        """Adds the clusters of a round, if they changed."""
        found = [] if clusters is None else [int(cluster) for cluster in clusters]
        if found != self.last_clusters:
            self.clusters.append((round, client, cluster) for client, cluster in enumerate(found))
            self.last_clusters[:] = found

    def _read_clusters(self) -> None:
        written = self.clusters.rows()
        try:
            self.last_clusters[:] = [int(row[2]) for row in written if row[0] == written[-1][0]]
        except ValueError as error:
            raise CheckpointError(f"{self.clusters.path} is damaged: {error}") from None

    def _note_rejected(self, round: int) -> None:
        for reply in self.fed.rejected:
            if reply.round + 1 == round:
                self.events.note(
                    name_event(reply), round=round, task=reply.task, client=reply.client, reason=reply.reason
                )


def write_config(folder: Path, config: Config, name: str = CONFIG) -> None:
    """Writes all settings into the folder, under a line that names its format."""
    write_text(folder / name, HEADER.format(FORMAT) + to_toml(config.resolve()))


def write_task(folder: Path, metric: Metric, population: Population) -> None:
    """Writes the main metric, and the names of classes, columns and clients; nothing for a classifier without any."""
    if metric != ACCURACY or population.class_names or population.feature_names or population.client_names:
        table: dict[str, object] = {"metric": vars(metric), "class_names": list(population.class_names)}
        if population.feature_names:
            table["feature_names"] = list(population.feature_names)
        if population.client_names:
            table["client_names"] = list(population.client_names)
        write_text(folder / TASK, json.dumps(table, indent=1, ensure_ascii=False) + "\n")


def write_findings(folder: Path, experiment: Experiment[object]) -> None:
    """Writes labels.csv, confusion.npz, and relatedness.npz, tree.npz and signatures.npz where the method has them."""
    method, state, fed = experiment.method, experiment.state, experiment.fed
    if fed.sees_samples:
        write_labels(folder, fed.labels_held)
    if experiment.drift_log.events:
        rows = ((e.round + 1, e.client, e.before, count_from_one(e.noticed), count_from_one(e.recovered))
                for e in experiment.drift_log.events)  # fmt: skip
        CsvLog(folder / "drift.csv", DRIFT_COLUMNS).rewrite(rows)
    if state is None:
        return
    if (neighbours := neighbours_of(method, state)) is not None:
        write_relatedness(folder, neighbours)
    if isinstance(method, MergesClients) and len((tree := method.dendrogram(state)).members):
        write_tree(folder, tree)
    if (seen := collect_signatures(method, state, fed, experiment.evaluation.signatures)) is not None:
        write_arrays(folder / "signatures.npz", {"clients": seen[0].numpy(), "points": seen[1].numpy()})
    if experiment.evaluation.metrics == "all":
        write_confusions(folder, collect_confusions(method, state, fed, current_clusters(method, state, fed)))


def count_from_one(round: int | None) -> int | None:
    """A round as tables count it."""
    return None if round is None else round + 1


def write_relatedness(folder: Path, neighbours: NeighbourSets) -> None:
    """Writes which clients are related: `related` [clients, clients], or `sets` and `set_of` where clients are many.

    Of many clients each different set of neighbours is written once: client i's is sets[set_of[i]].
    """
    sets, set_of = neighbours.rows.cpu().numpy(), neighbours.whose.cpu().numpy()
    arrays = {"related": sets[set_of]} if len(set_of) <= WHOLE else {"sets": sets, "set_of": set_of}
    write_arrays(folder / "relatedness.npz", arrays)


def write_confusions(folder: Path, found: tuple[Tensor, Tensor] | None) -> None:
    """Writes the confusion matrix of each cluster, where there are some."""
    if found is not None:
        write_arrays(folder / "confusion.npz", {"clusters": found[0].numpy(), "counts": found[1].int().numpy()})


def write_labels(folder: Path, held: Tensor) -> None:
    """Writes how many training samples of each label each client has; zeros are left out."""
    client, label = held.nonzero().T.tolist()
    rows = zip(client, label, held[held > 0].tolist(), strict=True)
    table = as_csv([("client", "label", "samples")]) + as_csv(rows)
    write_bytes(folder / "labels.csv", table.encode(), private=True)


def write_tree(folder: Path, tree: Dendrogram) -> None:
    """Writes how clients were merged, and where that was cut."""
    merges, members = tree.merges.cpu().numpy(), tree.members.cpu().numpy()
    write_arrays(folder / "tree.npz", {"members": members, "merges": merges, "height": np.array(tree.height)})


def refuse_damaged(folder: Path, done: int) -> None:
    """Raises unless the tables have all that the checkpoint knows of."""
    if done:
        refuse_missing(folder, GROWING)
    log = CsvLog(folder / "rounds.csv", round_columns(""))
    rows = [row for row in log.rows() if int(row[0]) <= done]
    if len(rows) != done:
        refuse_table(folder, log.path, f"has {len(rows)} rounds, the checkpoint {done}")
    scored = {int(row[0]) for row in CsvLog(folder / "clients.csv", client_columns("")).rows()}
    if lost := [row[0] for row in rows if row[1] and int(row[0]) not in scored]:
        refuse_table(folder, folder / "clients.csv", f"has no client of round {lost[0]}, which was evaluated")


def refuse_incomplete(folder: Path) -> None:
    """Raises where a run has ended, and a table that every run writes is missing."""
    if (folder / SUMMARY).exists():
        refuse_missing(folder, (*GROWING, "ledger.csv", "ledger_clients.csv"))


def refuse_missing(folder: Path, names: Sequence[str]) -> None:
    """Raises where one of these files is missing."""
    for name in names:
        if not (folder / name).is_file():
            refuse_table(folder, folder / name, "is missing")


def refuse_table(folder: Path, path: Path, why: str) -> NoReturn:
    """Raises for a table that is not as the run wrote it."""
    again = f"kinfed run {quote(folder / CONFIG)} --out {quote(folder)} --force"
    raise CheckpointError(f"{path} {why}: a damaged folder; start again with `{again}`")


def ledger_rows(fed: Federation, upto: int | None = None) -> Iterator[tuple[Cell, ...]]:
    """The ledger by (round, task), all of it or up to a round."""
    return ((row[0] + 1, *row[1:]) for row in fed.ledger.rounds if upto is None or row[0] < upto)


def new_ledger_rows(fed: Federation, round: int) -> list[tuple[int, str, int, int, int]]:
    """What the ledger counted in this round; the first one has what came before it too."""
    newest = takewhile(lambda row: row[0] == round - 1, reversed(fed.ledger.rounds))
    return [(row[0] + 1, *row[1:]) for row in newest][::-1]


def ledger_by_client(fed: Federation) -> Iterator[tuple[Cell, ...]]:
    """The ledger by (task, client), of the clients that were asked."""
    for task, down in fed.ledger.down.items():
        up = fed.ledger.up[task]
        for client in range(fed.count):
            if down[client] or up[client]:
                yield task, client, int(down[client]), int(up[client])


def client_rows(fed: Federation, round: int, scores: Scores, clusters: Tensor | None) -> Iterator[tuple[Cell, ...]]:
    """One row for each client that is present."""
    present = fed.present.tolist()
    parts = (fed.true_clusters, clusters, scores.main, scores.adapted, scores.loss, scores.samples)
    columns = ([None] * fed.count if part is None or part.isnan().all() else part.tolist() for part in parts)
    here = ([column[i] for i in present] for column in columns)
    roles = (name_role(fed.roles[i], trains=bool(scores.trains[i])) for i in present)
    return zip(repeat(round), present, roles, *here, strict=False)


def name_role(role: Role, *, trains: bool) -> str:
    """A role in a word or two; `trains`: it takes part in training by now."""
    if role.look_alike_of is not None:
        return f"look-alike of {role.look_alike_of}"
    if not role.labelled:
        return "unlabelled"
    if role.holdout:
        return "holdout"
    if role.joins:
        return "late" if trains else "too late"
    return "trains" if role.leaves == LATER else "leaves"


def name_event(reply: Rejected) -> str:
    """The event of a reply that was not used."""
    if reply.reason == EXCLUDED:
        return "client excluded"
    if reply.reason in (OUTLYING, LONG_UPDATE):
        return "outlying client" if reply.reason == OUTLYING else LONG_UPDATE
    return "rejected reply" if reply.was_dropped else "missing reply" if reply.is_missing else "memory lost"
