"""A finished run as a bundle."""

from pathlib import Path

from torch import Tensor

from kinfed import checkpoint
from kinfed.capabilities import Exportable, FindsClusters, NeedsServerSamples, explain_assignment, reason_for_labels
from kinfed.config import Config, make_population
from kinfed.config.tables import Table
from kinfed.data.sample_kind import SampleKind
from kinfed.engines.flower.deployed import ROSTER
from kinfed.errors import CheckpointError, RoleError
from kinfed.method import Method
from kinfed.runs.lifecycle import read_about
from kinfed.runs.logs import CHECKPOINT, COMPARISON
from kinfed.runs.reader import Run, read_config
from kinfed.serving.bundle import Bundle, method_of


def export(run: Path) -> Bundle:
    """The bundle of a run that has ended; RoleError where its method has nothing for strangers."""
    if (run / COMPARISON).exists():
        raise CheckpointError(f"{run} is a comparison: export one of the runs in it, such as {run}/METHOD-seed0")
    config = read_config(run)
    if not Run(run).has_ended:
        raise CheckpointError(f"the run at {run} has not ended: take it to its end with `kinfed resume {run}`")
    said = read_about(run, config)
    if "samples" not in said:
        raise CheckpointError(f"{run / CHECKPOINT} is from an earlier kinfed: run it again to export it")
    rows = SampleKind.read(said["samples"])
    method = method_of(config, rows)
    state, clients = checkpoint.load_served(run / CHECKPOINT, method)
    if not isinstance(method, Exportable):
        raise RoleError(f"{config.method} cannot be exported: its server has no model for unseen clients")
    served = method.export_state(state, clients["training"], clients["sizes"])
    compares = isinstance(method, NeedsServerSamples) and method.admits_by_server_samples()
    own = server_samples(run, config) if compares else rows.nothing()
    found = method.cluster_assignment(served) if isinstance(method, FindsClusters) else None
    clusters = clusters_of(found, clients["training"].tolist(), last_scores(run))
    words = described(config, method) | {"clusters": clusters}
    return Bundle(config, rows, served, clients["sizes"][clients["training"]], own, words)


def server_samples(run: Path, config: Config) -> Tensor:
    """The rows that the server of this run owns."""
    if (run / ROSTER).exists():
        raise RoleError("strangers are compared on the server's own rows, and a deployment's run does not hold these")
    population = make_population(config)
    return population.x[population.public]


def described(config: Config, method: Method[object]) -> Table:
    """What people want to know of a bundle's method."""
    return {
        "method": config.method,
        "placement": explain_assignment(method),
        "needs_labels": bool(reason_for_labels(method)),
        "dataset": config.data.name,
        "rounds": config.rounds,
        "seed": config.seed,
    }


def clusters_of(found: Tensor | None, clients: list[int], scores: dict[int, float]) -> list[Table]:
    """Each group of these clients: how many there are, and their mean accuracy; None is who is in no group."""
    names = [-1] * len(clients) if found is None else found[: len(clients)].tolist()
    members = {name: [client for client, other in zip(clients, names, strict=True) if other == name] for name in names}
    return [cluster_of(name, own, scores) for name, own in sorted(members.items())]


def cluster_of(name: int, members: list[int], scores: dict[int, float]) -> Table:
    """One group in numbers."""
    known = [scores[client] for client in members if client in scores]
    mean = sum(known) / len(known) if known else None
    return {"cluster": name if name >= 0 else None, "clients": len(members), "accuracy": mean}


def last_scores(run: Path) -> dict[int, float]:
    """The accuracy of each client that was scored after the last round."""
    table = Run(run).clients
    pairs = zip(table.whole("client").tolist(), table["accuracy"].tolist(), strict=True)
    return {client: accuracy for client, accuracy in pairs if accuracy == accuracy}
