"""P10: every client has all labels, some over- and some under-represented (REPA's label skew on CIFAR-10).

The paper gives no numbers; three labels of six times the weight are ours, 80 clients are the paper's. Every label is
favoured by equally many clients (or one more), so that all rows can be dealt out and clients are of similar sizes.
Test rows: labels in the shares of the training rows, `test_samples` in all; clients may share them.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from kinfed.checks import at_least
from kinfed.data.partitions.dirichlet import cut, deal
from kinfed.data.partitions.local_tests import alike
from kinfed.data.partitions.split import Labels, Promise, Split, enough
from kinfed.data.sampling import Index, rows_of_each
from kinfed.errors import ConfigError, DataError


@dataclass(frozen=True)
class FavouredLabels:
    """Each client has all labels, but several times as many rows of a few favoured ones (REPA)."""

    clients: int = 80  # M, how many there are
    favoured: int = 3  # labels of each client
    weight: float = 6.0  # rows of a favoured label for each row of another
    test_samples: int = 100  # of each client

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, favoured=self.favoured, test_samples=self.test_samples)
        if not 1 <= self.weight < inf:
            raise ConfigError(f"weight must be a number of at least 1 (which favours nothing), got {self.weight}")

    @property
    def promise(self) -> Promise:
        return Promise(complete=True)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        enough(self.clients, len(labels.train), f"favoured_labels with {self.clients} clients")
        if self.favoured >= labels.classes:
            raise DataError(
                f"{self.favoured} of {labels.classes} labels cannot be favoured over the others; use fewer favoured"
            )
        weights = np.where(favourites(self.clients, self.favoured, labels.classes, rng), self.weight, 1.0)
        counts = [
            in_random_order(len(rows), weights[:, labels.train[rows[0]]], rng) for rows in rows_of_each(labels.train)
        ]
        train = deal(labels, np.array(counts), rng)
        return Split(train, [alike(labels, rows, self.test_samples, rng) for rows in train])


def favourites(clients: int, favoured: int, classes: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which labels each client favours ([clients, classes]): those that the fewest did before it, ties at random."""
    chosen = np.zeros((clients, classes), bool)
    for client in range(clients):
        order = np.lexsort((rng.random(classes), chosen.sum(0)))
        chosen[client, order[:favoured]] = True
    return chosen


def in_random_order(rows: int, weight: npt.NDArray[np.float64], rng: np.random.Generator) -> Index:
    """How many of the rows each client gets by its weight; luck decides who gets the rows that rounding leaves."""
    order = rng.permutation(len(weight))
    counts = np.empty(len(weight), np.int64)
    counts[order] = cut(rows, weight[order], np.zeros(len(weight), bool))
    return counts
