"""Local training: mini-batch SGD or Adam on a client, and rules that change its gradient."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kinfed.client import Batch, Client
from kinfed.errors import ConfigError
from kinfed.models import Feed, Gradient, GradientFn, Model, Quick, descend
from kinfed.params import Params, each_leaf


@dataclass(frozen=True)
class LocalTraining:
    """E epochs of mini-batch descent; the optimiser starts anew each time, as in all the papers' code."""

    epochs: int = 1  # E, passes over its rows that a client makes in a round
    batch_size: int = 10  # rows of a step
    lr: float = 0.01  # learning rate
    momentum: float = 0.5  # of SGD; 0: none
    decay: float = 1.0  # the learning rate is multiplied by this after every round
    mu: float = 0.0  # μ, FedProx: pull towards the received model, gradient μ (w - w_received)
    optimiser: Literal["sgd", "adam"] = "sgd"  # of the client; it starts anew every round
    adapt_epochs: int = 0  # when a client tunes the model it is served; 0: as `epochs`

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ConfigError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")
        is_finite = all(map(math.isfinite, (self.lr, self.decay, self.mu)))
        if not is_finite or self.lr <= 0 or self.decay <= 0 or self.mu < 0 or not 0 <= self.momentum < 1:
            raise ConfigError(
                "wanted lr > 0, decay > 0, mu >= 0 and 0 <= momentum < 1, all finite, got "
                f"lr={self.lr}, decay={self.decay}, mu={self.mu}, momentum={self.momentum}"
            )
        if self.optimiser not in ("sgd", "adam"):
            raise ConfigError(f"optimiser must be 'sgd' or 'adam', got '{self.optimiser}'")

    def __call__(self, client: Client, start: Params, gradient: GradientFn) -> tuple[Params, Tensor]:
        """The weights after training from `start`, and the number of steps taken."""
        if quick := self._quick(client, start, gradient):
            shift = gradient.shift if isinstance(gradient, ShiftedGradient) else {}
            return self._quickly(quick, client, start, shift), client.steps(self.epochs, self.batch_size)
        rate = self.rate(client)
        params, moments = start, self._blank(start)
        for step, batch in enumerate(client.batches(self.epochs, self.batch_size), 1):
            slope, buffers = gradient(params, batch)
            if self.mu:
                slope = each_leaf(lambda g, w, w0: g + self.mu * (w - w0), slope, params, start)
            moments = self._remember(moments, slope)
            stride = rate * batch.live  # an empty batch moves nothing
            params = params | _moved(params, stride, self._direction(moments, step)) | dict(buffers)
        return {name: params[name] for name in start}, client.steps(self.epochs, self.batch_size)

    def _quick(self, client: Client, start: Params, gradient: GradientFn) -> Quick | None:
        """How these weights are trained the quick way; None where only the general way is right."""
        plain = (
            gradient.gradient if isinstance(gradient, ShiftedGradient | MetaGradient | LabelledGradient) else gradient
        )
        model = getattr(plain, "__self__", None)
        if not isinstance(model, Model) or plain != model.gradient or set(start) != set(model.weights):
            return None
        if client.train.exact or self.optimiser != "sgd" or not model.is_quick_on(client.key.device):
            return None
        if isinstance(gradient, MetaGradient):
            fits = client.key.is_cuda and not self.momentum and self.batch_size == 2 * gradient.size
            return Quick(model, mu=self.mu, inner=gradient.alpha) if fits else None
        return Quick(model, self.momentum, self.mu) if not (self.mu and isinstance(gradient, ShiftedGradient)) else None

    def _quickly(self, quick: Quick, client: Client, start: Params, shift: Params) -> Params:
        parts = 2 if quick.inner else 1
        feed = Feed(client.train.x, client.train.y, *client.feed(self.epochs, self.batch_size, parts))
        return descend(quick, feed, self.rate(client), start, {name: shift[name] for name in start if shift})

    def rate(self, client: Client) -> Tensor:
        """The learning rate of the round the client is in."""
        return self.lr * self.decay**client.round

    def effective_steps(self, client: Client) -> Tensor:
        """FedNova's ‖a‖₁: how far a weight whose gradient is always one would get, in learning rates.

        That is the number of steps for plain SGD; momentum makes it larger, and the proximal term smaller.
        """
        if self.optimiser == "sgd" and not self.mu:
            steps = client.steps(self.epochs, self.batch_size).float()  # FedNova's formula, without a walk through them
            return (steps - self.momentum * (1 - self.momentum**steps) / (1 - self.momentum)) / (1 - self.momentum)
        start = torch.zeros((), device=client.key.device)
        end, _ = self(client, {"way": start}, lambda params, batch: Gradient({"way": torch.ones_like(start)}))
        return -end["way"] / self.rate(client)

    def for_adaptation(self) -> "LocalTraining":
        """The same training with the epochs of adaptation."""
        return replace(self, epochs=self.adapt_epochs or self.epochs)

    def _blank(self, start: Params) -> list[Params]:
        return [each_leaf(torch.zeros_like, start) for _ in range(2 if self.optimiser == "adam" else 1)]

    def _remember(self, moments: list[Params], slope: Params) -> list[Params]:
        if self.optimiser == "sgd":
            return [each_leaf(lambda g, v: self.momentum * v + g, slope, moments[0])]
        return [
            each_leaf(lambda g, m: 0.9 * m + 0.1 * g, slope, moments[0]),
            each_leaf(lambda g, v: 0.999 * v + 0.001 * g * g, slope, moments[1]),
        ]

    def _direction(self, moments: list[Params], step: int) -> Params:
        if self.optimiser == "sgd":
            return moments[0]
        first, second = 1 - 0.9**step, 1 - 0.999**step
        return each_leaf(lambda m, v: (m / first) / ((v / second).sqrt() + 1e-8), *moments)


def _moved(params: Params, stride: Tensor, direction: Params) -> Params:
    return {name: params[name] - stride * d for name, d in direction.items()}


@dataclass(frozen=True)
class ShiftedGradient:
    """A gradient plus a constant (SCAFFOLD's c - cᵢ)."""

    gradient: GradientFn
    shift: Params

    def __call__(self, params: Params, batch: Batch) -> Gradient:
        slope, buffers = self.gradient(params, batch)
        return Gradient(each_leaf(torch.add, slope, self.shift), buffers)


@dataclass(frozen=True)
class MetaGradient:
    """The first-order meta gradient of a pair of mini-batches, `size` rows and the rest: ∇f(w - α∇f(w; B); B').

    A pair without a second mini-batch has no gradient.
    """

    gradient: GradientFn
    alpha: float
    size: int

    def __call__(self, params: Params, pair: Batch) -> Gradient:
        first, second = pair.part(slice(self.size)), pair.part(slice(self.size, None))
        inner = self.gradient(params, first).weights
        if not len(second.x):
            return Gradient(each_leaf(torch.zeros_like, inner))
        return self.gradient(params | {name: params[name] - self.alpha * g for name, g in inner.items()}, second)


@dataclass(frozen=True)
class LabelledGradient:
    """The gradient over the rows that have a label; where none has, nothing changes."""

    gradient: GradientFn

    def __call__(self, params: Params, batch: Batch) -> Gradient:
        known = batch.mask & (batch.y >= 0)
        slope, buffers = self.gradient(params, batch._replace(y=batch.y.clamp(min=0), mask=known))
        return Gradient(slope, {name: torch.where(known.any(), b, params[name]) for name, b in buffers.items()})
