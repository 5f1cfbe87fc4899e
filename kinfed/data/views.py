"""Views: what a shift does to any rows, so that a client's shift can be applied to rows that it does not have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kinfed.data import pixels
from kinfed.data.pipelines import CHUNK, Pipeline
from kinfed.data.population import Population, View


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
class Augmented:
    """Images that passed a pipeline."""

    pipeline: Pipeline

    def __call__(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return self.pipeline(x, rng), y


def viewed(population: Population, views: Sequence[View | None]) -> Population:
    """The population that knows of one more view of each client's rows; None: nothing is done to them."""
    before = (population.views_of(client) for client in range(population.clients))
    added = (() if view is None else (view,) for view in views)
    return replace(population, views=tuple(old + new for old, new in zip(before, added, strict=True)))


def see(views: Iterable[View], x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The rows after all these views, one after the other."""
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
    turned = [pixels.rotate(part.float(), angle, torch.zeros(x.shape[1])) for part, angle in parts]
    return torch.cat(turned).round().clamp(0, 255).to(torch.uint8) if len(x) else x
