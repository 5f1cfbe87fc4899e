"""Drift: clients whose samples mean, or look, different from known rounds on.

A concept is one way in which samples mean or look: two labels exchanged, images turned, numbers scaled, some of the
classes. Clients move from one concept to another at change points, all together or some of them (Jothimurugesan et
al., Federated learning under distributed concept drift, AISTATS 2023, give one matrix of concepts by time and client;
so does `concepts`). The concept of a client and its planted cluster together are its true cluster.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import isfinite
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from kinfed.checks import at_least, fraction, one_of
from kinfed.data.partitions.planted_clusters import contiguous_clusters
from kinfed.data.partitions.split import Index
from kinfed.data.population import Change, Population, View
from kinfed.data.roles import spread_over_clusters
from kinfed.data.shifts import Scaled, Swapped, Turned, need_images
from kinfed.errors import ConfigError, DataError


class Drift(Protocol):
    """Population -> population whose clients have other samples from some rounds on (`changes`)."""

    def __call__(self, population: Population, rng: np.random.Generator) -> Population: ...


@dataclass(frozen=True)
class ChangePoints(ABC):
    """When clients change, and to which concept.

    `concepts` has an entry for the start and one for each of `change_rounds`: the concept of each client, or of each of
    so many contiguous groups of clients. Without it all begin with concept 0, and a random `fraction` moves on at each.
    """

    change_rounds: tuple[int, ...] = (10,)  # before which samples change, ascending; rounds count from 0
    fraction: float = 0.5  # of the clients that move to the next concept at each of these; after the last comes 0
    concepts: tuple[tuple[int, ...], ...] = ()  # at first and from each such round on: that of each client, or group
    listed: ClassVar[str]  # the setting that lists the concepts

    def __post_init__(self) -> None:
        at_least(1, change_rounds=min(self.change_rounds, default=0))
        fraction(fraction=self.fraction)
        if list(self.change_rounds) != sorted(set(self.change_rounds)):
            raise ConfigError(f"change_rounds must ascend, got {list(self.change_rounds)}")
        if self.count < 2:
            raise ConfigError(f"drift needs two concepts at least, {self.listed} gives {self.count}")
        if not self.concepts:
            return
        if len(self.concepts) != len(self.change_rounds) + 1 or len({len(stage) for stage in self.concepts}) != 1:
            lengths = [len(stage) for stage in self.concepts]
            raise ConfigError(
                f"concepts must have {len(self.change_rounds) + 1} entries, one from the start and one for each of "
                f"change_rounds, all equally long; got {len(lengths)} of lengths {lengths}"
            )
        known = [concept for stage in self.concepts for concept in stage]
        if not known or min(known) < 0 or max(known) >= self.count:
            raise ConfigError(
                f"concepts must be 0..{self.count - 1}, which {self.listed} has, got {sorted(set(known))}"
            )

    @property
    def count(self) -> int:
        """How many concepts there are."""
        return len(getattr(self, self.listed))

    @abstractmethod
    def view(self, concept: int) -> View | None:
        """What a concept makes of samples; None: nothing."""

    def keeps(self, concept: int, y: Tensor) -> Tensor:
        """Which of a client's samples it has under a concept: bool [n]."""
        return torch.ones(len(y), dtype=torch.bool)

    @abstractmethod
    def check(self, population: Population) -> None:
        """Raise DataError where the samples cannot drift so."""

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        self.check(population)
        if population.changes:
            raise DataError("the samples of this population change already; leave out drift, or set change.round = 0")
        return move_through(self, population, self.plan(population, rng))

    def plan(self, population: Population, rng: np.random.Generator) -> Index:
        """The concept of each client, from the start and from each change point on: [points + 1, clients]."""
        clients = population.clients
        if self.concepts:
            given = np.array(self.concepts)
            if given.shape[1] > clients:
                raise DataError(
                    f"concepts has {given.shape[1]} columns and there are {clients} clients; give one each, or fewer"
                )
            return np.asarray(given[:, contiguous_clusters(clients, given.shape[1])], dtype=np.int64)
        stages = [np.zeros(clients, dtype=np.int64)]
        for _ in self.change_rounds:
            moved = spread_over_clusters(population, rng)[: round(self.fraction * clients)]
            stages.append(stages[-1].copy())
            stages[-1][moved] = (stages[-1][moved] + 1) % self.count
        return np.stack(stages)


@dataclass(frozen=True)
class LabelSwapDrift(ChangePoints):
    """A concept exchanges two labels; concept 0 leaves them as they are."""

    pairs: tuple[tuple[int, int], ...] = ((1, 2), (3, 4), (5, 6))  # pairs[c - 1]: the labels that concept c exchanges
    listed: ClassVar[str] = "pairs"

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(pair[0] == pair[1] or min(pair) < 0 for pair in self.pairs):
            raise ConfigError(f"pairs must be pairs of two different labels, got {self.pairs}")

    @property
    def count(self) -> int:
        return super().count + 1

    def view(self, concept: int) -> View | None:
        return Swapped(*self.pairs[concept - 1]) if concept else None

    def check(self, population: Population) -> None:
        need_labels(population, [label for pair in self.pairs for label in pair], self.listed)


@dataclass(frozen=True)
class RotationDrift(ChangePoints):
    """A concept turns all images of a client by one angle."""

    degrees: tuple[float, ...] = (0, 90, 180, 270)  # degrees[c]: what concept c turns by, counter-clockwise
    listed: ClassVar[str] = "degrees"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, **{f"degrees[{i}]": abs(angle) for i, angle in enumerate(self.degrees)})

    def view(self, concept: int) -> View | None:
        return Turned(self.degrees[concept]) if self.degrees[concept] % 360 else None

    def check(self, population: Population) -> None:
        need_images(population, "a rotation")


