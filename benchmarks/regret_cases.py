"""Kinds of heterogeneity: what benchmarks/regret.py is run on."""

from dataclasses import dataclass, replace

import numpy as np

from kinfed.data import Partition
from kinfed.data.partitions import IID, Dirichlet, DisjointClasses, Labels, SharedClass, Split, Structured, Writers
from kinfed.data.shifts import Augment, LabelPermutation, LabelSwap, Rotation, Shift
from kinfed.learning_tasks import Classification, LearningTask, Regression

CLIENTS = 100


@dataclass(frozen=True)
class Case:
    """One dataset and how clients differ."""

    dataset: str
    partition: Partition
    shift: Shift | None = None
    train_samples: int | None = 500
    test_samples: int | None = 200
    model: str = "mlp_200"
    fraction: float = 0.2
    task: LearningTask = Classification()


@dataclass(frozen=True)
class PlantedLabels:
    """Clusters of these numbers of clients, with labels of their own in shares drawn from Dirichlet(beta) or even."""

    sizes: tuple[int, ...]
    samples: int = 300
    beta: float = np.inf

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        names = np.array_split(rng.permutation(labels.classes), len(self.sizes))
        train, test, planted = [], [], []
        for cluster, (own, clients) in enumerate(zip(names, self.sizes, strict=True)):
            for _ in range(clients):
                share = (
                    np.full(len(own), 1 / len(own)) if np.isinf(self.beta) else rng.dirichlet([self.beta] * len(own))
                )
                train.append(draw(labels.train, own, share, self.samples, rng))
                test.append(draw(labels.test, own, share, 200, rng))
                planted.append(cluster)
        return Split(train, test, np.array(planted))


@dataclass(frozen=True)
class PlantedSources:
    """As many clients of each source of a dataset; a source's samples are dealt out evenly, none to two clients."""

    clients: int

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        sources = labels.writer_train, labels.writer_test
        if sources[0] is None or sources[1] is None:
            raise ValueError("the dataset does not say which source a sample is from")
        names, parts = np.unique(sources[0]), ([], [])
        each = self.clients // len(names)
        for part, source in zip(parts, sources, strict=True):
            for name in names:
                part.extend(np.array_split(rng.permutation(np.flatnonzero(source == name)), each))
        return Split(*parts, np.repeat(np.arange(len(names)), each))


def draw(labels: np.ndarray, own: np.ndarray, share: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of samples with these labels in these shares; at most all there are of a label."""
    counts = rng.multinomial(samples, share)
    parts = []
    for label, count in zip(own, counts, strict=True):
        there = np.flatnonzero(labels == label)
        parts.append(rng.choice(there, min(count, len(there)), replace=False))
    return np.sort(np.concatenate(parts))


def kinds(dataset: str, **given: object) -> dict[str, Case]:
    """All kinds of heterogeneity of ten classes."""
    case = Case(dataset, IID(CLIENTS), **given)  # type: ignore[arg-type]
    cases = {
        "iid": case,
        "disjoint": replace(case, partition=DisjointClasses(CLIENTS, 5)),
        "shared": replace(case, partition=SharedClass(CLIENTS, 5)),
        "dirichlet-0.1": replace(case, partition=Dirichlet(CLIENTS, 0.1)),
        "dirichlet-0.5": replace(case, partition=Dirichlet(CLIENTS, 0.5)),
        "dirichlet-1": replace(case, partition=Dirichlet(CLIENTS, 1.0)),
        "swap": replace(case, shift=LabelSwap()),
        "rotation": replace(case, shift=Rotation()),
        "style": replace(case, shift=Augment(pipelines=4)),
        "groups-dirichlet": replace(case, partition=PlantedLabels((20,) * 5, beta=1.0)),
        "unequal": replace(case, partition=PlantedLabels((60, 20, 20))),
        "one-of-5": replace(case, partition=PlantedLabels((25, 25, 25, 20, 5))),
        "two-groups": replace(case, partition=PlantedLabels((50, 50))),
        "few": replace(case, partition=PlantedLabels((20,) * 5, samples=20)),
        "few-rotation": replace(case, shift=Rotation(), train_samples=20),
    }
    return {f"{dataset}-{name}": each for name, each in cases.items()}


def few_clients(dataset: str, clients: int) -> dict[str, Case]:
    """Kinds of heterogeneity of a handful of clients, who are all in every round."""
    case = Case(dataset, IID(clients), train_samples=300, fraction=1.0)
    half = clients // 2
    cases = {
        "iid": case,
        "two-groups": replace(case, partition=PlantedLabels((half, clients - half))),
        "alone": replace(case, partition=PlantedLabels((1,) * clients)),
        "rotation": replace(case, shift=Rotation()),
        "swap": replace(case, shift=LabelSwap()),
        "dirichlet-0.3": replace(case, partition=Dirichlet(clients, 0.3)),
    }
    if clients > 10:
        del cases["alone"]  # ten labels
    return {f"{dataset}-{clients}-clients-{name}": each for name, each in cases.items()}


def regressions() -> dict[str, Case]:
    """Numbers as targets: tables of `benchmarks/regression_tables.py`."""
    tables, friedman = "benchmarks.regression_tables:load_", Regression(mean=14.4, std=4.9)
    made = Case(tables + "friedman", PlantedSources(40), train_samples=100, test_samples=50, task=friedman)
    patients = replace(made, partition=PlantedSources(10), fraction=1.0, task=Regression(mean=152, std=77))
    return {
        "friedman-iid": replace(made, dataset=tables + "mixed_friedman"),
        "friedman-columns": made,
        "diabetes-iid": replace(patients, dataset=tables + "mixed_patients"),
        "diabetes-sexes": replace(patients, dataset=tables + "patients"),
        "diabetes-mirrored": replace(patients, dataset=tables + "mirrored_patients"),
    }


def unrelated() -> dict[str, Case]:
    """Sixteen clients that each have names of their own for all labels, or for two; or a function of other columns."""
    case = Case("digits", IID(16), LabelPermutation(10), train_samples=100, fraction=0.5)
    columns = Case(
        "benchmarks.regression_tables:load_own_friedman", PlantedSources(16), train_samples=120, fraction=0.5,
        task=Regression(mean=14.4, std=4.9),
    )  # fmt: skip
    names = {f"{name}-own-labels": replace(case, dataset=name) for name in ("digits", "mnist", "fashion_mnist")}
    two = replace(case, dataset="fashion_mnist", shift=LabelPermutation(2))
    return {**names, "fashion_mnist-own-two-labels": two, "friedman-own-columns": columns}


CASES = {
    **kinds("mnist"),
    **kinds("fashion_mnist"),
    **kinds("cifar10", model="lenet5"),
    "emnist47-structured": Case("emnist47", Structured(600, 10), fraction=0.1),
    "emnist47-twenty-groups": Case("emnist47", PlantedLabels((10,) * 20)),
    "femnist-writers": Case("femnist", Writers(200, 20)),
    **few_clients("mnist", 6),
    **few_clients("mnist", 12),
    **few_clients("fashion_mnist", 5),
    **few_clients("fashion_mnist", 10),
    **regressions(),
    **unrelated(),
}
