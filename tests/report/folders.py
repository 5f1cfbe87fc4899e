"""Run folders written by the real writers, without training: what a method would have told its observers."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.config import Config, load_config
from kinfed.config.assembly import make_method, model_for
from kinfed.data.population import Population
from kinfed.engines import Vectorised
from kinfed.experiment import RoundResult
from kinfed.federation import Federation
from kinfed.metrics import Scores, accuracies
from kinfed.runs import RunWriter, write_config
from kinfed.runs.writer import write_arrays, write_labels, write_relatedness, write_tree


@dataclass(frozen=True)
class Told:
    """What a made-up run came to."""

    method: str
    seed: int = 0
    clients: int = 12
    rounds: int = 4
    planted: int = 3
    regroups: bool = False  # finds groups anew every round
    every: int = 1  # rounds between two lists of all clients


def write_run(
    path: Path, told: Told, *, has_clusters: bool = True, has_ended: bool = True, has_signatures: bool = True
) -> Path:
    """A run folder: accuracies rise to 0.9, less one percentage point for each tenth of the clients."""
    config = load_config(None, [f"method={told.method}", f"rounds={told.rounds}", f"seed={told.seed}"])
    path.mkdir(parents=True)
    write_config(path, config)
    fed = federation(config, told)
    folder = RunWriter(
        path, fed, {"method": told.method, "dataset": "digits", "seed": told.seed, "rounds": told.rounds}
    )
    folder.on_start(told.rounds, 0)
    planted = torch.arange(told.clients) % told.planted
    metrics: dict[str, float] = {}
    for round in range(1, told.rounds + 1):
        clusters = found(planted, round, told) if has_clusters else None
        scores = scored(round / told.rounds, told)
        listed = scores if round % told.every == 0 or round == told.rounds else None
        metrics = accuracies(scores, 0.99) | ({"ari": 1.0, "clusters": float(told.planted)} if has_clusters else {})
        fed.ledger.count(round - 1, "train", torch.arange(told.clients), 1000, torch.arange(told.clients), 1000)
        moved = 1000 * told.clients * round
        folder.on_round(RoundResult(round, metrics, listed, clusters, moved, moved, 0.5))
    if has_ended:
        summary = {**metrics, "bytes_down": moved, "bytes_up": moved, "rejected_replies": 0}
        folder.on_end(summary)
        write_labels(path, fed.labels_held)
        if has_clusters:
            write_findings(path, planted, has_signatures)
        folder.write_summary(summary)
    return path


def write_findings(path: Path, planted: Tensor, has_signatures: bool) -> None:
    """Who is related, how they were merged, and how they look: planted groups lie ten apart from each other."""
    luck = torch.Generator().manual_seed(0)
    points = torch.randn(len(planted), 8, generator=luck) + 10 * torch.eye(8)[planted % 8] * (1 + planted[:, None] // 8)
    write_relatedness(path, NeighbourSets.of_clusters(planted))
    write_tree(path, Dendrogram.of(torch.arange(len(planted)), torch.cdist(points, points), "average", 8.0))
    if has_signatures:
        write_arrays(path / "signatures.npz", clients=torch.arange(len(planted)).numpy(), points=points.numpy())


def found(planted: Tensor, round: int, told: Told) -> Tensor:
    """The planted groups; where they are found anew, one more client of each ten is with the next group every round."""
    strays = (torch.arange(len(planted)) % 10 == round % 10) & torch.tensor(told.regroups)
    return torch.where(strays, (planted + 1) % told.planted, planted)


def scored(share: float, told: Told) -> Scores:
    decile = 10 * torch.arange(told.clients, dtype=torch.double) / told.clients
    accuracy = share * (0.9 - 0.01 * decile.floor()) - 0.001 * told.seed
    rows = torch.full((told.clients,), 10)
    return Scores(accuracy, torch.full_like(accuracy, torch.nan), 1 - accuracy, rows, rows > 0)


def federation(config: Config, told: Told) -> Federation:
    """Clients with ten training rows each; those of one planted group have the same label."""
    planted = torch.arange(told.clients) % told.planted
    rows = torch.arange(20 * told.clients).view(told.clients, 20)
    y = planted.repeat_interleave(20)
    x = torch.zeros(len(y), 1, 8, 8, dtype=torch.uint8)
    parts = tuple(row[:10] for row in rows), tuple(row[10:] for row in rows)
    people = Population(x, y, *parts, classes=max(10, told.planted), true_clusters=planted)
    return Vectorised(make_method(config, model_for(config, people)), people, fraction=1.0, seed=config.seed)
