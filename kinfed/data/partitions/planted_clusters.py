"""P3 and P4: planted clusters of clients with a few labels each (FLT scenarios 1 and 2, table V).

Deviations from FLT's code: no sample is repeated where a class is too small (bug 4 of methods.md 2.8.8). P3's blocks
are floor(class size / clients of the cluster); P4's are floor(N / M / labels), or less where the class is too small.

P5: structured non-IID EMNIST with quantity skew (FLT scenario 4, workshop scenario 2).

Labels in natural order, `labels_per_cluster` for each cluster, the last takes what is left. FLT's bug 5 (the last
cluster's test samples contained the digit 0) is there only with `pads_tests`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kinfed.checks import at_least, one_of
from kinfed.data.partitions.split import Index, Labels, Promise, Split, SplitsSamples, need_samples, samples_of_labels
from kinfed.errors import ConfigError, DataError

TABLE_V_SAMPLES = 250  # CIFAR-10; MNIST would be 300


@dataclass(frozen=True)
class DisjointClasses:
    """Planted clusters with labels of their own; clients of a cluster hold equal blocks of them (FLT scenario 1)."""

    clients: int = 100  # M, how many there are
    clusters: int = 5  # C, planted
    labels_per_cluster: int = 2  # of its own
    samples_per_class: int | None = None  # at most so many samples of a label for each client; None: all there are

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, clusters=self.clusters, labels_per_cluster=self.labels_per_cluster)
        at_least(1, samples_per_class=1 if self.samples_per_class is None else self.samples_per_class)

    @property
    def promise(self) -> Promise:
        return Promise(minimum=self.labels_per_cluster)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        cluster_of = contiguous_clusters(self.clients, self.clusters)
        order = permute_labels(labels, self.clusters * self.labels_per_cluster, rng)
        held = order.reshape(self.clusters, self.labels_per_cluster)
        return deal_blocks(labels, held, cluster_of, self.samples_per_class or len(labels.train))


@dataclass(frozen=True)
class SharedClass:
    """Planted clusters in a ring, each shares one label with either neighbour (FLT scenario 2)."""

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
        order = permute_labels(labels, self.clusters * step, rng)
        held = np.array([[order[(g * step + i) % len(order)] for i in range(step + 1)] for g in range(self.clusters)])
        if self.sampling == "random":
            return draw_at_random(labels, held, cluster_of, self.samples_per_class or TABLE_V_SAMPLES, rng)
        per_class = len(labels.train) // self.clients // self.labels_per_cluster
        return deal_blocks(labels, held, cluster_of, self.samples_per_class or per_class)


def contiguous_clusters(clients: int, clusters: int, key: str = "partition.clusters") -> Index:
    """Cluster of each client: the first clients are cluster 0, the next cluster 1, ..., sizes differ by one at most.

    The key is that of the setting by which there are so many, for a message.
    """
    if clusters > clients:
        raise ConfigError(f"{clusters} clusters need at least as many clients, got {clients}; use fewer in {key}")
    return np.repeat(np.arange(clusters), [len(part) for part in np.array_split(np.arange(clients), clusters)])


def permute_labels(labels: Labels, wanted: int, rng: np.random.Generator) -> Index:
    """`wanted` of the labels in random order."""
    if wanted > labels.classes:
        raise DataError(
            f"these clusters need {wanted} labels, the data have {labels.classes}; "
            "use fewer clusters or labels_per_cluster"
        )
    return rng.permutation(labels.classes)[:wanted]


def deal_blocks(labels: Labels, held: Index, cluster_of: Index, limit: int) -> Split:
    """The client of rank r in its cluster takes the r-th block of each of its labels, `limit` samples at most."""
    rank = np.arange(len(cluster_of)) - np.searchsorted(cluster_of, cluster_of)
    members = np.bincount(cluster_of)
    samples = {label: np.flatnonzero(labels.train == label) for label in np.unique(held)}
    block = {(g, label): min(limit, len(samples[label]) // members[g]) for g in range(len(held)) for label in held[g]}
    for (cluster, label), size in block.items():
        if size == 0:
            raise DataError(
                f"label {label} has {len(samples[label])} samples for the {members[cluster]} clients of "
                f"cluster {cluster}; use fewer clients"
            )
    train = [
        np.sort(np.concatenate([samples[label][r * block[g, label] : (r + 1) * block[g, label]] for label in held[g]]))
        for g, r in zip(cluster_of, rank, strict=True)
    ]
    return Split(train, tests_of_clusters(labels, held, cluster_of), cluster_of)


def draw_at_random(labels: Labels, held: Index, cluster_of: Index, count: int, rng: np.random.Generator) -> Split:
    """Each client draws `count` samples of each of its labels from the whole class; clients overlap."""
    samples = {label: np.flatnonzero(labels.train == label) for label in np.unique(held)}
    for label, found in samples.items():
        if len(found) < count:
            raise DataError(
                f"label {label} has {len(found)} samples, samples_per_class wants {count}; set samples_per_class lower"
            )
    train = [
        np.sort(np.concatenate([rng.choice(samples[label], count, replace=False) for label in held[g]]))
        for g in cluster_of
    ]
    return Split(train, tests_of_clusters(labels, held, cluster_of), cluster_of)


def tests_of_clusters(labels: Labels, held: Iterable[Index], cluster_of: Index) -> list[Index]:
    """For each client all test samples of its cluster's labels; the clients of a cluster share them."""
    tests = [samples_of_labels(labels, of_cluster) for of_cluster in held]
    return [tests[cluster] for cluster in cluster_of]


