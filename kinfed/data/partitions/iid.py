"""P1: independent and identically distributed clients (FL+HC: 100 clients with 600 rows of MNIST)."""

from dataclasses import dataclass

import numpy as np

from kinfed.checks import at_least
from kinfed.data.partitions.local_tests import even_parts
from kinfed.data.partitions.split import Labels, Promise, Split, enough


@dataclass(frozen=True)
class IID:
    """Shuffled rows, split evenly."""

    clients: int = 100  # M, how many there are

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients)

    @property
    def promise(self) -> Promise:
        return Promise(complete=True, spread=1)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        enough(self.clients, len(labels.train), f"iid with {self.clients} clients")
        train = [np.sort(part) for part in np.array_split(rng.permutation(len(labels.train)), self.clients)]
        return Split(train, even_parts(labels, self.clients, rng))
