"""Concept shifts: the same rows mean (labels) or look (pixels) different at different clients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch

from kinfed.checks import at_least, one_of
from kinfed.data.partitions.grouped_labels import contiguous_clusters
from kinfed.data.pipelines import draw_pipeline
from kinfed.data.population import Population, View
from kinfed.data.repointing import UNCHANGED, with_variants
from kinfed.data.views import Augmented, Swapped, Turned, viewed
from kinfed.errors import ConfigError, DataError


class Shift(Protocol):
    """Population -> population whose clients have changed copies of their rows, and that knows how (`viewed`)."""

    def __call__(self, population: Population, rng: np.random.Generator) -> Population: ...


@dataclass(frozen=True)
class LabelSwap:
    """In every planted group two labels are exchanged (P6, after CFL)."""

    pairs: tuple[tuple[int, int], ...] = ((0, 1), (2, 3), (4, 5), (6, 7))  # pairs[g]: of group g

    def __post_init__(self) -> None:
        at_least(1, pairs=len(self.pairs))
        if any(len(pair) != 2 or pair[0] == pair[1] or min(pair) < 0 for pair in self.pairs):
            raise ConfigError(f"pairs must be pairs of two different labels, got {self.pairs}")

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        top = max(max(pair) for pair in self.pairs)
        if top >= population.classes:
            raise DataError(f"pairs exchange label {top}, the data have labels 0..{population.classes - 1}")
        grouped = with_clusters(population, len(self.pairs))
        swaps = [Swapped(*pair) for pair in self.pairs]
        return shifted(grouped, clusters_of(grouped), swaps, [rng] * len(swaps))


@dataclass(frozen=True)
class Rotation:
    """All images of a planted group, or of a client, are turned by one angle (P11: IFCA 0/90/180/270, CFL 0/180)."""

    degrees: tuple[float, ...] = (0, 90, 180, 270)  # turned by, counter-clockwise
    per: Literal["cluster", "client"] = "cluster"  # client: each draws one of the angles at random

    def __post_init__(self) -> None:
        at_least(1, degrees=len(self.degrees))
        one_of(("cluster", "client"), per=self.per)

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        need_images(population, "a rotation")
        if self.per == "client":
            drawn = rng.integers(len(self.degrees), size=population.clients)
            clusters = torch.from_numpy(drawn) if population.true_clusters is None else population.true_clusters
            grouped, angle_of = replace(population, true_clusters=clusters), drawn.tolist()
        else:
            grouped = with_clusters(population, len(self.degrees))
            angle_of = clusters_of(grouped)
        variants = [UNCHANGED if self.degrees[angle] % 360 == 0 else angle for angle in angle_of]
        return shifted(grouped, variants, [Turned(angle) for angle in self.degrees], [rng] * len(self.degrees))


@dataclass(frozen=True)
class Augment:
    """All images of a client, or of a planted group, pass one fixed random augmentation pipeline (P10, REPA)."""

    count: int = 2  # operations of a pipeline
    pipelines: int | None = None  # None: one for each client; n: one for each of n planted groups

    def __post_init__(self) -> None:
        at_least(0, count=self.count)
        at_least(1, pipelines=1 if self.pipelines is None else self.pipelines)

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        need_images(population, "an augmentation")
        if self.pipelines is None:
            grouped, variants = population, list(range(population.clients))
        else:
            grouped = with_clusters(population, self.pipelines)
            variants = clusters_of(grouped)
        streams = rng.spawn(max(variants) + 1)
        pipelines = [Augmented(draw_pipeline(self.count, population.x.shape[1], stream)) for stream in streams]
        return shifted(grouped, variants, pipelines, streams)


SHIFTS: dict[str, type[Shift]] = {"label_swap": LabelSwap, "rotation": Rotation, "augment": Augment}


def shifted(
    population: Population, variants: Sequence[int], views: Sequence[View], streams: Sequence[np.random.Generator]
) -> Population:
    """The population whose client m has its rows as views[variants[m]] shows them."""
    copied = with_variants(population, variants, lambda v, x, y: views[v](x, y, streams[v]))
    return viewed(copied, [None if v == UNCHANGED else views[v] for v in variants])


def with_clusters(population: Population, count: int) -> Population:
    """The population with `count` planted groups: its own, or contiguous ones where it has none."""
    if population.true_clusters is None:
        return replace(population, true_clusters=torch.from_numpy(contiguous_clusters(population.clients, count)))
    found = int(population.true_clusters.max()) + 1
    if found != count:
        raise DataError(
            f"the population has {found} planted groups, the shift describes {count}; give one entry a group"
        )
    return population


def clusters_of(population: Population) -> list[int]:
    """The planted group of each client."""
    return [] if population.true_clusters is None else [int(cluster) for cluster in population.true_clusters]


def need_images(population: Population, what: str) -> None:
    """Raise DataError unless the rows are uint8 images."""
    x = population.x
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3):
        raise DataError(f"{what} needs uint8 images [N, 1 or 3, height, width], got {x.dtype} {list(x.shape)}")