@dataclass(frozen=True)
class Structured(SplitsSamples):
    """Planted clusters of consecutive labels with exponential quantity skew inside each (FLT scenario 4)."""

    clients: int = 2400  # M, how many there are
    clusters: int = 10  # C, planted
    labels_per_cluster: int = 5  # of its own
    balanced: bool = False  # of every label as many samples as of the rarest one
    pads_tests: bool = False  # a last cluster with fewer labels is tested on label 0, too, as by FLT's code

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, clusters=self.clusters, labels_per_cluster=self.labels_per_cluster)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        cluster_of = contiguous_clusters(self.clients, self.clusters)
        width = self.labels_per_cluster
        if (self.clusters - 1) * width >= labels.classes:
            needed = (self.clusters - 1) * width + 1
            raise DataError(
                f"{self.clusters} clusters of {width} labels need at least {needed}, the data have {labels.classes}"
            )
        cluster_of_sample = labels.train // width
        if self.balanced:
            cluster_of_sample = np.where(draw_balanced(labels.train, rng), cluster_of_sample, -1)
        train: list[Index] = []
        for cluster, members in enumerate(np.bincount(cluster_of)):
            samples = rng.permutation(np.flatnonzero(cluster_of_sample == cluster))
            need_samples(members, len(samples), f"cluster {cluster} with {members} clients")
            train += [np.sort(part) for part in np.split(samples, np.cumsum(skew_sizes(len(samples), members))[:-1])]
        held = [
            np.arange(cluster * width, min((cluster + 1) * width, labels.classes)) for cluster in range(self.clusters)
        ]
        if self.pads_tests and len(held[-1]) < width:
            held[-1] = np.append(held[-1], 0)
        tests = tests_of_clusters(labels, held, cluster_of)
        if self.balanced:
            chosen = draw_balanced(labels.test, rng)
            tests = [test[chosen[test]] for test in tests]
        return Split(train, tests, cluster_of)


def draw_balanced(labels: Index, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which samples are chosen so that all labels that occur have as many, those of the rarest."""
    chosen = np.zeros(len(labels), dtype=bool)
    counts = np.bincount(labels)
    for label in np.flatnonzero(counts):
        chosen[rng.choice(np.flatnonzero(labels == label), counts[counts > 0].min(), replace=False)] = True
    return chosen


def skew_sizes(total: int, clients: int) -> Index:
    """Sizes floor(F + exp(x·i²)) of clients i = 1..m with F = floor(total / 2m); client 1 also gets the remainder."""
    base = total // (2 * clients)
    square = np.arange(1, clients + 1, dtype=np.float64) ** 2
    exponent = solve_exponent(square, total - base * clients)
    sizes: Index = np.floor(base + np.exp(exponent * square)).astype(np.int64)
    sizes[0] += total - sizes.sum()
    if sizes.min() < 1:
        raise DataError(
            f"{total} samples are too few for the quantity skew of {clients} clients, one would get none; use fewer"
        )
    return sizes


def solve_exponent(square: np.ndarray[tuple[int], np.dtype[np.float64]], target: int) -> float:
    """The x with Σ exp(x·i²) = target, by bisection from below, so that the sum never exceeds the target."""
    low = min(0.0, float(np.log(target / len(square))))
    high = float(np.log(max(target, 1)) / square[-1]) if target > len(square) else 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.exp(middle * square).sum() <= target else (low, middle)
    return low