@dataclass(frozen=True)
class NewClasses(ChangePoints):
    """A concept has the samples of some labels alone: classes come and go."""

    labels: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 6, 7, 8, 9))  # labels[c]: of concept c
    listed: ClassVar[str] = "labels"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, **{f"labels[{i}]": len(some) for i, some in enumerate(self.labels)})
        at_least(0, labels=min(label for some in self.labels for label in some))

    def view(self, concept: int) -> View | None:
        return None

    def keeps(self, concept: int, y: Tensor) -> Tensor:
        return torch.isin(y, torch.tensor(self.labels[concept]))

    def check(self, population: Population) -> None:
        need_labels(population, [label for some in self.labels for label in some], self.listed)


@dataclass(frozen=True)
class ScalingDrift(ChangePoints):
    """A concept multiplies what is learnt, or the features, by a factor: for samples that are no images."""

    factors: tuple[float, ...] = (1, -1)  # factors[c]: that of concept c
    of: Literal["targets", "features"] = "targets"  # targets: numbers, as in a regression; features: of vectors, series
    listed: ClassVar[str] = "factors"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(("targets", "features"), of=self.of)
        if not all(map(isfinite, self.factors)):
            raise ConfigError(f"factors must be finite, got {list(self.factors)}")

    def view(self, concept: int) -> View | None:
        return Scaled(self.factors[concept], self.of) if self.factors[concept] != 1 else None

    def check(self, population: Population) -> None:
        scaled = population.y if self.of == "targets" else population.x
        if not scaled.is_floating_point() or (self.of == "targets" and torch.isin(scaled, torch.tensor([0, 1])).all()):
            instead = {"targets": "drift.of = 'features', or another drift", "features": "rotation or label_swap"}
            raise DataError(
                f"scaling needs {self.of} that are numbers, got classes, tokens or bytes: use {instead[self.of]}"
            )


DRIFTS: dict[str, type[Drift]] = {
    "label_swap": LabelSwapDrift, "rotation": RotationDrift, "new_classes": NewClasses, "scaling": ScalingDrift,
}  # fmt: skip


def need_labels(population: Population, labels: list[int], listed: str) -> None:
    """Raise DataError unless samples have classes, and these among them."""
    if not population.has_classes:
        raise DataError("this drift is of labels, and the targets are no classes: use scaling, or of images rotation")
    if max(labels) >= population.classes:
        raise DataError(
            f"drift.{listed} names label {max(labels)}, the data have labels 0..{population.classes - 1}: name others"
        )


@dataclass(frozen=True, eq=False)
class Copies:
    """The samples that clients have under one concept: where in the pool their copies are."""

    originals: Tensor  # sorted
    start: int

    def find(self, samples: Tensor) -> Tensor:
        """The copies of these samples."""
        return self.start + torch.searchsorted(self.originals, samples)


def move_through(drift: ChangePoints, population: Population, plan: Index) -> Population:
    """The population whose clients go through the concepts of a plan ([points + 1, clients])."""
    bigger, copies = copy_concepts(drift, population, plan)
    clusters = number_clusters(population, plan)

    def have(client: int, concept: int, part: str) -> Tensor:
        samples: Tensor = getattr(population, part)[client]
        kept = samples[drift.keeps(concept, population.y[samples])]
        if part == "train" and len(samples) and not len(kept):
            raise DataError(
                f"client {client} has no training samples under concept {concept} of the drift; give it some of those "
                f"labels by the partition, or change {drift.listed}"
            )
        return copies[concept].find(kept) if concept in copies else kept

    changes = []
    for point, round in enumerate(drift.change_rounds, 1):
        moved = np.flatnonzero(plan[point] != plan[point - 1])
        train, test = (tuple(have(m, int(plan[point, m]), part) for m in moved.tolist()) for part in ("train", "test"))
        changes.append(Change(round, torch.from_numpy(moved), train, test, clusters[point, moved]))
    train, test = (tuple(have(m, int(c), part) for m, c in enumerate(plan[0])) for part in ("train", "test"))
    return replace(bigger, train=train, test=test, true_clusters=clusters[0], changes=tuple(changes))


def copy_concepts(drift: ChangePoints, population: Population, plan: Index) -> tuple[Population, dict[int, Copies]]:
    """The population with a copy of each sample under each concept that one of its clients will have it under."""
    x, y, copies = [population.x], [population.y], {}
    for concept in range(drift.count):
        view, clients = drift.view(concept), np.flatnonzero((plan == concept).any(0)).tolist()
        if view is None or not clients:
            continue
        used = torch.cat([part[m] for m in clients for part in (population.train, population.test)]).unique()
        copies[concept] = Copies(used, sum(map(len, y)))
        changed = view(population.x[used], population.y[used], np.random.default_rng(concept))
        x.append(changed[0])
        y.append(changed[1])
    origin = torch.cat([population.origins, *(population.origins[copy.originals] for copy in copies.values())])
    return replace(population, x=torch.cat(x), y=torch.cat(y), origin=origin), copies


def number_clusters(population: Population, plan: Index) -> Tensor:
    """The true cluster of each client, from the start and from each change point on: [points + 1, clients]."""
    planted = np.zeros(population.clients, np.int64)
    if population.true_clusters is not None:
        planted = population.true_clusters.numpy()
    pairs = planted + (int(planted.max()) + 1) * plan
    return torch.from_numpy(np.unique(pairs, return_inverse=True)[1].reshape(plan.shape))
