"""Few labels a client: label skew of q percent (P8: FLIS 20 % and 30 %; NIID-Bench's #label), and shards of labels."""

from dataclasses import dataclass
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from kinfed.checks import above_zero, at_least, fraction
from kinfed.data.partitions.split import (
    Index,
    Labels,
    Promise,
    Split,
    SplitsSamples,
    draw_alike,
    need_samples,
    samples_of_each,
    samples_of_labels,
    samples_of_own_labels,
    shares,
)
from kinfed.errors import ConfigError, DataError

TRIES = 1000


@dataclass(frozen=True)
class LabelSkew(SplitsSamples):
    """Each client holds the same share of the labels, chosen at random (FLIS, NIID-Bench)."""

    clients: int = 100  # M, how many there are
    share: float = 0.2  # q: of the labels that a client holds
    every_label: bool = False  # redraw until every label is held by somebody (FedZoo)

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients)
        fraction(share=self.share)
        if self.share == 0:
            raise ConfigError("share must be above 0, got 0; a client needs at least one label")

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        need_samples(self.clients, len(labels.train), f"label_skew with {self.clients} clients")
        held = self.hold(labels.classes, rng)
        parts: list[list[Index]] = [[] for _ in range(self.clients)]
        for label in range(labels.classes):
            holders = np.flatnonzero((held == label).any(1))
            samples = rng.permutation(np.flatnonzero(labels.train == label))
            if len(samples) < len(holders):
                raise DataError(
                    f"label {label} has {len(samples)} samples for {len(holders)} clients; "
                    "use fewer clients or a lower share"
                )
            for client, part in zip(holders, np.array_split(samples, max(len(holders), 1)), strict=False):
                parts[client].append(part)
        return Split(
            [np.sort(np.concatenate(part)) for part in parts], [samples_of_labels(labels, own) for own in held]
        )

    def hold(self, classes: int, rng: np.random.Generator) -> Index:
        """The labels of each client: [clients, labels of a client]."""
        count = max(1, round(self.share * classes))
        if self.every_label and count * self.clients < classes:
            raise DataError(
                f"{self.clients} clients with {count} labels cannot hold {classes} labels; use more clients or share"
            )
        for _ in range(TRIES):
            held = np.array([draw_labels(client % classes, count, classes, rng) for client in range(self.clients)])
            if not self.every_label or len(np.unique(held)) == classes:
                return held
        raise DataError(f"no draw of {TRIES} gave every label to a client; use more clients or set every_label = false")


def draw_labels(first: int, count: int, classes: int, rng: np.random.Generator) -> Index:
    """The label `first` and count-1 distinct others."""
    rest = np.delete(np.arange(classes), first)
    return np.concatenate([[first], rng.choice(rest, count - 1, replace=False)])


@dataclass(frozen=True)
class Pathological(SplitsSamples):
    """Labels in order to clients in order, a few labels each, in parts of random size (PFLlib's pathological split)."""

    clients: int = 20  # M, how many there are
    labels_per_client: int = 2  # labels of each client
    balanced: bool = False  # a label's holders have equal parts of it
    least: int = 40  # samples that a client should have; a part has at least this number over all labels

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, labels_per_client=self.labels_per_client, least=self.least)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        if self.labels_per_client > labels.classes:
            raise DataError(
                f"{self.labels_per_client} labels a client, the data have {labels.classes}; set labels_per_client lower"
            )
        free = np.full(self.clients, self.labels_per_client)  # labels that a client still wants
        holders = ceil(self.clients / labels.classes * self.labels_per_client)
        parts: list[list[Index]] = [[] for _ in range(self.clients)]
        for label in range(labels.classes):
            chosen, samples = np.flatnonzero(free)[:holders], np.flatnonzero(labels.train == label)
            if len(chosen):
                need_samples(len(chosen), len(samples), f"label {label} at {len(chosen)} clients")
                ends = np.cumsum(self.draw_sizes(len(samples), len(chosen), labels.classes, rng))[:-1]
                for client, part in zip(chosen, np.split(samples, ends), strict=True):
                    parts[client].append(part)
            free[chosen] -= 1
        train = [np.sort(np.concatenate(part)) for part in parts]
        return Split(train, samples_of_own_labels(labels, train))

    def draw_sizes(self, samples: int, holders: int, classes: int, rng: np.random.Generator) -> Index:
        """How many of a label's samples each of its holders gets; the last one has what is left."""
        even = samples / holders
        low, high = int(max(even / 10, self.least / classes)), int(even)
        random = rng.integers(min(low, high - 1), high, holders - 1) if high > 1 else np.ones(holders - 1, np.int64)
        sizes = np.full(holders - 1, high) if self.balanced else random
        return np.append(sizes, samples - sizes.sum()).astype(np.int64)


@dataclass(frozen=True)
class Shards:
    """Samples sorted by label and cut into shards; each client gets a few random shards (pathological non-IID)."""

    clients: int = 100  # M, how many there are
    shards_per_client: int = 2  # shards that each client gets
    exact_two_classes: bool = False  # every client has exactly two labels
    test_samples: int = 100  # of each client

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, shards_per_client=self.shards_per_client, test_samples=self.test_samples)
        if self.exact_two_classes and self.shards_per_client != 2:
            raise ConfigError(f"exact_two_classes needs shards_per_client = 2, got {self.shards_per_client}")

    @property
    def promise(self) -> Promise:
        return Promise(complete=True, spread=None if self.exact_two_classes else self.shards_per_client)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        count = self.clients * self.shards_per_client
        need_samples(count, len(labels.train), f"shards with {count} shards")
        if self.exact_two_classes:
            shards = shards_within_classes(labels, count)
            hands = two_labels_each(np.array([labels.train[shard[0]] for shard in shards]), rng)
        else:
            shards = np.array_split(np.argsort(labels.train, kind="stable"), count)
            hands = rng.permutation(count).reshape(self.clients, -1)
        train = [np.sort(np.concatenate([shards[shard] for shard in hand])) for hand in hands]
        return Split(train, [draw_alike(labels, samples, self.test_samples, rng) for samples in train])


def shards_within_classes(labels: Labels, count: int) -> list[Index]:
    """`count` shards of one label each; every label gets one at least and the rest by its size."""
    samples = samples_of_each(labels.train)
    if len(samples) > count:
        raise DataError(f"{len(samples)} labels need at least {len(samples)} shards, got {count}; use more clients")
    sizes = np.array([len(part) for part in samples])
    deserved = 1 + shares(sizes - 1, count - len(samples))
    return [shard for part, n in zip(samples, deserved, strict=True) for shard in np.array_split(part, n)]


def two_labels_each(label: Index, rng: np.random.Generator) -> Index:
    """Pairs of shards [clients, 2] whose two labels differ, from label[shard]."""
    hands = rng.permutation(len(label)).reshape(-1, 2)
    most = int(np.bincount(label).max())
    if most > len(hands):
        raise DataError(
            f"exact_two_classes is impossible: label {int(np.bincount(label).argmax())} fills {most} shards, "
            f"more than there are clients ({len(hands)}); leave it out, or balance the labels"
        )
    for client in range(len(hands)):
        mine = label[hands[client]]
        if mine[0] == mine[1]:  # as no label fills more shards than clients, somebody has none of it
            partner = rng.choice(np.flatnonzero((label[hands] != mine[0]).all(1)))
            hands[client, 1], hands[partner, 1] = hands[partner, 1], hands[client, 1]
    return hands


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
