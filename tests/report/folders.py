"""Run folders written by the real writers, without training: what a method would have reported."""

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
from kinfed.metrics import Scores, summarise_scores
from kinfed.quality import ACCURACY
from kinfed.runs import RunWriter, write_config
from kinfed.runs.writer import write_arrays, write_confusions, write_labels, write_relatedness, write_tree


@dataclass(frozen=True)
class MadeUp:
    """A made-up run."""

    method: str
    seed: int = 0
    clients: int = 12
    rounds: int = 4
    clusters: int = 3
    reclusters: bool = False  # finds clusters anew every round
    every: int = 1  # rounds between two lists of all clients
    names: tuple[str, ...] = ()  # of the classes
    shift: float = 0.0  # of all accuracies
    settings: tuple[str, ...] = ()  # other than the defaults


def write_run(
    path: Path, made: MadeUp, *, has_clusters: bool = True, has_ended: bool = True, has_signatures: bool = True
) -> Path:
    """A run folder: accuracies rise to 0.9, less one percentage point for each tenth of the clients."""
    config = load_config(None, [f"method={made.method}", f"rounds={made.rounds}", f"seed={made.seed}", *made.settings])
    path.mkdir(parents=True)
    write_config(path, config)
    fed = federation(config, made)
    folder = RunWriter(
        path, fed, {"method": made.method, "dataset": "digits", "seed": made.seed, "rounds": made.rounds}
    )
    folder.on_start(made.rounds, 0)
    true = torch.arange(made.clients) % made.clusters
    metrics: dict[str, float] = {}
    for round in range(1, made.rounds + 1):
        clusters = assign(true, round, made) if has_clusters else None
        scores = score(round / made.rounds, made)
        listed = scores if round % made.every == 0 or round == made.rounds else None
        metrics = summarise_scores(scores, ACCURACY, 0.99) | (
            {"ari": 1.0, "clusters": float(made.clusters)} if has_clusters else {}
        )
        fed.ledger.count(round - 1, "train", torch.arange(made.clients), 1000, torch.arange(made.clients), 1000)
        moved = 1000 * made.clients * round
        folder.on_round(RoundResult(round, metrics, listed, clusters, moved, moved, 0.5))
    if has_ended:
        summary = {**metrics, "bytes_down": moved, "bytes_up": moved, "rejected_replies": 0}
        folder.on_end(summary)
        write_labels(path, fed.labels_held)
        if has_clusters:
            write_findings(path, true, has_signatures)
        write_confusions(path, confuse(made, true if has_clusters else torch.full_like(true, -1)))
        folder.write_summary(summary)
    return path


def write_sweep(path: Path) -> Path:
    """The folder of a sweep of FedAvg: two learning rates, two momenta and two seeds, scored on validation samples."""
    for lr, shift in ((0.01, 0.0), (0.1, 0.04)):
        for momentum in (0.0, 0.9):
            for seed in (0, 1):
                settings = (f"training.lr={lr}", f"training.momentum={momentum}", "data.selection=0.2")
                made = MadeUp("fedavg", seed=seed, shift=shift + 0.01 * momentum, settings=settings)
                write_run(path / "runs" / f"{lr}-{momentum}-{seed}", made, has_clusters=False)
    (path / "sweep.toml").touch()
    return path


def write_findings(path: Path, true: Tensor, has_signatures: bool) -> None:
    """Relatedness, merges and signatures: ground-truth clusters lie ten apart from each other."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(len(true), 8, generator=generator) + 10 * torch.eye(8)[true % 8] * (1 + true[:, None] // 8)
    write_relatedness(path, NeighbourSets.of_clusters(true))
    write_tree(path, Dendrogram.of(torch.arange(len(true)), torch.cdist(points, points), "average", 8.0))
    if has_signatures:
        write_arrays(path / "signatures.npz", {"clients": torch.arange(len(true)).numpy(), "points": points.numpy()})


def confuse(made: MadeUp, clusters: Tensor) -> tuple[Tensor, Tensor]:
    """Ten test samples a client, of the class of its cluster: none is wrong of the first, two of the last, else one."""
    names, classes = clusters.unique(), max(10, made.clusters)
    counts = torch.zeros(len(names), classes, classes, dtype=torch.long)
    for client, cluster in enumerate(clusters.tolist()):
        label = client % made.clusters
        wrong = 2 if label == made.clusters - 1 else 0 if label == 0 else 1
        counts[names.tolist().index(cluster), label, label] += 10 - wrong
        counts[names.tolist().index(cluster), label, (label + 1) % classes] += wrong
    return names, counts


def assign(true: Tensor, round: int, made: MadeUp) -> Tensor:
    """The ground truth; where clusters are found anew, other strays each round."""
    strays = (torch.arange(len(true)) % 10 == round % 10) & torch.tensor(made.reclusters)
    return torch.where(strays, (true + 1) % made.clusters, true)


def score(share: float, made: MadeUp) -> Scores:
    decile = 10 * torch.arange(made.clients, dtype=torch.double) / made.clients
    accuracy = share * (0.9 - 0.01 * decile.floor()) - 0.001 * made.seed + made.shift
    samples = torch.full((made.clients,), 10)
    return Scores(accuracy, torch.full_like(accuracy, torch.nan), 1 - accuracy, samples, samples > 0)


def federation(config: Config, made: MadeUp) -> Federation:
    """Clients with ten training samples each; those of one cluster have the same label."""
    true = torch.arange(made.clients) % made.clusters
    rows = torch.arange(20 * made.clients).view(made.clients, 20)
    y = true.repeat_interleave(20)
    x = torch.zeros(len(y), 1, 8, 8, dtype=torch.uint8)
    parts = tuple(row[:10] for row in rows), tuple(row[10:] for row in rows)
    population = Population(x, y, *parts, classes=max(10, made.clusters), true_clusters=true, class_names=made.names)
    return Vectorised(make_method(config, model_for(config, population)), population, fraction=1.0, seed=config.seed)
