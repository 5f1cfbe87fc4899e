"""P5: structured non-IID EMNIST with quantity skew (FLT scenario 4, workshop scenario 2).

Labels in natural order, `labels_per_cluster` for each cluster, the last takes what is left. Without FLT's bug 5 (the
last group's test rows contained the digit 0).
"""

from dataclasses import dataclass

import numpy as np

from kinfed.checks import at_least
from kinfed.data.partitions.grouped_labels import contiguous_clusters, tests_of_clusters
from kinfed.data.partitions.split import Labels, Promise, Split, enough
from kinfed.data.sampling import Index
from kinfed.errors import DataError


@dataclass(frozen=True)
class Structured:
    """Planted groups of consecutive labels with exponential quantity skew inside each (FLT scenario 4)."""

    clients: int = 2400  # M, how many there are
    clusters: int = 10  # C, planted
    labels_per_cluster: int = 5  # of its own

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, clusters=self.clusters, labels_per_cluster=self.labels_per_cluster)

    @property
    def promise(self) -> Promise:
        return Promise()

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        cluster_of = contiguous_clusters(self.clients, self.clusters)
        width = self.labels_per_cluster
        if (self.clusters - 1) * width >= labels.classes:
            needed = (self.clusters - 1) * width + 1
            raise DataError(
                f"{self.clusters} clusters of {width} labels need at least {needed}, the data have {labels.classes}"
            )
        cluster_of_row = labels.train // width
        train: list[Index] = []
        for cluster, members in enumerate(np.bincount(cluster_of)):
            rows = rng.permutation(np.flatnonzero(cluster_of_row == cluster))
            enough(members, len(rows), f"group {cluster} with {members} clients")
            train += [np.sort(part) for part in np.split(rows, np.cumsum(skewed_sizes(len(rows), members))[:-1])]
        held = [
            np.arange(cluster * width, min((cluster + 1) * width, labels.classes)) for cluster in range(self.clusters)
        ]
        return Split(train, tests_of_clusters(labels, held, cluster_of), cluster_of)


def skewed_sizes(total: int, clients: int) -> Index:
    """Sizes floor(F + exp(x·i²)) of clients i = 1..m with F = floor(total / 2m); client 1 also gets the remainder."""
    base = total // (2 * clients)
    square = np.arange(1, clients + 1, dtype=np.float64) ** 2
    exponent = solve_exponent(square, total - base * clients)
    sizes: Index = np.floor(base + np.exp(exponent * square)).astype(np.int64)
    sizes[0] += total - sizes.sum()
    if sizes.min() < 1:
        raise DataError(
            f"{total} rows are too few for the quantity skew of {clients} clients, one would get none; use fewer"
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
