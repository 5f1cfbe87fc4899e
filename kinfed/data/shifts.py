"""Concept shifts: the same samples mean (labels) or look (pixels) different at different clients.

A view is what a shift does to any samples, so that it can be applied to samples that the client does not have.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from kinfed.checks import at_least, one_of, within
from kinfed.data.augmentation import CHUNK, Pipeline, draw_pipeline, rotate
from kinfed.data.partitions.planted_clusters import contiguous_clusters
from kinfed.data.partitions.split import Index
from kinfed.data.population import UNCHANGED, Population, View, copy_variants
from kinfed.errors import ConfigError, DataError


@dataclass(frozen=True)
class Swapped:
    """Two labels exchanged."""

    first: int
    second: int

    def __call__(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return x, torch.where(y == self.first, self.second, torch.where(y == self.second, self.first, y))


@dataclass(frozen=True)
class Turned:
    """Images turned counter-clockwise."""

    degrees: float

    def __call__(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return turn(x, self.degrees), y


@dataclass(frozen=True)
class Scaled:
    """Features or targets times a factor."""

    factor: float
    of: Literal["features", "targets"]

    def __call__(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return (x, y * self.factor) if self.of == "targets" else (x * self.factor, y)


@dataclass(frozen=True)
class Augmented:
    """Images that passed a pipeline."""

    pipeline: Pipeline

    def __call__(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return self.pipeline(x, rng), y


@dataclass(frozen=True)
class Painted:
    """Images turned counter-clockwise, and one of their channels filled."""

    degrees: float
    channel: int | None = None  # none: no colour

    def __call__(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        painted = turn(x, self.degrees)
        return painted if self.channel is None else fill_channel(painted, self.channel), y


@dataclass(frozen=True)
class Relabelled:
    """Each label under another name."""

    names: tuple[int, ...]  # of each label

    def __call__(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return x, torch.where(y >= 0, torch.tensor(self.names)[y.clamp(min=0)], y)


@dataclass(frozen=True)
class TurnedByLabel:
    """Images turned counter-clockwise, by an angle for each label."""

    degrees: tuple[float, ...]

    def __call__(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        turned = x.clone()
        for label, angle in enumerate(self.degrees):
            turned[y == label] = turn(x[y == label], angle)
        return turned, y


def fill_channel(x: Tensor, channel: int) -> Tensor:
    """Images [b, 3, height, width] with one channel at its largest value."""
    return x.index_fill(1, torch.tensor([channel]), 255)


def add_views(population: Population, views: Sequence[View | None]) -> Population:
    """The population that knows of one more view of each client's samples; None: nothing is done to them."""
    before = (population.views_of(client) for client in range(population.clients))
    added = (() if view is None else (view,) for view in views)
    return replace(population, views=tuple(old + new for old, new in zip(before, added, strict=True)))


