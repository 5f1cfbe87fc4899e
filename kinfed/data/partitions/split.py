"""What a partition reads (`Labels`), gives back (`Split`) and promises (`Promise`), and rules for test samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kinfed.errors import DataError
from kinfed.keys import base_key

Index = npt.NDArray[np.int64]


def generator(seed: int, *purpose: int | str) -> np.random.Generator:
    """A random generator of its own for each (seed, purpose)."""
    return np.random.default_rng(base_key(seed, "data", *purpose) % 2**64)


def shares(sizes: npt.NDArray[np.integer], total: int, ranks: Index | None = None) -> Index:
    """`total` dealt out in proportion to sizes, by largest remainder; none beyond its size if total <= their sum.

    Of equal remainders those of low rank come first; without ranks the first ones.
    """
    quota = sizes.astype(np.float64) * (total / max(int(sizes.sum()), 1))
    dealt: Index = np.floor(quota).astype(np.int64)
    remainder = np.round(quota - dealt, 9)  # rounded: ties must not hang on the last bit
    order = np.lexsort((np.arange(len(sizes)) if ranks is None else ranks, -remainder))
    dealt[order[: total - int(dealt.sum())]] += 1
    return dealt


def draw_stratified(labels: Index, total: int, rng: np.random.Generator, low_first: bool = False) -> Index:
    """`total` samples, sorted, drawn so that every label keeps its share; of equal shares random ones are rounded up.

    With `low_first` those of the lowest labels are, as in the draws that published numbers come from; where there are
    fewer samples than labels this would leave the others out, so that it does not hold.
    """
    samples = samples_of_each(labels)
    sizes = np.array([len(part) for part in samples])
    ranks = None if low_first and total >= len(sizes) else rng.spawn(1)[0].permutation(len(sizes))
    wanted = shares(sizes, total, ranks)
    return np.sort(
        np.concatenate([rng.choice(part, n, replace=False) for part, n in zip(samples, wanted, strict=True)])
    )


def draw_systematic(values: Index, total: int, rng: np.random.Generator) -> Index:
    """`total` samples, sorted: those at equal distances in the order of their values, in which equal ones are shuffled.

    Each sample is drawn with the same probability, and of each value as many as its share, rounded up or down.
    """
    order = np.lexsort((rng.random(len(values)), values))
    places = (np.arange(total) * len(values) + rng.integers(len(values))) // max(total, 1)
    return np.sort(order[places]).astype(np.int64)


def count_tests(samples: int, share: float) -> int:
    """How many of a client's samples are for testing: this share, one at least, where one is left to train on."""
    return max(min(max(round(share * samples), int(share > 0)), samples - 1), 0)


Draw = Callable[[int, Index, int], Index]  # (owner, samples, how many) -> so many of the samples


def hold_out_once(owned: Sequence[Index], share: float, draw: Draw, origin: Index) -> npt.NDArray[np.bool_]:
    """Which samples of the pool are held out: each for all that own it, or a copy of the same `origin`, or for none.

    Owners are clients, now and after each change. One draws among samples that none before it had, so that owners with
    samples of their own draw each for itself; copies that one has are drawn together, as one.
    """
    held, known = np.zeros(len(origin), bool), np.zeros(len(origin), bool)
    for owner, samples in enumerate(owned):
        own = samples[np.sort(np.unique(origin[samples], return_index=True)[1])]
        fresh = own[~known[origin[own]]]
        wanted = count_tests(len(own), share) - int(held[origin[own]].sum())
        held[origin[draw(owner, fresh, min(max(wanted, 0), len(fresh)))]] = True
        known[origin[own]] = True
        if held[origin[own]].all():  # others hold out all that this one has: it must train on something
            held[origin[own[:1]]] = False
    return held[origin]


def samples_of_each(labels: Index) -> list[Index]:
    """The samples of every label that occurs, in the order of the labels."""
    order = np.argsort(labels, kind="stable").astype(np.int64)
    _, counts = np.unique(labels, return_counts=True)
    return np.split(order, np.cumsum(counts)[:-1])


def others(count: int, taken: Index) -> Index:
    """The numbers below `count` that are not taken."""
    free = np.ones(count, bool)
    free[taken] = False
    return np.flatnonzero(free).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Labels:
    """All that a partition may know of the data."""

    train: Index
    test: Index
    classes: int
    writer_train: Index | None = None
    writer_test: Index | None = None
    writer_clusters: Index | None = None  # ground-truth cluster of each writer, by number
    has_classes: bool = True  # false: targets are numbers or sequences, and labels all 0


@dataclass(frozen=True, eq=False)
class Split:
    """For each client its samples of the train labels and its samples of the test labels."""

    train: list[Index]
    test: list[Index]
    true_clusters: Index | None = None  # planted cluster of each client
    swaps: tuple[tuple[int, int], ...] = ()  # swaps[g]: the two labels to exchange in cluster g
    writers: tuple[int, ...] = ()  # the writer that each client is, by number; empty: clients are none

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            object.__setattr__(self, part, [as_index(own, f"{part} samples") for own in getattr(self, part)])
        if self.true_clusters is not None:
            object.__setattr__(self, "true_clusters", as_index(self.true_clusters, "true_clusters"))


