"""P9: Dirichlet label proportions (FLIS Dir(0.1), NIID-Bench; `balanced=False, minimum=1` is near CFL's)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinfed.checks import at_least
from kinfed.data.partitions.local_tests import all_of_own
from kinfed.data.partitions.split import Labels, Promise, Split, enough
from kinfed.data.sampling import Index, rows_of_each
from kinfed.errors import ConfigError, DataError


@dataclass(frozen=True)
class Dirichlet:
    """Each label spread over the clients by Dirichlet(beta), redrawn until everyone has enough rows (FLIS)."""

    clients: int = 100  # M, how many there are
    beta: float = 0.1  # β: small is skewed
    minimum: int = 10  # rows of the smallest client (FedZoo 15)
    balanced: bool = True  # clients that have their fair number of rows get no more
    tries: int = 1000  # draws at most, until the smallest client has `minimum` rows

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients, minimum=self.minimum, tries=self.tries)
        if not self.beta > 0:
            raise ConfigError(f"beta must be above 0, got {self.beta}")

    @property
    def promise(self) -> Promise:
        return Promise(complete=True, minimum=self.minimum)

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        enough(self.clients * self.minimum, len(labels.train), f"{self.clients} clients with {self.minimum} rows each")
        for _ in range(self.tries):
            counts = self.draw_counts(labels, rng)
            if counts.sum(0).min() >= self.minimum:
                train = deal(labels, counts, rng)
                return Split(train, all_of_own(labels, train))
        raise DataError(
            f"in {self.tries} draws of Dirichlet({self.beta}) over {self.clients} clients somebody always had "
            f"fewer than {self.minimum} of {len(labels.train)} rows; use fewer clients, more beta or less minimum"
        )

    def draw_counts(self, labels: Labels, rng: np.random.Generator) -> Index:
        """How many rows of each label each client gets: [labels that occur, clients]."""
        fair = len(labels.train) / self.clients
        total = np.zeros(self.clients, np.int64)
        counts: list[Index] = []
        for rows in rows_of_each(labels.train):
            weight = rng.dirichlet(np.full(self.clients, self.beta))
            full = (total >= fair) if self.balanced else np.zeros(self.clients, bool)
            counts.append(cut(len(rows), weight, full))
            total += counts[-1]
        return np.array(counts)


def cut(rows: int, weight: npt.NDArray[np.float64], full: npt.NDArray[np.bool_]) -> Index:
    """`rows` cut by the cumulated weights of those clients that are not full yet."""
    weight = np.where(full, 0.0, np.nan_to_num(weight))
    if weight.sum() == 0:  # all the weight was on full clients
        weight = (~full).astype(np.float64)
    ends = np.round(np.cumsum(weight) / weight.sum() * rows, 6).astype(np.int64)
    sizes: Index = np.diff(ends, prepend=0)
    return sizes


def deal(labels: Labels, counts: Index, rng: np.random.Generator) -> list[Index]:
    """Shuffled rows of each label, handed out by counts."""
    parts = [
        np.split(rng.permutation(rows), np.cumsum(n)[:-1])
        for rows, n in zip(rows_of_each(labels.train), counts, strict=True)
    ]
    return [np.sort(np.concatenate(of_client)) for of_client in zip(*parts, strict=True)]
