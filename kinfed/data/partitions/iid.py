"""P1: independent and identically distributed clients (FL+HC: 100 clients with 600 samples of MNIST); P7: writers.

P6: label-swapped clusters (FL+HC after CFL): IID samples, but in cluster g two labels are exchanged, in train and test.

The split says which pairs; `kinfed.data.build` applies them as the shift `LabelSwap`. The pairs must be disjoint, or
the ceiling of one common model is not the 80 % of the paper.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kinfed.checks import at_least
from kinfed.data.partitions.planted_clusters import contiguous_clusters
from kinfed.data.partitions.split import (
    IgnoresLabels,
    Index,
    Labels,
    Promise,
    Split,
    SplitsSamples,
    even_parts,
    need_samples,
)
from kinfed.errors import ConfigError, DataError

log = logging.getLogger("kinfed")


@dataclass(frozen=True)
class IID(IgnoresLabels):
    """Shuffled samples, split evenly."""

    clients: int = 100  # M, how many there are

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients)

    @property
    def promise(self) -> Promise:
        return Promise(complete=True, spread=1)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        need_samples(self.clients, len(labels.train), f"iid with {self.clients} clients")
        train = [np.sort(part) for part in np.array_split(rng.permutation(len(labels.train)), self.clients)]
        return Split(train, even_parts(labels, self.clients, rng))


@dataclass(frozen=True)
class LabelSwapped:
    """Planted clusters of IID clients, in each cluster two labels are exchanged (FL+HC)."""

    clients: int = 100  # M, how many there are
    pairs: tuple[tuple[int, int], ...] = ((0, 1), (2, 3), (4, 5), (6, 7))  # the labels that each cluster exchanges

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, pairs=len(self.pairs))
        touched = [label for pair in self.pairs for label in pair]
        if len(set(touched)) < len(touched) or any(len(pair) != 2 for pair in self.pairs):
            raise ConfigError(f"pairs must be pairs of labels that occur once each, got {self.pairs}")

    @property
    def promise(self) -> Promise:
        return Promise(complete=True, spread=1)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        top = max(label for pair in self.pairs for label in pair)
        if top >= labels.classes:
            raise DataError(
                f"pairs exchange label {top}, the data have labels 0..{labels.classes - 1}; choose other pairs"
            )
        clusters = contiguous_clusters(self.clients, len(self.pairs), "partition.pairs")
        plain = IID(self.clients)(labels, rng)
        return Split(plain.train, plain.test, clusters, tuple((a, b) for a, b in self.pairs))


@dataclass(frozen=True)
class LabelSets(SplitsSamples):
    """IID parts, of which each client keeps the labels of one of a few random sets (ANDA's P(Y), which FLUX uses)."""

    clients: int = 10  # M, how many there are
    sets: int = 5  # of labels, of which each client draws one
    labels_per_set: int = 5  # labels of a set

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, sets=self.sets, labels_per_set=self.labels_per_set)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        if self.labels_per_set > labels.classes:
            raise DataError(
                f"a set of {self.labels_per_set} labels, the data have {labels.classes}; set labels_per_set lower"
            )
        sets = [np.sort(rng.choice(labels.classes, self.labels_per_set, replace=False)) for _ in range(self.sets)]
        drawn = [sets[i] for i in rng.integers(self.sets, size=self.clients)]
        plain = IID(self.clients)(labels, rng)
        train, test = (
            [part[np.isin(of_part[part], held)] for part, held in zip(parts, drawn, strict=True)]
            for parts, of_part in ((plain.train, labels.train), (plain.test, labels.test))
        )
        kinds = list(dict.fromkeys(tuple(held.tolist()) for held in drawn))
        return Split(train, test, np.array([kinds.index(tuple(held.tolist())) for held in drawn]))


@dataclass(frozen=True)
class Writers(IgnoresLabels, SplitsSamples):
    """One client for each writer that has training and test samples."""

    max_writers: int | None = None  # clients at most; none: all writers
    min_samples: int = 1  # writers with fewer samples (train and test together) are dropped, as LEAF's -k does
    random_writers: bool = False  # False: the first ones by number

    def __post_init__(self) -> None:
        at_least(1, min_samples=self.min_samples, max_writers=1 if self.max_writers is None else self.max_writers)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        if labels.writer_train is None or labels.writer_test is None:
            raise DataError(
                "the writers partition needs the writer of each sample (femnist); this dataset does not have it"
            )
        return split_by_writer(labels, self, rng)


@dataclass(frozen=True)
class Natural(IgnoresLabels, SplitsSamples):
    """The dataset's own clients: subjects, roles, hospitals, writers, or a column of a table."""

    max_clients: int | None = None  # clients at most; none: all
    min_samples: int = 1  # clients with fewer samples (train and test together) are dropped
    random_clients: bool = False  # False: the first ones by number

    def __post_init__(self) -> None:
        at_least(1, min_samples=self.min_samples, max_clients=1 if self.max_clients is None else self.max_clients)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        if labels.writer_train is None or labels.writer_test is None:
            raise DataError(
                "partition.name = 'natural' needs the client of each sample, which this dataset does not have; choose "
                "another partition, or name the column of clients (data.options.client)"
            )
        return split_by_writer(labels, Writers(self.max_clients, self.min_samples, self.random_clients), rng)


def split_by_writer(labels: Labels, settings: Writers, rng: np.random.Generator) -> Split:
    """A client for each writer that these settings choose."""
    train, test = (
        {} if writers is None else samples_by_writer(writers) for writers in (labels.writer_train, labels.writer_test)
    )
    known = [w for w in sorted(train.keys() & test.keys()) if len(train[w]) + len(test[w]) >= settings.min_samples]
    if not train.keys() & test.keys():
        raise DataError(
            f"no writer has training and test samples: writer_train has {list_first(train)}, "
            f"writer_test has {list_first(test)}; a writer must have the same number in both"
        )
    if not known:
        raise DataError(
            f"no writer has training and test samples and at least {settings.min_samples} of them; lower min_samples"
        )
    if lost := len(train.keys() ^ test.keys()):
        log.warning("clients that are left out, for want of samples to train or to test on: %d", lost)
    if settings.random_writers:
        known = [int(writer) for writer in rng.permutation(known)]
    chosen = known[: settings.max_writers]
    clusters = None if labels.writer_clusters is None else labels.writer_clusters[np.array(chosen)]
    return Split(
        [train[writer] for writer in chosen], [test[writer] for writer in chosen], clusters, writers=tuple(chosen)
    )  # fmt: skip


def list_first(writers: Iterable[int]) -> str:
    """The first few of these writers, in words."""
    first = sorted(writers)
    return ", ".join(map(str, first[:3])) + (", …" if len(first) > 3 else "") or "none"


def samples_by_writer(writers: Index) -> dict[int, Index]:
    """The samples of each writer."""
    order = np.argsort(writers, kind="stable")
    names, starts = np.unique(writers[order], return_index=True)
    return dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True)) if len(writers) else {}
