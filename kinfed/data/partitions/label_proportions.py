"""P9: Dirichlet label proportions (FLIS Dir(0.1), NIID-Bench; `balanced=False, minimum=1` is near CFL's).

P10: every client has all labels, some over- and some under-represented (REPA's label skew on CIFAR-10).

The paper gives no numbers; three labels of six times the weight are ours, 80 clients are the paper's. Every label is
favoured by equally many clients (or one more), so that all samples can be dealt out and clients are of similar sizes.
Test samples: labels in the shares of the training samples, `test_samples` in all; clients may share them.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from kinfed.checks import above_zero, at_least
from kinfed.data.partitions.split import Labels, Promise, Split, draw_alike, need_samples, samples_of_own_labels
from kinfed.data.sampling import Index, samples_of_each
from kinfed.errors import ConfigError, DataError


@dataclass(frozen=True)
class Dirichlet:
    """Each label spread over the clients by Dirichlet(beta), redrawn until everyone has enough samples (FLIS)."""

    clients: int = 100  # M, how many there are
    beta: float = 0.1  # β: small is skewed
    minimum: int = 10  # samples of the smallest client (FedZoo 15)
    balanced: bool = True  # clients that have their fair number of samples get no more
    tries: int = 1000  # draws at most, until the smallest client has `minimum` samples

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, minimum=self.minimum, tries=self.tries)
        above_zero(beta=self.beta)

    @property
    def promise(self) -> Promise:
        return Promise(complete=True, minimum=self.minimum)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        need_samples(
            self.clients * self.minimum, len(labels.train), f"{self.clients} clients with {self.minimum} samples each"
        )
        for _ in range(self.tries):
            counts = self.draw_counts(labels, rng)
            if counts.sum(0).min() >= self.minimum:
                train = deal(labels, counts, rng)
                return Split(train, samples_of_own_labels(labels, train))
        raise DataError(
            f"in {self.tries} draws of Dirichlet({self.beta}) over {self.clients} clients somebody always had "
            f"fewer than {self.minimum} of {len(labels.train)} samples; use fewer clients, more beta or less minimum"
        )

    def draw_counts(self, labels: Labels, rng: np.random.Generator) -> Index:
        """How many samples of each label each client gets: [labels that occur, clients]."""
        fair = len(labels.train) / self.clients
        total = np.zeros(self.clients, np.int64)
        counts: list[Index] = []
        for samples in samples_of_each(labels.train):
            weight = rng.dirichlet(np.full(self.clients, self.beta))
            full = (total >= fair) if self.balanced else np.zeros(self.clients, bool)
            counts.append(cut(len(samples), weight, full))
            total += counts[-1]
        return np.array(counts)


def cut(samples: int, weight: npt.NDArray[np.float64], full: npt.NDArray[np.bool_]) -> Index:
    """`samples` cut by the cumulated weights of those clients that are not full yet."""
    weight = np.where(full, 0.0, np.nan_to_num(weight))
    if weight.sum() == 0:  # all the weight was on full clients
        weight = (~full).astype(np.float64)
    ends = np.round(np.cumsum(weight) / weight.sum() * samples, 6).astype(np.int64)
    sizes: Index = np.diff(ends, prepend=0)
    return sizes


def deal(labels: Labels, counts: Index, rng: np.random.Generator) -> list[Index]:
    """Shuffled samples of each label, handed out by counts."""
    parts = [
        np.split(rng.permutation(samples), np.cumsum(n)[:-1])
        for samples, n in zip(samples_of_each(labels.train), counts, strict=True)
    ]
    return [np.sort(np.concatenate(of_client)) for of_client in zip(*parts, strict=True)]


@dataclass(frozen=True)
class FavouredLabels:
    """Each client has all labels, but several times as many samples of a few favoured ones (REPA)."""

    clients: int = 80  # M, how many there are
    favoured: int = 3  # labels of each client
    weight: float = 6.0  # samples of a favoured label for each sample of another
    test_samples: int = 100  # of each client

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, favoured=self.favoured, test_samples=self.test_samples)
        if not 1 <= self.weight < inf:
            raise ConfigError(f"weight must be a number of at least 1 (which favours nothing), got {self.weight}")

    @property
    def promise(self) -> Promise:
        return Promise(complete=True)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        need_samples(self.clients, len(labels.train), f"favoured_labels with {self.clients} clients")
        if self.favoured >= labels.classes:
            raise DataError(
                f"{self.favoured} of {labels.classes} labels cannot be favoured over the others; use fewer favoured"
            )
        weights = np.where(favourites(self.clients, self.favoured, labels.classes, rng), self.weight, 1.0)
        counts = [
            count_in_random_order(len(samples), weights[:, labels.train[samples[0]]], rng)
            for samples in samples_of_each(labels.train)
        ]
        train = deal(labels, np.array(counts), rng)
        return Split(train, [draw_alike(labels, samples, self.test_samples, rng) for samples in train])


def favourites(clients: int, favoured: int, classes: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which labels each client favours ([clients, classes]): those that the fewest did before it, ties at random."""
    chosen = np.zeros((clients, classes), bool)
    for client in range(clients):
        order = np.lexsort((rng.random(classes), chosen.sum(0)))
        chosen[client, order[:favoured]] = True
    return chosen


def count_in_random_order(samples: int, weight: npt.NDArray[np.float64], rng: np.random.Generator) -> Index:
    """How many of the samples each client gets by its weight; those that rounding leaves go to random clients."""
    order = rng.permutation(len(weight))
    counts = np.empty(len(weight), np.int64)
    counts[order] = cut(samples, weight[order], np.zeros(len(weight), bool))
    return counts
