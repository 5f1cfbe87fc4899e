"""P8: label skew of q percent (FLIS 20 % and 30 %; NIID-Bench's #label)."""

from dataclasses import dataclass

import numpy as np

from kinfed.checks import at_least, fraction
from kinfed.data.partitions.split import Labels, Promise, Split, need_samples, samples_of_labels
from kinfed.data.sampling import Index
from kinfed.errors import ConfigError, DataError

TRIES = 1000


@dataclass(frozen=True)
class LabelSkew:
    """Each client holds the same share of the labels, chosen at random (FLIS, NIID-Bench)."""

    clients: int = 100  # M, how many there are
    share: float = 0.2  # q: of the labels that a client holds
    every_label: bool = False  # redraw until every label is held by somebody (FedZoo)

    def __post_init__(self) -> None:
        at_least(1, clients=self.clients)
        fraction(share=self.share)
        if self.share == 0:
            raise ConfigError("share must be above 0, got 0; a client needs at least one label")

    @property
    def promise(self) -> Promise:
        return Promise()

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
