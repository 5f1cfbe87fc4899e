"""P3 and P4: planted groups of clients with a few labels each (FLT scenarios 1 and 2, table V).

Deviations from FLT's code: no row is repeated where a class is too small (bug 4 of methods.md 2.8.8). P3's blocks are
floor(class size / clients of the group); P4's are floor(N / M / labels), or less where the class is too small.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kinfed.checks import at_least, one_of
from kinfed.data.partitions.local_tests import all_of
from kinfed.data.partitions.split import Labels, Promise, Split
from kinfed.data.sampling import Index
from kinfed.errors import ConfigError, DataError

TABLE_V_ROWS = 250  # CIFAR-10; MNIST would be 300


@dataclass(frozen=True)
class DisjointClasses:
    """Planted groups with labels of their own; clients of a group hold equal blocks of them (FLT scenario 1)."""

    clients: int = 100  # M, how many there are
    clusters: int = 5  # C, planted
    labels_per_cluster: int = 2  # of its own
    samples_per_class: int | None = None  # at most so many rows of a label for each client; None: all there are

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, clusters=self.clusters, labels_per_cluster=self.labels_per_cluster)
        at_least(1, samples_per_class=1 if self.samples_per_class is None else self.samples_per_class)

    @property
    def promise(self) -> Promise:
        return Promise(minimum=self.labels_per_cluster)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        cluster_of = contiguous_clusters(self.clients, self.clusters)
        order = permuted_labels(labels, self.clusters * self.labels_per_cluster, rng)
        held = order.reshape(self.clusters, self.labels_per_cluster)
        return deal_blocks(labels, held, cluster_of, self.samples_per_class or len(labels.train))


@dataclass(frozen=True)
class SharedClass:
    """Planted groups in a ring, each shares one label with either neighbour (FLT scenario 2)."""

    clients: int = 100  # M, how many there are
    clusters: int = 5  # C, planted
    labels_per_cluster: int = 3  # of which it shares one with each neighbour
    sampling: Literal["blocks", "random"] = "blocks"  # random: table V's sampler, independent of the number of clients
    samples_per_class: int | None = None  # None: floor(N / M / labels) for blocks, 250 for random

    def __post_init__(self) -> None:
        at_least(2, labels_per_cluster=self.labels_per_cluster)
        at_least(3, clusters=self.clusters)
        at_least(
            1, clients=self.clients, samples_per_class=1 if self.samples_per_class is None else self.samples_per_class
        )
        one_of(("blocks", "random"), sampling=self.sampling)

    @property
    def promise(self) -> Promise:
        return Promise(disjoint=False, minimum=self.labels_per_cluster)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        cluster_of = contiguous_clusters(self.clients, self.clusters)
        step = self.labels_per_cluster - 1
        order = permuted_labels(labels, self.clusters * step, rng)
        held = np.array([[order[(g * step + i) % len(order)] for i in range(step + 1)] for g in range(self.clusters)])
        if self.sampling == "random":
            return draw_at_random(labels, held, cluster_of, self.samples_per_class or TABLE_V_ROWS, rng)
        per_class = len(labels.train) // self.clients // self.labels_per_cluster
        return deal_blocks(labels, held, cluster_of, self.samples_per_class or per_class)


def contiguous_clusters(clients: int, clusters: int) -> Index:
    """Group of each client: the first clients are group 0, the next group 1, ..., sizes differ by one at most."""
    if clusters > clients:
        raise ConfigError(f"{clusters} groups need at least as many clients, got {clients}; use fewer groups")
    return np.repeat(np.arange(clusters), [len(part) for part in np.array_split(np.arange(clients), clusters)])


def permuted_labels(labels: Labels, wanted: int, rng: np.random.Generator) -> Index:
    """`wanted` of the labels in random order."""
    if wanted > labels.classes:
        raise DataError(
            f"these groups need {wanted} labels, the data have {labels.classes}; use fewer groups or labels_per_cluster"
        )
    return rng.permutation(labels.classes)[:wanted]


def deal_blocks(labels: Labels, held: Index, cluster_of: Index, limit: int) -> Split:
    """The client of rank r in its group takes the r-th block of each label of the group, `limit` rows at most."""
    rank = np.arange(len(cluster_of)) - np.searchsorted(cluster_of, cluster_of)
    members = np.bincount(cluster_of)
    rows = {label: np.flatnonzero(labels.train == label) for label in np.unique(held)}
    block = {(g, label): min(limit, len(rows[label]) // members[g]) for g in range(len(held)) for label in held[g]}
    for (cluster, label), size in block.items():
        if size == 0:
            raise DataError(
                f"label {label} has {len(rows[label])} rows for the {members[cluster]} clients of group {cluster}; "
                "use fewer clients"
            )
    train = [
        np.sort(np.concatenate([rows[label][r * block[g, label] : (r + 1) * block[g, label]] for label in held[g]]))
        for g, r in zip(cluster_of, rank, strict=True)
    ]
    return Split(train, tests_of_clusters(labels, held, cluster_of), cluster_of)


def draw_at_random(labels: Labels, held: Index, cluster_of: Index, count: int, rng: np.random.Generator) -> Split:
    """Each client draws `count` rows of each of its labels from the whole class; clients overlap."""
    rows = {label: np.flatnonzero(labels.train == label) for label in np.unique(held)}
    for label, found in rows.items():
        if len(found) < count:
            raise DataError(
                f"label {label} has {len(found)} rows, samples_per_class wants {count}; set samples_per_class lower"
            )
    train = [
        np.sort(np.concatenate([rng.choice(rows[label], count, replace=False) for label in held[g]]))
        for g in cluster_of
    ]
    return Split(train, tests_of_clusters(labels, held, cluster_of), cluster_of)


def tests_of_clusters(labels: Labels, held: Iterable[Index], cluster_of: Index) -> list[Index]:
    """For each client all test rows of its group's labels; the clients of a group share them."""
    tests = [all_of(labels, of_cluster) for of_cluster in held]
    return [tests[cluster] for cluster in cluster_of]
