"""Concept shifts: the same rows mean (labels) or look (pixels) different at different clients."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from kinfed.data import pixels
from kinfed.data.checks import at_least, one_of
from kinfed.data.partitions.grouped_labels import contiguous_groups
from kinfed.data.pipelines import CHUNK, draw_pipeline
from kinfed.data.population import Population
from kinfed.data.repointing import UNCHANGED, with_variants
from kinfed.errors import ConfigError, DataError


class Shift(Protocol):
    """Population -> population whose clients have changed copies of their rows."""

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
        grouped = with_groups(population, len(self.pairs))
        return with_variants(grouped, groups_of(grouped), self.swap)

    def swap(self, group: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The rows with the labels of the group's pair exchanged."""
        first, second = self.pairs[group]
        return x, torch.where(y == first, second, torch.where(y == second, first, y))


@dataclass(frozen=True)
class Rotation:
    """All images of a planted group, or of a client, are turned by one angle (P11: IFCA 0/90/180/270, CFL 0/180)."""

    degrees: tuple[float, ...] = (0, 90, 180, 270)  # counter-clockwise
    per: Literal["group", "client"] = "group"  # client: each draws one of the angles at random

    def __post_init__(self) -> None:
        at_least(1, degrees=len(self.degrees))
        one_of(("group", "client"), per=self.per)

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        need_images(population, "a rotation")
        if self.per == "client":
            drawn = rng.integers(len(self.degrees), size=population.clients)
            groups = torch.from_numpy(drawn) if population.groups is None else population.groups
            grouped, angle_of = replace(population, groups=groups), drawn.tolist()
        else:
            grouped = with_groups(population, len(self.degrees))
            angle_of = groups_of(grouped)
        variants = [UNCHANGED if self.degrees[angle] % 360 == 0 else angle for angle in angle_of]
        return with_variants(grouped, variants, lambda angle, x, y: (turn(x, self.degrees[angle]), y))


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
            grouped = with_groups(population, self.pipelines)
            variants = groups_of(grouped)
        streams = rng.spawn(max(variants) + 1)
        pipelines = [draw_pipeline(self.count, population.x.shape[1], stream) for stream in streams]
        return with_variants(grouped, variants, lambda v, x, y: (pipelines[v](x, streams[v]), y))


SHIFTS: dict[str, type[Shift]] = {"label_swap": LabelSwap, "rotation": Rotation, "augment": Augment}


def with_groups(population: Population, count: int) -> Population:
    """The population with `count` planted groups: its own, or contiguous ones where it has none."""
    if population.groups is None:
        return replace(population, groups=torch.from_numpy(contiguous_groups(population.clients, count)))
    found = int(population.groups.max()) + 1
    if found != count:
        raise DataError(
            f"the population has {found} planted groups, the shift describes {count}; give one entry a group"
        )
    return population


def groups_of(population: Population) -> list[int]:
    """The planted group of each client."""
    return [] if population.groups is None else [int(group) for group in population.groups]


def need_images(population: Population, what: str) -> None:
    """Raise DataError unless the rows are uint8 images."""
    x = population.x
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3):
        raise DataError(f"{what} needs uint8 images [N, 1 or 3, height, width], got {x.dtype} {list(x.shape)}")


def turn(x: Tensor, degrees: float) -> Tensor:
    """Images turned counter-clockwise; exactly where that is a multiple of 90, with black corners elsewhere."""
    quarters, rest = divmod(degrees, 90)
    if rest == 0 and (quarters % 2 == 0 or x.shape[2] == x.shape[3]):
        return torch.rot90(x, int(quarters), (2, 3))
    angles = torch.full((len(x),), float(degrees))
    parts = zip(torch.split(x, CHUNK), torch.split(angles, CHUNK), strict=True)
    turned = [pixels.rotate(part.float(), angle, torch.zeros(x.shape[1])) for part, angle in parts]
    return torch.cat(turned).round().clamp(0, 255).to(torch.uint8) if len(x) else x