def see(views: Iterable[View], x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The samples after all these views, one after the other."""
    for view in views:
        x, y = view(x, y, rng)
    return x, y


def turn(x: Tensor, degrees: float) -> Tensor:
    """Images turned counter-clockwise; exactly where that is a multiple of 90, with black corners elsewhere."""
    quarters, rest = divmod(degrees, 90)
    if rest == 0 and (quarters % 2 == 0 or x.shape[2] == x.shape[3]):
        return torch.rot90(x, int(quarters), (2, 3))
    angles = torch.full((len(x),), float(degrees))
    parts = zip(torch.split(x, CHUNK), torch.split(angles, CHUNK), strict=True)
    turned = [rotate(part.float(), angle, torch.zeros(x.shape[1])) for part, angle in parts]
    return torch.cat(turned).round().clamp(0, 255).to(torch.uint8) if len(x) else x


class Shift(Protocol):
    """Population -> population whose clients have changed copies of their samples, and that knows how (`viewed`)."""

    def __call__(self, population: Population, rng: np.random.Generator) -> Population: ...


@dataclass(frozen=True)
class LabelSwap:
    """In every planted cluster two labels are exchanged (P6, after CFL)."""

    pairs: tuple[tuple[int, int], ...] = ((0, 1), (2, 3), (4, 5), (6, 7))  # pairs[g]: of cluster g

    def __post_init__(self) -> None:
        at_least(1, pairs=len(self.pairs))
        if any(len(pair) != 2 or pair[0] == pair[1] or min(pair) < 0 for pair in self.pairs):
            raise ConfigError(f"pairs must be pairs of two different labels, got {self.pairs}")

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        top = max(max(pair) for pair in self.pairs)
        if not population.has_classes:
            raise DataError("label_swap exchanges labels, and the targets are no classes; leave it out")
        if top >= population.classes:
            raise DataError(f"pairs exchange label {top}, the data have labels 0..{population.classes - 1}")
        clustered = plant_clusters(population, len(self.pairs))
        swaps = [Swapped(*pair) for pair in self.pairs]
        return apply_views(clustered, clusters_of(clustered), swaps, [rng] * len(swaps))


@dataclass(frozen=True)
class Rotation:
    """All images of a planted cluster, or of a client, are turned by one angle (P11: IFCA 0/90/180/270, CFL 0/180)."""

    degrees: tuple[float, ...] = (0, 90, 180, 270)  # turned by, counter-clockwise
    per: Literal["cluster", "client"] = "cluster"  # client: each draws one of the angles at random

    def __post_init__(self) -> None:
        at_least(1, degrees=len(self.degrees))
        at_least(0, **{f"degrees[{i}]": abs(angle) for i, angle in enumerate(self.degrees)})
        one_of(("cluster", "client"), per=self.per)

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        need_images(population, "a rotation")
        if self.per == "client":
            drawn = rng.integers(len(self.degrees), size=population.clients)
            clusters = torch.from_numpy(drawn) if population.true_clusters is None else population.true_clusters
            clustered, angle_of = replace(population, true_clusters=clusters), drawn.tolist()
        else:
            clustered = plant_clusters(population, len(self.degrees))
            angle_of = clusters_of(clustered)
        variants = [UNCHANGED if self.degrees[angle] % 360 == 0 else angle for angle in angle_of]
        return apply_views(clustered, variants, [Turned(angle) for angle in self.degrees], [rng] * len(self.degrees))


@dataclass(frozen=True)
class Augment:
    """All images of a client, or of a planted cluster, pass one fixed random augmentation pipeline (P10, REPA)."""

    count: int = 2  # operations of a pipeline
    pipelines: int | None = None  # None: one for each client; n: one for each of n planted clusters

    def __post_init__(self) -> None:
        at_least(0, count=self.count)
        at_least(1, pipelines=1 if self.pipelines is None else self.pipelines)

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        need_images(population, "an augmentation")
        if self.pipelines is None:
            clustered, variants = population, list(range(population.clients))
        else:
            clustered = plant_clusters(population, self.pipelines)
            variants = clusters_of(clustered)
        streams = rng.spawn(max(variants) + 1)
        pipelines = [Augmented(draw_pipeline(self.count, population.x.shape[1], stream)) for stream in streams]
        return apply_views(clustered, variants, pipelines, streams)


COLOURS = {1: (None,), 2: (0, 2), 3: (0, 2, 1)}  # the channel that each colour fills: none; red, blue; and green


@dataclass(frozen=True)
class Patterns:
    """Each client draws one of some angles and colours for all its images (ANDA's P(X), which FLUX uses)."""

    rotations: int = 4  # angles, evenly spaced from 0 on
    colours: int = 1  # 1: none; 2 and 3: a channel is filled, and grey images become coloured ones

    def __post_init__(self) -> None:
        at_least(1, rotations=self.rotations)
        within(1, len(COLOURS), colours=self.colours)

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        need_images(population, "a pattern")
        if self.colours > 1 and population.x.shape[1] == 1:
            population = replace(population, x=population.x.expand(-1, 3, -1, -1).contiguous())
        angles = [turn * 360 / self.rotations for turn in range(self.rotations)]
        patterns = [Painted(angle, channel) for angle in angles for channel in COLOURS[self.colours]]
        return give_views(population, [patterns[i] for i in rng.integers(len(patterns), size=population.clients)], rng)


@dataclass(frozen=True)
class LabelPermutation:
    """Each client permutes some labels, the same ones everywhere, in an order of its own (ANDA's P(Y|X), FLUX)."""

    labels: int = 2  # that are permuted

    def __post_init__(self) -> None:
        at_least(1, labels=self.labels)

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        chosen = draw_labels(population, self.labels, "label_permutation", rng)
        views = []
        for _ in range(population.clients):
            names = np.arange(population.classes)
            names[chosen] = rng.permutation(chosen)
            views.append(Relabelled(tuple(names.tolist())))
        return give_views(population, views, rng)


@dataclass(frozen=True)
class LabelRotation:
    """Each client turns the images of some labels, the same ones everywhere, by random angles (ANDA's P(X|Y), FLUX)."""

    labels: int = 2  # whose images are turned
    degrees: tuple[float, ...] = (0, 90, 180, 270)  # of which a client draws one for each of these labels

    def __post_init__(self) -> None:
        at_least(1, labels=self.labels, degrees=len(self.degrees))
        at_least(0, **{f"degrees[{i}]": abs(angle) for i, angle in enumerate(self.degrees)})

    def __call__(self, population: Population, rng: np.random.Generator) -> Population:
        need_images(population, "a rotation")
        chosen = draw_labels(population, self.labels, "label_rotation", rng)
        views = []
        for _ in range(population.clients):
            angles = np.zeros(population.classes)
            angles[chosen] = rng.choice(self.degrees, len(chosen))
            views.append(TurnedByLabel(tuple(angles.tolist())))
        return give_views(population, views, rng)


SHIFTS: dict[str, type[Shift]] = {
    "label_swap": LabelSwap,
    "rotation": Rotation,
    "augment": Augment,
    "patterns": Patterns,
    "label_permutation": LabelPermutation,
    "label_rotation": LabelRotation,
}


def draw_labels(population: Population, count: int, what: str, rng: np.random.Generator) -> Index:
    """`count` of the labels at random; raises DataError where there are not so many."""
    if not population.has_classes or count > population.classes:
        held = f"{population.classes} labels" if population.has_classes else "no classes"
        raise DataError(f"{what} is for {count} labels, the data have {held}; set labels lower, or leave it out")
    return rng.choice(population.classes, count, replace=False)


def give_views(population: Population, views: Sequence[View], rng: np.random.Generator) -> Population:
    """The population whose client m has its samples as views[m] shows them; equal views are a planted cluster."""
    kinds = list(dict.fromkeys(views))
    variants = [kinds.index(view) for view in views]
    clusters = torch.tensor(variants) if population.true_clusters is None else population.true_clusters
    return apply_views(replace(population, true_clusters=clusters), variants, kinds, [rng] * len(kinds))


def apply_views(
    population: Population, variants: Sequence[int], views: Sequence[View], streams: Sequence[np.random.Generator]
) -> Population:
    """The population whose client m has its samples as views[variants[m]] shows them."""
    copied = copy_variants(population, variants, lambda v, x, y: views[v](x, y, streams[v]))
    return add_views(copied, [None if v == UNCHANGED else views[v] for v in variants])


def plant_clusters(population: Population, count: int) -> Population:
    """The population with `count` planted clusters: its own, or contiguous ones where it has none."""
    if population.true_clusters is None:
        return replace(
            population, true_clusters=torch.from_numpy(contiguous_clusters(population.clients, count, "shift"))
        )
    found = int(population.true_clusters.max()) + 1
    if found != count:
        raise DataError(
            f"the population has {found} planted clusters, the shift is for {count}; give one entry a cluster"
        )
    return population


def clusters_of(population: Population) -> list[int]:
    """The planted cluster of each client."""
    return [] if population.true_clusters is None else [int(cluster) for cluster in population.true_clusters]


def need_images(population: Population, what: str) -> None:
    """Raise DataError unless the samples are uint8 images."""
    x = population.x
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3):
        raise DataError(f"{what} needs uint8 images [N, 1 or 3, height, width], got {x.dtype} {list(x.shape)}")
