"""What a partition reads (`Labels`), gives back (`Split`) and promises (`Promise`)."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from kinfed.data.sampling import Index
from kinfed.errors import DataError


@dataclass(frozen=True, eq=False)
class Labels:
    """All that a partition may know of the data."""

    train: Index
    test: Index
    classes: int
    writer_train: Index | None = None
    writer_test: Index | None = None


@dataclass(frozen=True, eq=False)
class Split:
    """For each client its rows of the train labels and its rows of the test labels."""

    train: list[Index]
    test: list[Index]
    true_clusters: Index | None = None  # planted group of each client
    swaps: tuple[tuple[int, int], ...] = ()  # swaps[g]: the two labels to exchange in group g


@dataclass(frozen=True)
class Promise:
    """What holds for every split of a recipe; `check` raises where it does not."""

    disjoint: bool = True  # no training row at two clients
    complete: bool = False  # no training row left out
    minimum: int = 1  # training rows of the smallest client
    spread: int | None = None  # largest difference between two clients' training rows


ANY_SPLIT = Promise(disjoint=False)  # of a partition that promises nothing


class Partition(Protocol):
    """Labels -> index lists; settings are fields, randomness is only the generator's."""

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split: ...


@runtime_checkable
class HasPromise(Protocol):
    """A partition that says what holds for all its splits; a user's own need not."""

    @property
    def promise(self) -> Promise: ...


def check(split: Split, labels: Labels, promise: Promise) -> None:
    """Raise DataError unless the split keeps the promise."""
    if not isinstance(split, Split):
        raise DataError(f"a partition must return a kinfed.data.Split, got a {type(split).__name__}")
    check_shape(split, labels)
    held = np.concatenate(split.train)
    if promise.disjoint and len(np.unique(held)) < len(held):
        raise DataError("a training row is at two clients, but this partition promises each row to one client only")
    if promise.complete and len(np.unique(held)) < len(labels.train):
        raise DataError(
            f"only {len(np.unique(held))} of {len(labels.train)} training rows are used, but all were promised"
        )
    sizes = [len(rows) for rows in split.train]
    if min(sizes) < promise.minimum:
        client = int(np.argmin(sizes))
        raise DataError(
            f"client {client} has {sizes[client]} training rows, at least {promise.minimum} were promised; "
            "use fewer clients"
        )
    if promise.spread is not None and max(sizes) - min(sizes) > promise.spread:
        raise DataError(
            f"clients have {min(sizes)} to {max(sizes)} training rows, promised to differ by {promise.spread} at most"
        )


def check_shape(split: Split, labels: Labels) -> None:
    """Raise DataError unless every index is in range and no client has a row twice."""
    clients = len(split.train)
    if (
        clients == 0
        or len(split.test) != clients
        or (split.true_clusters is not None and len(split.true_clusters) != clients)
    ):
        clusters = "no" if split.true_clusters is None else len(split.true_clusters)
        raise DataError(
            f"a split has {clients} train lists, {len(split.test)} test lists and {clusters} groups; "
            "wanted as many of each"
        )
    for part, lists, count in (("train", split.train, len(labels.train)), ("test", split.test, len(labels.test))):
        first = {id(rows): client for client, rows in reversed(list(enumerate(lists)))}  # many may share their tests
        for client in sorted(first.values()):
            rows = lists[client]
            if len(rows) and not (rows.min() >= 0 and rows.max() < count):
                raise DataError(f"client {client}: {part} rows must be 0..{count - 1}, got {rows.min()}..{rows.max()}")
            if len(np.unique(rows)) < len(rows):
                raise DataError(f"client {client} has a {part} row twice; each may be there once")


def enough(wanted: int, rows: int, what: str) -> None:
    """Raise DataError when there are fewer rows than something needs."""
    if rows < wanted:
        raise DataError(f"{what} needs at least {wanted} rows, got {rows}; use fewer clients or more data")
