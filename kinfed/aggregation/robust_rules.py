"""Rules that one liar cannot move at will.

A rule sees updates, what each client changed in the model it was sent, and never the server's own models. Sample
counts are claims too, and are capped. Papers: norm clipping, Sun et al., 2019; median and trimmed mean, Yin et al.,
ICML 2018; geometric median, Pillutla et al., 2022; Krum, Blanchard et al., NeurIPS 2017; centred clipping, Karimireddy
et al., ICML 2021. Deviations: clients weigh by their capped sample counts, the share of liars is one of each model's
contributors, rounded up, a radius is the median norm of the round where none is given, and norm clipping cuts running
statistics of norms apart from weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.aggregation.aggregation import Aggregation, count_liars
from kinfed.checks import above_zero, at_least, within
from kinfed.errors import ConfigError
from kinfed.params import Stack, flatten, unflatten

STATISTICS = ("running_mean", "running_var")  # of torch's norms
HALF = 1e-6  # how near to one half a sum of weights is one half
ITERATIONS = 100  # of the geometric median, at most


@dataclass(frozen=True)
class NormClipping(Aggregation):
    """The weighted mean of updates that are cut to a common length."""

    bound: float = 0.0  # of an update's norm; 0: adaptive, by the median norm of the round
    factor: float = 2.0  # times the median norm, where the bound is adaptive

    def __post_init__(self) -> None:
        at_least(0, bound=self.bound)
        above_zero(factor=self.factor)
        super().__post_init__()

    def prepare(self, updates: Tensor) -> Tensor:
        return clip(updates, self.bound or self.factor * median_norm(updates))

    def prepare_models(self, updates: Stack) -> Tensor:
        """Running statistics are clipped by themselves: they change as much as weights, which could take their part."""
        statistics = {name: w for name, w in updates.items() if name.endswith(STATISTICS)}
        if self.bound or not statistics:
            return super().prepare_models(updates)
        weights = {name: w for name, w in updates.items() if name not in statistics}
        clipped = unflatten(self.prepare(flatten(statistics)), statistics)
        if weights:
            clipped |= unflatten(self.prepare(flatten(weights)), weights)
        return flatten({name: clipped[name] for name in updates})

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        return weights @ updates


@dataclass(frozen=True)
class Median(Aggregation):
    """The weighted median of each coordinate."""

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        return weighted_median(updates, weights)


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """The weighted mean of each coordinate, without its largest and its smallest values."""

    liars: float = 0.1  # share of a model's contributors that is left out at either end, rounded up

    def __post_init__(self) -> None:
        _check_share(self.liars)
        super().__post_init__()

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        values, order = updates.sort(0)
        liars = count_liars(self.liars, len(updates))
        kept = slice(liars, len(updates) - liars)
        there = weights[order[kept]]
        return (there * values[kept]).sum(0) / there.sum(0)


@dataclass(frozen=True)
class GeometricMedian(Aggregation):
    """The point with the least weighted sum of distances to all updates (Weiszfeld iteration, by Vardi and Zhang)."""

    tolerance: float = 1e-6  # a step shorter than this share of the median norm ends the iteration

    def __post_init__(self) -> None:
        above_zero(tolerance=self.tolerance)
        super().__post_init__()

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        centre = weighted_median(updates, weights)
        small = max(self.tolerance * median_norm(updates), torch.finfo(torch.float).tiny)
        for _ in range(ITERATIONS):
            apart = norms(updates - centre)
            pull = weights / apart.clamp(min=small)
            moved = (pull / pull.sum()).to(updates.dtype) @ updates
            if bool((here := apart <= small).any()):
                moved = leave_point(centre, updates - centre, torch.where(here, 0, pull), float(weights[here].sum()))
            if norms((moved - centre)[None]) <= small:
                return moved
            centre = moved
        return centre


@dataclass(frozen=True)
class Krum(Aggregation):
    """The weighted mean of the updates that are nearest to their neighbours: Multi-Krum, or Krum where one is kept."""

    liars: float = 0.1  # share of a model's contributors that may lie, rounded up
    keep: int = 0  # updates that are averaged; 1: Krum; 0: all but the liars

    def __post_init__(self) -> None:
        _check_share(self.liars)
        at_least(0, keep=self.keep)
        super().__post_init__()

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        number, liars = len(updates), count_liars(self.liars, len(updates))
        apart = torch.cdist(updates.double(), updates.double()).square().sort(1).values[:, 1:]  # without itself
        score = apart[:, : max(1, number - liars - 2)].sum(1)
        kept = score.argsort(stable=True)[: min(self.keep or number, number - liars)]
        return weights[kept] / weights[kept].sum() @ updates[kept]


@dataclass(frozen=True)
class CentredClipping(Aggregation):
    """The point that moves by the mean of all updates' clipped distances to it, a few times, from no update on."""

    radius: float = 0.0  # of the clipping; 0: the median norm of the contributors' updates
    iterations: int = 3  # of clipping around the last point

    def __post_init__(self) -> None:
        at_least(0, radius=self.radius)
        within(1, 10_000, iterations=self.iterations)
        super().__post_init__()

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        radius, centre = self.radius or median_norm(updates), torch.zeros_like(updates[0])
        for _ in range(self.iterations):
            centre = centre + weights @ clip(updates - centre, radius)
        return centre


def leave_point(centre: Tensor, steps: Tensor, pull: Tensor, weight: float) -> Tensor:
    """The next centre where one is at an update of this weight, which pulls nowhere; the same if the others pull less.

    Vardi and Zhang 2000: there Weiszfeld's iteration would stay, though the update need not be the median.
    """
    force = pull @ steps.to(pull.dtype)
    strength = float(force.norm())
    return centre if strength <= weight else centre + ((1 - weight / strength) / pull.sum() * force).to(centre.dtype)


def norms(updates: Tensor) -> Tensor:
    """The norm of each update, in double: the square of 1e30 is no float."""
    found: Tensor = torch.linalg.vector_norm(updates, dim=1, dtype=torch.double)
    return found


def median_norm(updates: Tensor) -> float:
    """The median norm of these updates; of an even number the smaller one."""
    return float(norms(updates).median()) if len(updates) else 0.0


def clip(updates: Tensor, bound: float) -> Tensor:
    """The same updates, longer ones cut to this norm."""
    scale = (bound / norms(updates).clamp(min=torch.finfo(torch.float).tiny)).clamp(max=1.0)
    return updates * scale.to(updates.dtype)[:, None]


def weighted_median(updates: Tensor, weights: Tensor) -> Tensor:
    """The median of each coordinate: half of the weight is below it; between two values their middle."""
    values, order = updates.sort(0)
    below = weights.double()[order].cumsum(0)
    low, high = (below < 0.5 - HALF).sum(0), (below <= 0.5 + HALF).sum(0).clamp(max=len(updates) - 1)
    lower, upper = (values.gather(0, at[None])[0] for at in (low, high))
    return lower / 2 + upper / 2  # halves: no sum overflows


def _check_share(liars: float) -> None:
    if not 0 <= liars < 0.5:
        raise ConfigError(f"liars must be a share from 0 to below 0.5, got {liars}")
