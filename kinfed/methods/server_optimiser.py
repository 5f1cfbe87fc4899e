"""Server optimisers: how the server steps along the mean update of a round (Reddi et al., ICLR 2021, Algorithm 2).

FedAvgM (Hsu et al., 2019) is `sgd` with momentum, m ← β₁m + Δ and w ← w + ηm; FedAdagrad, FedAdam and FedYogi have
m ← β₁m + (1 - β₁)Δ, v from Δ², and w ← w + ηm/(√v + τ), without bias correction, v starting at τ². Deviation:
batch-norm statistics, which no gradient moves, are averaged as they are.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kinfed.checks import above_zero, fraction, one_of
from kinfed.errors import ConfigError
from kinfed.params import Params, each_leaf, subtract

Rule = Literal["sgd", "adagrad", "adam", "yogi"]


@dataclass(frozen=True)
class Moments:
    """What the server's optimiser remembers from one round to the next."""

    first: Params  # m; empty where there is no momentum
    second: Params  # v; empty for sgd


NO_MOMENTS = Moments({}, {})


@dataclass(frozen=True)
class ServerOptimiser:
    """A step of the server along the mean update of a round; by default it takes the mean as it is."""

    name: Rule = "sgd"  # of the step; adagrad, adam and yogi scale each number by its past updates
    lr: float = 1.0  # η, of the server
    momentum: float = 0.0  # β₁; 0.9 with sgd: FedAvgM
    beta2: float = 0.99  # β₂, of adam and yogi
    tau: float = 1e-3  # τ, how adaptive adagrad, adam and yogi are: less is more

    def __post_init__(self) -> None:
        one_of(("sgd", "adagrad", "adam", "yogi"), name=self.name)
        above_zero(lr=self.lr, tau=self.tau)
        fraction(momentum=self.momentum, beta2=self.beta2)
        if self.momentum == 1 or self.beta2 == 1:
            raise ConfigError(f"momentum and beta2 must be below 1, got {self.momentum} and {self.beta2}")

    @property
    def takes_mean(self) -> bool:
        """Whether the new model is the mean itself."""
        return self.name == "sgd" and self.lr == 1 and not self.momentum

    def init(self, params: Params) -> Moments:
        """The moments before the first round."""
        if self.takes_mean:
            return NO_MOMENTS
        second = {} if self.name == "sgd" else each_leaf(lambda w: torch.full_like(w, self.tau**2), params)
        return Moments(each_leaf(torch.zeros_like, params), second)

    def step(self, params: Params, mean: Params, moments: Moments, averaged: Set[str]) -> tuple[Params, Moments]:
        """The model and the moments after a round with this mean; the weights `averaged` take the mean itself."""
        if self.takes_mean:
            return mean, moments
        update = subtract(mean, params)  # Δ
        fresh = 1.0 if self.name == "sgd" else 1 - self.momentum
        first = each_leaf(lambda m, d: self.momentum * m + fresh * d, moments.first, update)
        second = each_leaf(lambda v, d: self.square(v, d * d), moments.second, update)
        steps = each_leaf(lambda m, v: m / (v.sqrt() + self.tau), first, second) if second else first
        moved = each_leaf(lambda w, s: w + self.lr * s, params, steps)
        return moved | {name: mean[name] for name in averaged}, Moments(first, second)

    def square(self, second: Tensor, square: Tensor) -> Tensor:
        """v after a round with this Δ²."""
        if self.name == "adagrad":
            return second + square
        if self.name == "adam":
            return self.beta2 * second + (1 - self.beta2) * square
        return second - (1 - self.beta2) * square * torch.sign(second - square)  # yogi
