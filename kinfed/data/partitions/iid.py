"""P1: independent and identically distributed clients (FL+HC: 100 clients with 600 samples of MNIST).

P6: label-swapped clusters (FL+HC after CFL): IID samples, but in cluster g two labels are exchanged, in train and test.

The split says which pairs; `kinfed.data.build` applies them as the shift `LabelSwap`. The pairs must be disjoint, or
the ceiling of one common model is not the 80 % of the paper.
"""

from dataclasses import dataclass

import numpy as np

from kinfed.checks import at_least
from kinfed.data.partitions.planted_clusters import contiguous_clusters
from kinfed.data.partitions.split import Labels, Promise, Split, even_parts, need_samples
from kinfed.errors import ConfigError, DataError


@dataclass(frozen=True)
class IID:
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
        clusters = contiguous_clusters(self.clients, len(self.pairs))
        plain = IID(self.clients)(labels, rng)
        return Split(plain.train, plain.test, clusters, tuple((a, b) for a, b in self.pairs))
