"""Test rows of a client, by the rules of the papers."""

import numpy as np

from kinfed.data.partitions.split import Labels
from kinfed.data.sampling import Index, shares
from kinfed.errors import DataError


def all_of(labels: Labels, held: Index) -> Index:
    """All test rows whose label is one of those held (FLT, FLIS)."""
    return np.flatnonzero(np.isin(labels.test, held)).astype(np.int64)


def all_of_own(labels: Labels, train: list[Index]) -> list[Index]:
    """For each client all test rows of the labels that it has at least one training row of."""
    return [all_of(labels, np.unique(labels.train[rows])) for rows in train]


def alike(labels: Labels, rows: Index, total: int, rng: np.random.Generator) -> Index:
    """About `total` test rows with the label distribution of these training rows (FL+HC)."""
    wanted = shares(np.bincount(labels.train[rows], minlength=labels.classes), total)
    drawn = [draw(np.flatnonzero(labels.test == label), int(wanted[label]), rng) for label in np.flatnonzero(wanted)]
    return np.sort(np.concatenate([*drawn, np.empty(0, np.int64)])).astype(np.int64)


def draw(rows: Index, count: int, rng: np.random.Generator) -> Index:
    """`count` of these rows at random, or all where there are not so many."""
    return rng.choice(rows, min(count, len(rows)), replace=False)


def even_parts(labels: Labels, clients: int, rng: np.random.Generator) -> list[Index]:
    """The shuffled test rows in equal parts, one for each client."""
    if len(labels.test) < clients:
        raise DataError(
            f"{len(labels.test)} test rows cannot be split over {clients} clients; use fewer clients or more test rows"
        )
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels.test)), clients)]
