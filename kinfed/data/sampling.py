"""Seeded draws that everything in this folder shares."""

import numpy as np
import numpy.typing as npt

from kinfed.keys import base_key

Index = npt.NDArray[np.int64]


def generator(seed: int, *purpose: int | str) -> np.random.Generator:
    """A random generator of its own for each (seed, purpose)."""
    return np.random.default_rng(base_key(seed, "data", *purpose) % 2**64)


def shares(sizes: npt.NDArray[np.integer], total: int) -> Index:
    """`total` dealt out in proportion to sizes, by largest remainder; none beyond its size if total <= their sum."""
    quota = sizes.astype(np.float64) * (total / max(int(sizes.sum()), 1))
    dealt: Index = np.floor(quota).astype(np.int64)
    remainder = np.round(quota - dealt, 9)  # rounded: ties must not hang on the last bit
    dealt[np.argsort(-remainder, kind="stable")[: total - int(dealt.sum())]] += 1
    return dealt


def draw_stratified(labels: Index, total: int, rng: np.random.Generator) -> Index:
    """`total` samples, sorted, drawn so that every label keeps its share."""
    samples = samples_of_each(labels)
    wanted = shares(np.array([len(part) for part in samples]), total)
    return np.sort(
        np.concatenate([rng.choice(part, n, replace=False) for part, n in zip(samples, wanted, strict=True)])
    )


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
