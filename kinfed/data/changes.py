"""A change of data during training: some clients get the rows of another draw of the same partition (FLT's demo)."""

from dataclasses import dataclass

import numpy as np
import torch

from kinfed.checks import at_least, fraction
from kinfed.data.partitions.split import Split
from kinfed.data.population import Change
from kinfed.data.sampling import Index


@dataclass(frozen=True)
class ChangeSettings:
    """When the data change and for how many of the clients."""

    round: int = 5  # the round before which the data change; 0: never
    fraction: float = 1.0  # of the clients whose data change

    def __post_init__(self) -> None:
        at_least(0, round=self.round)
        fraction(fraction=self.fraction)


def plan_change(
    settings: ChangeSettings, before: Split, after: Split, labels: Index, rng: np.random.Generator
) -> Change:
    """The change that gives a random part of the clients their rows of the split `after`."""
    clients = len(before.train)
    chosen = np.sort(rng.permutation(clients)[: round(settings.fraction * clients)]).astype(np.int64)
    clusters = same_names(before, after, labels)
    return Change(
        settings.round,
        torch.from_numpy(chosen),
        tuple(torch.from_numpy(after.train[client]) for client in chosen),
        tuple(torch.from_numpy(after.test[client]) for client in chosen),
        None if clusters is None else torch.from_numpy(clusters[chosen]),
    )


def same_names(before: Split, after: Split, labels: Index) -> Index | None:
    """Groups of `after` under the numbers that `before` gives to the same sets of labels; others get new numbers."""
    if before.true_clusters is None or after.true_clusters is None:
        return None
    known, found = labels_of_clusters(before, labels), labels_of_clusters(after, labels)
    number: dict[int, int] = {}
    fresh = max(known) + 1
    for cluster, held in found.items():
        twins = [old for old, theirs in known.items() if theirs == held]
        # groups that differ otherwise than in labels (label swaps) keep their number
        number[cluster] = cluster if cluster in twins else twins[0] if twins else fresh
        fresh += not twins
    return np.array([number[int(cluster)] for cluster in after.true_clusters])


def labels_of_clusters(split: Split, labels: Index) -> dict[int, frozenset[int]]:
    """The set of labels that each group trains on."""
    held: dict[int, frozenset[int]] = {}
    for cluster, rows in zip(
        [] if split.true_clusters is None else split.true_clusters.tolist(), split.train, strict=True
    ):
        held[cluster] = held.get(cluster, frozenset()) | frozenset(np.unique(labels[rows]).tolist())
    return held
