"""P2: pathological shards (McMahan; FL+HC and REPA on MNIST: 200 shards of 300 samples, 2 for each of 100 clients).

`exact_two_classes`: shards are cut inside the classes (as many for each class as its size deserves, so sizes vary a
little), and shards are exchanged between clients until everyone has two labels. Redrawing everything until it happens
to fit, as the papers' wording suggests, would not end for 100 clients.
Test samples: as many of each label as the training samples have, `test_samples` in all; clients may share them.
"""

from dataclasses import dataclass

import numpy as np

from kinfed.checks import at_least
from kinfed.data.partitions.split import Labels, Promise, Split, draw_alike, need_samples
from kinfed.data.sampling import Index, samples_of_each, shares
from kinfed.errors import ConfigError, DataError


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
            f"more than there are clients ({len(hands)})"
        )
    for client in range(len(hands)):
        mine = label[hands[client]]
        if mine[0] == mine[1]:  # as no label fills more shards than clients, somebody has none of it
            partner = rng.choice(np.flatnonzero((label[hands] != mine[0]).all(1)))
            hands[client, 1], hands[partner, 1] = hands[partner, 1], hands[client, 1]
    return hands
