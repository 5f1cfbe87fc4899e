"""Optimisers of several clients at once: all weights of a client are one row, so a step is a few operations in all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from kinfed.params import Stack

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8  # of Adam, as in torch
WINDOWS_FIRST = (0, 3, 4, 2, 1)  # [lanes, out, c, height, width] as kernels of convolutions read it: out innermost
INPUTS_FIRST = (0, 2, 1)  # [lanes, out, in] as a batched product makes its gradient
BY_PRODUCTS = (nn.Linear, nn.MultiheadAttention, nn.RNNCellBase)  # their matrices are what `linear` takes
ALIGNED = 4  # numbers: a weight begins at a multiple, as pairs seen as complex numbers and wide loads need it
OptimiserName = Literal["sgd", "adam", "adamw"]


class Optimiser(NamedTuple):
    """The settings of a client's optimiser; its gradient is ∇loss + shift + mu · (w - start), then clipped."""

    name: OptimiserName = "sgd"
    momentum: float = 0.0  # of SGD
    mu: float = 0.0  # μ of FedProx
    weight_decay: float = 0.0  # adamw: apart from the gradient
    clip_norm: float = 0.0  # the largest norm of a gradient; 0: any

    @property
    def moments(self) -> int:
        """Rows as long as the weights that it remembers."""
        return int(self.momentum > 0) if self.name == "sgd" else 2


@dataclass(frozen=True)
class OptimiserState:
    """Weights of all lanes, [lanes, numbers], and what their optimiser remembers; updated in place."""

    optimiser: Optimiser
    weights: Tensor
    moments: tuple[Tensor, ...]
    steps: Tensor  # taken so far: scalar, double
    start: Tensor | None
    shift: Tensor | None

    @classmethod
    def at(cls, optimiser: Optimiser, weights: Tensor, shift: Tensor | None) -> "OptimiserState":
        """An optimiser that starts at these weights, which it takes over."""
        moments = tuple(torch.zeros_like(weights) for _ in range(optimiser.moments))
        steps = torch.zeros((), dtype=torch.double, device=weights.device)
        return cls(optimiser, weights, moments, steps, weights.clone() if optimiser.mu else None, shift)

    def restart(self, weights: Tensor, shift: Tensor | None) -> None:
        """Starts anew from other weights, in the same memory."""
        self.weights.copy_(weights)
        for moment in (*self.moments, self.steps):
            moment.zero_()
        for own, other in ((self.start, weights), (self.shift, shift)):
            if own is not None and other is not None:
                own.copy_(other)

    def first(self, lanes: int) -> "OptimiserState":
        """The first lanes, in the same memory."""
        some = (t if t is None else t[:lanes] for t in (self.start, self.shift))
        moments = tuple(moment[:lanes] for moment in self.moments)
        return OptimiserState(self.optimiser, self.weights[:lanes], moments, self.steps, *some)

    def step(self, gradient: Tensor, lr: Tensor) -> None:
        """One step of all lanes, each at its own rate, lr: [lanes], 0 moves nothing; the gradient is overwritten."""
        how, rate = self.optimiser, lr[:, None]
        if self.shift is not None:
            gradient.add_(self.shift)
        if self.start is not None:
            gradient.add_(self.weights - self.start, alpha=how.mu)
        if how.clip_norm:
            gradient.mul_((how.clip_norm / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp_(max=1))
        if how.weight_decay and how.name == "adamw":
            self.weights.mul_(1 - how.weight_decay * rate)
        elif how.weight_decay:
            gradient.add_(self.weights, alpha=how.weight_decay)
        self.weights.addcmul_(rate.expand_as(gradient), self._direction(gradient), value=-1)

    def _direction(self, gradient: Tensor) -> Tensor:
        if not self.moments:
            return gradient
        if self.optimiser.name == "sgd":
            (moment,) = self.moments
            return torch.add(gradient, moment, alpha=self.optimiser.momentum, out=moment)
        self.steps.add_(1)
        first, second = self.moments
        first.mul_(FIRST).add_(gradient, alpha=1 - FIRST)
        second.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
        scales = ((1 - base**self.steps).to(gradient.dtype) for base in (FIRST, SECOND))
        by_first, by_second = scales
        return (first / by_first).div_((second / by_second).sqrt_().add_(EPSILON))


@dataclass(frozen=True)
class RowLayout:
    """The shapes of all weights in their order, and how the axes of those lie that do not lie as they are written."""

    shapes: dict[str, torch.Size]
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of [lanes, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the weights."""
        return tuple(self.shapes)

    def pack(self, weights: Sequence[Tensor]) -> Tensor:
        """The rows of all lanes: [lanes, numbers]; zeros fill them up so that each weight begins where it may."""
        parts = []
        for (name, shape), w in zip(self.shapes.items(), weights, strict=True):
            parts.append((w.permute(self.orders[name]) if name in self.orders else w).reshape(len(w), -1))
            if gap := -shape.numel() % ALIGNED:
                parts.append(w.new_zeros(len(w), gap))
        return torch.cat(parts, 1)

    def unpack(self, rows: Tensor) -> Stack:
        """The weights by name: parts of the rows."""
        parts = rows.split([shape.numel() + -shape.numel() % ALIGNED for shape in self.shapes.values()], 1)
        named = zip(parts, self.shapes.items(), strict=True)
        return {name: self._view(part[:, : shape.numel()], name, shape) for part, (name, shape) in named}

    def _view(self, part: Tensor, name: str, shape: torch.Size) -> Tensor:
        if name not in self.orders:
            return part.view(len(part), *shape)
        order = self.orders[name]
        back = [order.index(axis) for axis in range(len(order))]
        return part.view(len(part), *(shape[axis - 1] for axis in order[1:])).permute(back)


def find_orders(module: nn.Module, is_cuda: bool) -> dict[str, tuple[int, ...]]:
    """How axes of weights lie best: on a GPU as its kernels of convolutions read them, on a CPU as gradients come."""
    if is_cuda:
        return dict.fromkeys(find_convolutions(module), WINDOWS_FIRST)
    return dict.fromkeys(find_matrices(module), INPUTS_FIRST)


def find_convolutions(module: nn.Module) -> frozenset[str]:
    """Names of the weights of plain 2-D convolutions."""
    return frozenset(
        f"{name}.weight".lstrip(".")
        for name, part in module.named_modules()
        if type(part) is nn.Conv2d and part.groups == 1
    )


def find_matrices(module: nn.Module) -> frozenset[str]:
    """Names of the matrices that samples are multiplied with, transposed."""
    return frozenset(
        f"{name}.{own}".lstrip(".")
        for name, part in module.named_modules()
        if isinstance(part, BY_PRODUCTS)
        for own, w in part.named_parameters(recurse=False)
        if w.dim() == 2
    )
