"""What a method found out about its clients, measured: its groups, its graph, and how it sees them."""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from kinfed.algorithm import Algorithm
from kinfed.client import base_key
from kinfed.federation import Federation
from kinfed.metrics.clusters import (
    belong_together,
    clustering_error,
    cosines,
    uniformity,
    uniformity_of_chance,
    uniformity_of_labels,
)
from kinfed.metrics.correlation import correlation
from kinfed.metrics.groups import agreement
from kinfed.metrics.robustness import aside

State = TypeVar("State")
MANY = 10_000  # clients of which all pairs are compared; of more no clustering error is measured


@dataclass(frozen=True)
class Found:
    """Groups and relatives of the clients that a method placed."""

    groups: Tensor  # [clients]; -1: not placed, not there yet, or a look-alike
    heard: Tensor | None  # [G, clients] bool: each different set of relatives once, where the method relates clients
    whose: Tensor | None  # [clients]: which of these sets is a client's
    members: Tensor  # ids of those who train and are placed
    labels: Tensor | None  # [members, classes] how many rows of each label they train on, where that is known
    planted: Tensor | None = None  # [clients], where groups are planted

    @classmethod
    def by(cls, algorithm: Algorithm[State], state: State, fed: Federation) -> "Found | None":
        """What a method found by now; None if it looks for no groups."""
        groups = placed_groups(algorithm, state, fed)
        if groups is None:
            return None
        related = algorithm.relatives(state) if fed.count <= MANY else None
        heard, whose = (related.rows.cpu(), related.whose.cpu()) if related else (None, None)
        members = fed.clients.cpu()[groups[fed.clients.cpu()] >= 0]
        held = fed.labels_held[members] if fed.sees_rows else None
        return cls(groups, heard, whose, members, held, fed.groups)

    @property
    def own(self) -> Tensor:
        """The members' groups."""
        return self.groups[self.members]

    @property
    def together(self) -> Tensor:
        """Who is in whose cluster, bool [members, members]."""
        if self.heard is None or self.whose is None:
            return self.own[:, None] == self.own
        return self.heard[:, self.members][self.whose[self.members]]

    def is_like(self, other: "Found") -> bool:
        """Whether nothing is different from what was found before."""
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in parts)

    def metrics(self) -> dict[str, float]:
        """How the groups fit planted ones, and the members' labels."""
        metrics: dict[str, float] = {}
        if self.planted is not None and bool(((self.groups >= 0) & (self.planted >= 0)).any()):
            metrics |= agreement(self.groups, self.planted)
        else:
            metrics["groups"] = float(len(self.groups[self.groups >= 0].unique()))
        if self.labels is None:
            return metrics
        if 1 < len(self.members) <= MANY:
            error, right = clustering_error(self.together, belong_together(self.labels))
            metrics |= {"clustering_error": error, "clustering_accuracy": right}
        even = uniformity(self.labels, self.own)
        return metrics if even is None else metrics | {"uniformity": even}

    def references(self, seed: int) -> dict[str, float]:
        """The uniformity of chance, and of clustering the labels themselves; nothing if all groups are of one."""
        if self.labels is None or uniformity(self.labels, self.own) is None:
            return {}
        by_name = {
            "uniformity_random": uniformity_of_chance(self.labels, self.own, base_key(seed, "uniformity") % 2**63),
            "uniformity_labels": uniformity_of_labels(self.labels, self.own),
        }
        return {name: value for name, value in by_name.items() if value is not None}


def placed_groups(algorithm: Algorithm[State], state: State, fed: Federation) -> Tensor | None:
    """The groups found for the real clients that are there ([clients], -1 for all others), where there are any."""
    groups = algorithm.groups(state)
    here = torch.isin(torch.arange(fed.count), fed.real.cpu())
    return None if groups is None else torch.where(here, groups.cpu(), -1)


def correlations(algorithm: Algorithm[State], state: State, fed: Federation, drift: Tensor | None) -> dict[str, float]:
    """How the method's view of its clients correlates with the likeness of their labels, and of their images."""
    with aside(fed):
        vectors = algorithm.embeddings(state, fed)
    if vectors is None:
        return {}
    sound = vectors.isfinite().all(1)
    who, seen = fed.clients[sound].cpu(), cosines(vectors[sound])
    seed = base_key(fed.seed, "bootstrap", fed.round) % 2**63
    metrics = correlation("labels", seen, cosines(fed.labels_held[who]), seed)
    return metrics if drift is None else metrics | correlation("drift", seen, drift[who[:, None], who], seed)