def as_index(numbers: npt.ArrayLike, name: str) -> Index:
    """Whole numbers as an array, where they are lists of a user's own partition; DataError for others."""
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            f"a split's {name} are {array.dtype} {list(array.shape)}, wanted whole numbers [n] for each client"
        )
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True)
class Promise:
    """What holds for every split of a recipe; `check` raises where it does not."""

    disjoint: bool = True  # no training sample at two clients
    complete: bool = False  # no training sample left out
    minimum: int = 1  # training samples of the smallest client
    spread: int | None = None  # largest difference between two clients' training samples


ANY_SPLIT = Promise(disjoint=False)  # of a partition that promises nothing


class Partition(Protocol):
    """Labels -> index lists; settings are fields, randomness is only the generator's."""

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split: ...


@runtime_checkable
class HasPromise(Protocol):
    """A partition that says what holds for all its splits; a user's own need not."""

    @property
    def promise(self) -> Promise: ...


class SplitsSamples:
    """A partition that promises of all its splits: no training sample is at two clients, and no client has none."""

    @property
    def promise(self) -> Promise:
        return Promise()


class IgnoresLabels:
    """A partition that never looks at labels, so that it also deals samples whose targets are no classes."""


def check(split: Split, labels: Labels, promise: Promise) -> None:
    """Raise DataError unless the split keeps the promise."""
    if not isinstance(split, Split):
        raise DataError(f"a partition must return a kinfed.data.Split, got a {type(split).__name__}")
    check_shape(split, labels)
    held = np.concatenate(split.train)
    if promise.disjoint and len(np.unique(held)) < len(held):
        raise DataError(
            "a training sample is at two clients, but this partition promises each sample to one client only"
        )
    if promise.complete and len(np.unique(held)) < len(labels.train):
        raise DataError(
            f"only {len(np.unique(held))} of {len(labels.train)} training samples are used, but all were promised"
        )
    sizes = [len(samples) for samples in split.train]
    if min(sizes) < promise.minimum:
        client = int(np.argmin(sizes))
        raise DataError(
            f"client {client} has {sizes[client]} training samples, at least {promise.minimum} were promised; "
            "use fewer clients"
        )
    if promise.spread is not None and max(sizes) - min(sizes) > promise.spread:
        raise DataError(
            f"clients have {min(sizes)} to {max(sizes)} training samples, "
            f"promised to differ by {promise.spread} at most"
        )


def check_shape(split: Split, labels: Labels) -> None:
    """Raise DataError unless every index is in range and no client has a sample twice."""
    clients = len(split.train)
    if (
        clients == 0
        or len(split.test) != clients
        or (split.true_clusters is not None and len(split.true_clusters) != clients)
    ):
        clusters = "no" if split.true_clusters is None else len(split.true_clusters)
        raise DataError(
            f"a split has {clients} train lists, {len(split.test)} test lists and {clusters} clusters; "
            "wanted as many of each"
        )
    for part, lists, count in (("train", split.train, len(labels.train)), ("test", split.test, len(labels.test))):
        first = {
            id(samples): client for client, samples in reversed(list(enumerate(lists)))
        }  # many may share their tests
        for client in sorted(first.values()):
            samples = lists[client]
            if len(samples) and not (samples.min() >= 0 and samples.max() < count):
                raise DataError(
                    f"client {client}: {part} samples must be 0..{count - 1}, got {samples.min()}..{samples.max()}"
                )
            if len(np.unique(samples)) < len(samples):
                raise DataError(f"client {client} has a {part} sample twice; each may be there once")


def need_samples(wanted: int, samples: int, what: str) -> None:
    """Raise DataError when there are fewer samples than something needs."""
    if samples < wanted:
        raise DataError(f"{what} needs at least {wanted} samples, got {samples}; use fewer clients or more data")


def samples_of_labels(labels: Labels, held: Index) -> Index:
    """All test samples whose label is one of those held (FLT, FLIS)."""
    return np.flatnonzero(np.isin(labels.test, held)).astype(np.int64)


def samples_of_own_labels(labels: Labels, train: list[Index]) -> list[Index]:
    """For each client all test samples of the labels that it has at least one training sample of."""
    return [samples_of_labels(labels, np.unique(labels.train[samples])) for samples in train]


def draw_alike(labels: Labels, samples: Index, total: int, rng: np.random.Generator) -> Index:
    """About `total` test samples with the label distribution of these training samples (FL+HC)."""
    wanted = shares(np.bincount(labels.train[samples], minlength=labels.classes), total)
    drawn = [draw(np.flatnonzero(labels.test == label), int(wanted[label]), rng) for label in np.flatnonzero(wanted)]
    return np.sort(np.concatenate([*drawn, np.empty(0, np.int64)])).astype(np.int64)


def draw(samples: Index, count: int, rng: np.random.Generator) -> Index:
    """`count` of these samples at random, or all where there are not so many."""
    return rng.choice(samples, min(count, len(samples)), replace=False)


def even_parts(labels: Labels, clients: int, rng: np.random.Generator) -> list[Index]:
    """The shuffled test samples in equal parts, one for each client."""
    if len(labels.test) < clients:
        raise DataError(
            f"{len(labels.test)} test samples cannot be split over {clients} clients; "
            "use fewer clients or more test samples"
        )
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels.test)), clients)]
