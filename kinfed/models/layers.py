"""Plain layers that several clients pass at once, each with weights of its own, which move inside the backward pass.

A client's place is a lane: rows are [lanes * b, ...], lane by lane, and a weight is [lanes, ...]. The weights of a
layer move as soon as it has handed its gradient on. So no gradient of a whole model is ever stored, and that of a
matrix is not even computed: the product that would be it is added to the matrix at once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

ROW_BY_ROW = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Identity, nn.MaxPool2d, nn.AvgPool2d
)  # fmt: skip
WIDE = 2**19  # numbers in a matrix from which on its product is faster with it on the left


@dataclass(frozen=True)
class Descent:
    """How weights move: w -= rate · v, where v = momentum · v + gradient + mu · (w - start)."""

    rate: float
    momentum: float
    mu: float


@dataclass(frozen=True)
class Weight:
    """One weight of some lanes, its velocity and its start, where they are needed; all are changed in place."""

    now: Tensor
    velocity: Tensor | None
    start: Tensor | None
    descent: Descent

    @classmethod
    def at(cls, start: Tensor, descent: Descent) -> "Weight":
        """A weight that stands at `start`, which becomes its own."""
        moving = bool(descent.momentum or descent.mu)
        velocity = torch.zeros_like(start) if moving else None
        return cls(start, velocity, start.clone() if descent.mu else None, descent)

    def pick(self, lanes: slice | list[int]) -> "Weight":
        """The weight of these lanes: a view for a slice, a copy for a list."""
        velocity, start = (None if part is None else part[lanes] for part in (self.velocity, self.start))
        return Weight(self.now[lanes], velocity, start, self.descent)

    def put(self, other: "Weight", lanes: int) -> None:
        """Takes the first lanes of another weight over."""
        self.now[:lanes] = other.now[:lanes]
        if self.velocity is not None and other.velocity is not None:
            self.velocity[:lanes] = other.velocity[:lanes]

    def move_by_product(self, left: Tensor, right: Tensor) -> None:
        """Takes the step whose gradient is left @ right."""
        if self.velocity is None:
            self.now.baddbmm_(left, right, alpha=-self.descent.rate)
        else:
            self._follow(self.velocity.baddbmm_(left, right, beta=self.descent.momentum))

    def move(self, gradient: Tensor) -> None:
        """Takes the step of this gradient."""
        if self.velocity is None:
            self.now.add_(gradient, alpha=-self.descent.rate)
        else:
            self._follow(self.velocity.mul_(self.descent.momentum).add_(gradient))

    def _follow(self, velocity: Tensor) -> None:
        if self.start is not None:
            velocity.add_(self.now - self.start, alpha=self.descent.mu)
        self.now.add_(velocity, alpha=-self.descent.rate)


Weights = Mapping[str, Weight]
Layer = Callable[[Tensor, Weights, Tensor], Tensor]  # rows, weights by name, anchor -> rows


class Context(Protocol):
    """What autograd keeps of a layer between its two passes."""

    weight: Weight
    bias: Weight | None
    like: nn.Conv2d
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, anchor: Tensor, weight: Weight, bias: Weight | None) -> Tensor:
        lanes, out, _ = weight.now.shape
        rows = x.view(lanes, -1, x.shape[1])
        ctx.save_for_backward(rows)
        ctx.weight, ctx.bias = weight, bias
        if weight.now[0].numel() < WIDE:
            product = torch.bmm(rows, weight.now.transpose(1, 2))
        else:
            product = torch.bmm(weight.now, rows.transpose(1, 2)).transpose(1, 2)
        return (product if bias is None else product + bias.now[:, None]).reshape(-1, out)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        (rows,) = ctx.saved_tensors
        weight, bias = ctx.weight, ctx.bias
        slope = gradient.view(len(rows), -1, gradient.shape[1])
        before = torch.bmm(slope, weight.now).flatten(0, 1) if ctx.needs_input_grad[0] else None
        weight.move_by_product(slope.transpose(1, 2), rows)
        if bias is not None:
            bias.move(slope.sum(1))
        return before, None, None, None


class _Convolution(torch.autograd.Function):
    """Of a single lane."""

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, anchor: Tensor, weight: Weight, bias: Weight | None, like: nn.Conv2d
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.like = weight, bias, like
        offset = None if bias is None else bias.now[0]
        return conv2d(x, weight.now[0], offset, like.stride, like.padding, like.dilation, like.groups)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (x,) = ctx.saved_tensors
        weight, bias, like = ctx.weight, ctx.bias, ctx.like
        before, slope, offset = torch.ops.aten.convolution_backward(
            gradient, x, weight.now[0], [len(weight.now[0])], like.stride, like.padding, like.dilation,
            False, [0, 0], like.groups, [ctx.needs_input_grad[0], True, bias is not None],
        )  # fmt: skip
        weight.move(slope[None])
        if bias is not None:
            bias.move(offset[None])
        return before, None, None, None, None


@dataclass(frozen=True)
class Layers:
    """The layers of a network in their order."""

    steps: tuple[Layer, ...]
    alone: bool  # convolutions gain nothing from other lanes: such a network takes one lane at a time

    def __call__(self, x: Tensor, weights: Weights) -> Tensor:
        """The output for rows x; its backward pass moves the weights."""
        anchor = torch.zeros((), requires_grad=True)  # makes autograd visit every layer
        x = _channels_last(x) if self.alone and x.dim() == 4 else x
        for step in self.steps:
            x = step(x, weights, anchor)
        return x


def layers_of(module: nn.Module) -> Layers | None:
    """The module as plain layers; None if it is anything but a sequence of such."""
    leaves = list(_leaves(module))
    steps = [_layer(name, leaf) for name, leaf in leaves]
    weights = [id(weight) for _, leaf in leaves for weight in leaf.parameters()]
    if None in steps or len(set(weights)) < len(weights):  # a weight that is used twice must not move in between
        return None
    return Layers(tuple(step for step in steps if step), any(type(leaf) is nn.Conv2d for _, leaf in leaves))


def _leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for inner, part in module._modules.items():  # named_children leaves out who comes a second time
        if part is not None:
            yield from _leaves(part, f"{name}{inner}.")


def _layer(name: str, leaf: nn.Module) -> Layer | None:
    if leaf._forward_hooks or leaf._forward_pre_hooks:
        return None
    if type(leaf) is nn.Linear:
        return partial(_linear, name)
    if type(leaf) is nn.Conv2d and leaf.padding_mode == "zeros" and not isinstance(leaf.padding, str):
        return partial(_convolution, name, leaf)
    flattens = type(leaf) is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1)
    return partial(_row_by_row, leaf) if flattens or type(leaf) in ROW_BY_ROW else None


def _linear(name: str, x: Tensor, weights: Weights, anchor: Tensor) -> Tensor:
    return cast("Tensor", _Linear.apply(x, anchor, weights[f"{name}weight"], weights.get(f"{name}bias")))  # type: ignore[no-untyped-call]


def _convolution(name: str, like: nn.Conv2d, x: Tensor, weights: Weights, anchor: Tensor) -> Tensor:
    weight, bias = weights[f"{name}weight"], weights.get(f"{name}bias")
    return cast("Tensor", _Convolution.apply(x, anchor, weight, bias, like))  # type: ignore[no-untyped-call]


def _row_by_row(leaf: nn.Module, x: Tensor, weights: Weights, anchor: Tensor) -> Tensor:
    return leaf(x)  # type: ignore[no-any-return]


def _channels_last(x: Tensor) -> Tensor:
    """The same images, channels innermost in memory, which convolutions and pooling on a CPU like best."""
    inner = x.permute(0, 2, 3, 1)
    return x.new_empty(inner.shape).copy_(inner).permute(0, 3, 1, 2)
