"""What copies of samples cost Auto: FedAvg and Auto where clients have samples several times, by oversampling.

    python -m benchmarks.repeated_samples --data-dir DATA                          # development cases, seeds 0 to 2
    python -m benchmarks.repeated_samples --data-dir DATA --test --seeds 100 101 102

Each row is a case and how samples are copied, with the mean over seeds: clusters that are found before training, their
ARI where clusters are planted, and the accuracies of FedAvg and Auto on test samples without copies.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.regret_cases import PlantedSources
from kinfed.data import Partition, Population, build_population, load
from kinfed.data.partitions import IID, Dirichlet
from kinfed.data.shifts import LabelPermutation, Rotation, Shift
from kinfed.experiment import Evaluation, Experiment
from kinfed.methods import Auto, FedAvg
from kinfed.metrics import agreement
from kinfed.models import make_model
from kinfed.training import LocalTraining

Rule = Callable[[int, Tensor, np.random.Generator], np.ndarray]  # (client, labels, rng) -> copies of each sample


@dataclass(frozen=True)
class Case:
    """One dataset and how clients differ, before samples are copied."""

    dataset: str
    partition: Partition
    shift: Shift | None = None
    samples: int | None = None
    copies: tuple[str, ...] = ("none", "twice", "five", "uneven", "clients")

    def draw(self, seed: int, data_dir: str) -> Population:
        """The clients, without copies."""
        return build_population(
            load(self.dataset, data_dir), self.partition, seed, train_samples=self.samples, test_samples=200,
            shift=self.shift,
        )  # fmt: skip


def balance(client: int, y: Tensor, rng: np.random.Generator) -> np.ndarray:
    """As many samples of each label as of the most frequent one."""
    labels, copies = y.numpy(), np.ones(len(y), dtype=int)
    for label in (counts := np.bincount(labels)).nonzero()[0]:
        own = np.flatnonzero(labels == label)
        copies[own] += np.bincount(rng.integers(len(own), size=counts.max() - len(own)), minlength=len(own))
    return copies


COPIES: dict[str, Rule] = {
    "none": lambda client, y, rng: np.ones(len(y), dtype=int),
    "twice": lambda client, y, rng: np.full(len(y), 2),
    "five": lambda client, y, rng: np.full(len(y), 5),
    "uneven": lambda client, y, rng: rng.integers(1, 9, len(y)),  # of each sample one to eight
    "clients": lambda client, y, rng: np.full(len(y), 1 + client % 5),  # some clients have copies, others none
    "balanced": balance,
}
ROTATED = Rotation(degrees=(0, 90))
DEVELOPMENT = {
    "digits": Case("digits", IID(20)),
    "digits, two rotations": Case("digits", IID(20), ROTATED),
    "fashion": Case("fashion_mnist", IID(30), samples=50),
    "fashion, two rotations": Case("fashion_mnist", IID(30), ROTATED, samples=50),
    "fashion, Dirichlet(1)": Case("fashion_mnist", Dirichlet(30, beta=1.0), samples=60, copies=("none", "balanced")),
}
TEST = {
    "mnist": Case("mnist", IID(30), samples=50),
    "mnist, two rotations": Case("mnist", IID(40), ROTATED, samples=80),
    "mnist, other labels": Case("mnist", IID(30), LabelPermutation(2), samples=60),
    "mnist, Dirichlet(1)": Case("mnist", Dirichlet(30, beta=1.0), samples=60, copies=("none", "balanced")),
    "heart": Case("heart", IID(12)),
    "heart, four hospitals": Case("heart", PlantedSources(16)),
    "har": Case("har", IID(20), samples=60),
    "har, subjects": Case("har", PlantedSources(30), samples=60),
}


def copy_samples(population: Population, rule: Rule, seed: int) -> Population:
    """The clients with copies of their training samples, in random order; test samples have none."""
    rng, start, pool, train = np.random.default_rng(seed), len(population.y), [], []
    for client, own in enumerate(population.train):
        copies = np.repeat(own.numpy(), rule(client, population.y[own], rng))
        train.append(torch.arange(start, start + len(copies)))
        pool.append(torch.from_numpy(rng.permutation(copies)))
        start += len(copies)
    copied = torch.cat(pool)
    x, y = (torch.cat([part, part[copied]]) for part in (population.x, population.y))
    return replace(population, x=x, y=y, train=tuple(train))


def measure(population: Population, seed: int, options: argparse.Namespace) -> list[float]:
    """Clusters that Auto finds, their ARI, accuracies of FedAvg and Auto in per cent."""
    model = make_model("mlp_200", tuple(population.x.shape[1:]), population.classes)
    local, scores = LocalTraining(epochs=2, batch_size=20, lr=options.lr), []
    for kind in (FedAvg, Auto):
        run = Experiment(
            kind(model, local), population, rounds=options.rounds, fraction=0.5, seed=seed,
            evaluation=Evaluation(every=10**6, metrics="main", signatures="none"),
        )  # fmt: skip
        scores.append(100 * float(run.run()["accuracy"] or 0))
    found, true = run.state.clusters, population.true_clusters
    ari = np.nan if true is None or len(true.unique()) < 2 else agreement(found, true)["ari"]
    return [len(found.unique()), ari, *scores]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", action="store_true", help="the test cases")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--only", nargs="*", default=[], help="these cases")
    parser.add_argument("--copies", nargs="*", default=[], help="these ways to copy samples")
    options = parser.parse_args()
    header = "| case | copies | clusters found | ARI | FedAvg | Auto | Auto − FedAvg of each seed |"
    print(header + "\n" + "|---" * 7 + "|")
    for name, case in (TEST if options.test else DEVELOPMENT).items():
        for how in case.copies:
            if (options.only and name not in options.only) or (options.copies and how not in options.copies):
                continue
            drawn = ((seed, case.draw(seed, options.data_dir)) for seed in options.seeds)
            rows = np.array([measure(copy_samples(own, COPIES[how], seed), seed, options) for seed, own in drawn])
            apart = ", ".join(f"{row[3] - row[2]:+.1f}" for row in rows)
            clusters = ", ".join(f"{row[0]:.0f}" for row in rows)
            means = rows.mean(0)
            print(
                f"| {name} | {how} | {clusters} | {means[1]:.2f} | {means[2]:.1f} | {means[3]:.1f} | {apart} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
