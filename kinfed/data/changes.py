"""A change: from one round on some clients have their samples of another draw of the partition."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from kinfed.checks import at_least, fraction
from kinfed.data.partitions.split import Index, Split, others
from kinfed.data.population import Change
from kinfed.errors import DataError


@dataclass(frozen=True)
class ChangeSettings:
    """When the data change and for how many of the clients."""

    round: int = 5  # the round before which the data change; 0: never
    fraction: float = 1.0  # of the clients whose data change

    def __post_init__(self) -> None:
        at_least(0, round=self.round)
        fraction(fraction=self.fraction)


def choose_changed(settings: ChangeSettings, clients: int, rng: np.random.Generator) -> Index:
    """The clients whose samples change, ascending."""
    return np.sort(rng.permutation(clients)[: round(settings.fraction * clients)]).astype(np.int64)


def plan_change(settings: ChangeSettings, changed: Index, after: Split) -> Change:
    """The change that gives these clients their samples of the split `after`."""
    clusters = after.true_clusters
    return Change(
        settings.round,
        torch.from_numpy(changed),
        tuple(torch.from_numpy(after.train[client]) for client in changed),
        tuple(torch.from_numpy(after.test[client]) for client in changed),
        None if clusters is None else torch.from_numpy(clusters[changed]),
    )


@dataclass(frozen=True, eq=False)
class Redraw:
    """Two draws of a partition, and the clients that have their samples of the second from the change on."""

    before: Split
    after: Split
    changed: Index

    @property
    def staying(self) -> Index:
        """The clients that keep what they have."""
        return others(len(self.before.train), self.changed)

    def part(self, labels: Index, pool: Index, rng: np.random.Generator) -> tuple[Split, Split]:
        """Both splits, in which no training sample is kept by one client and given to another.

        Clusters of the second have the numbers that they have in the first. A writer goes to one client; other samples
        are replaced by free ones of the pool with the same label, and those for which there is none go to the two
        clients in turn. Partitions in which clients share samples are left as they are.
        """
        after = replace(self.after, true_clusters=match_clusters(self.before, self.after, labels))
        given = replace(self, after=after)
        if self.before.writers and all(len({*s.writers}) == len(s.train) for s in (self.before, after)):
            return self.before, given.exchange_writers()
        if any(len(np.unique(held)) < len(held) for held in map(np.concatenate, (self.before.train, after.train))):
            return self.before, after
        return given.exchange_samples(labels, pool, rng)

    def exchange_writers(self) -> Split:
        """The second split, in which changed clients get no writer that another one keeps, but one that is left."""
        kept = {self.before.writers[client] for client in self.staying}
        given = {self.after.writers[client] for client in self.changed}
        left = [client for client in self.changed.tolist() if self.before.writers[client] not in given]
        source = exchange([client for client in self.changed.tolist() if self.after.writers[client] in kept], left)
        train, test, writers = list(self.after.train), list(self.after.test), list(self.after.writers)
        clusters = None if self.after.true_clusters is None else self.after.true_clusters.copy()
        for client, other in source.items():
            train[client], test[client] = self.before.train[other], self.before.test[other]
            writers[client] = self.before.writers[other]
            if clusters is not None and self.before.true_clusters is not None:
                clusters[client] = self.before.true_clusters[other]
        return replace(self.after, train=train, test=test, writers=tuple(writers), true_clusters=clusters)

    def exchange_samples(self, labels: Index, pool: Index, rng: np.random.Generator) -> tuple[Split, Split]:
        """Both splits, without a sample that one client keeps and another gets."""
        keeper = find_owners(self.before.train, self.staying, len(labels))
        getter = find_owners(self.after.train, self.changed, len(labels))
        contested = rng.permutation(np.flatnonzero((keeper >= 0) & (getter >= 0)))
        free = rng.permutation(pool[(keeper[pool] < 0) & (getter[pool] < 0)])
        for label in np.unique(labels[contested]):
            wanted = contested[labels[contested] == label]
            spare = free[labels[free] == label][: len(wanted)]
            getter[spare], getter[wanted[: len(spare)]] = getter[wanted[: len(spare)]], -1
        left = contested[getter[contested] >= 0]
        left = left[np.argsort(keeper[left], kind="stable")]
        turn = (np.arange(len(left)) - np.searchsorted(keeper[left], keeper[left])) % 2
        getter[left[turn == 0]] = keeper[left[turn == 1]] = -1  # who keeps any keeps one at least
        return (
            replace(self.before, train=give(self.before.train, self.staying, keeper)),
            replace(self.after, train=give(self.after.train, self.changed, getter)),
        )


def exchange(clients: list[int], left: list[int]) -> dict[int, int]:
    """For each client one of those that are left, of which there are as many at least: never itself, if others are."""
    own = [client for client in clients if client in left]
    others_left = [client for client in left if client not in own]
    wanting = [*own, *(client for client in clients if client not in own)]
    return dict(zip(wanting, [*others_left, *own] if others_left else [*own[1:], *own[:1]], strict=False))


def find_owners(train: list[Index], clients: Index, samples: int) -> Index:
    """Which of these clients has each sample; -1: none."""
    owners = np.full(samples, -1, np.int64)
    for client in clients:
        owners[train[client]] = client
    return owners


def give(train: list[Index], clients: Index, owners: Index) -> list[Index]:
    """The lists, in which these clients have what they own; DataError where one has lost all."""
    order = np.argsort(owners, kind="stable").astype(np.int64)
    starts = np.searchsorted(owners[order], [clients, clients + 1])
    found = list(train)
    for client, low, high in zip(clients.tolist(), *starts.tolist(), strict=True):
        if not np.array_equal(order[low:high], np.sort(train[client])):
            found[client] = order[low:high]
        if low == high and len(train[client]):
            raise DataError(
                f"client {client} gets no training sample by the change that no other client keeps: set "
                "change.fraction = 1, or use fewer clients or more data"
            )
    return found


def match_clusters(before: Split, after: Split, labels: Index) -> Index | None:
    """Clusters of `after` under the numbers that `before` gives to the same sets of labels; others get new numbers."""
    if before.true_clusters is None or after.true_clusters is None:
        return None
    known, found = labels_of_clusters(before, labels), labels_of_clusters(after, labels)
    number: dict[int, int] = {}
    fresh = max(known) + 1
    for cluster, held in found.items():
        twins = [old for old, theirs in known.items() if theirs == held]
        # clusters that differ otherwise than in labels (label swaps) keep their number
        number[cluster] = cluster if cluster in twins else twins[0] if twins else fresh
        fresh += not twins
    return np.array([number[int(cluster)] for cluster in after.true_clusters])


def labels_of_clusters(split: Split, labels: Index) -> dict[int, frozenset[int]]:
    """The set of labels that each cluster trains on."""
    held: dict[int, frozenset[int]] = {}
    for cluster, samples in zip(
        [] if split.true_clusters is None else split.true_clusters.tolist(), split.train, strict=True
    ):
        held[cluster] = held.get(cluster, frozenset()) | frozenset(np.unique(labels[samples]).tolist())
    return held
