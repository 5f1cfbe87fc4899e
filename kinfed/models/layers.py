"""Plain layers that several clients pass at once, each with weights of its own, which move on the way back.

A client's place is a lane: rows are [lanes * b, ...], lane by lane, and a weight is [lanes, ...]. The weights of a
layer move as soon as it has handed its gradient on. So no gradient of a whole model is ever stored, and that of a
matrix is not even computed: the product that would be it is added to the matrix at once. Autograd is left out: for
networks as small as clients have, its own work would take longer than theirs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

HOOKS = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
WIDE = 2**19  # numbers in a matrix from which on its product is faster with it on the left


@dataclass(frozen=True)
class Descent:
    """How weights move: w -= rate · v, where v = momentum · v + gradient + mu · (w - start) + shift."""

    rate: float
    momentum: float
    mu: float


@dataclass(frozen=True)
class Weight:
    """One weight of some lanes, its velocity, start and shift, where they are needed; it is changed in place."""

    now: Tensor
    velocity: Tensor | None
    start: Tensor | None
    shift: Tensor | None
    descent: Descent

    @classmethod
    def at(cls, start: Tensor, descent: Descent, shift: Tensor | None = None) -> "Weight":
        """A weight that stands at `start`, which becomes its own."""
        moving = bool(descent.momentum or descent.mu) or shift is not None
        velocity = torch.zeros_like(start) if moving else None
        return cls(start, velocity, start.clone() if descent.mu else None, shift, descent)

    def pick(self, lanes: slice | list[int]) -> "Weight":
        """The weight of these lanes: a view for a slice, a copy for a list."""
        velocity, start, shift = (t if t is None else t[lanes] for t in (self.velocity, self.start, self.shift))
        return Weight(self.now[lanes], velocity, start, shift, self.descent)

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
        if self.shift is not None:
            velocity.add_(self.shift)
        self.now.add_(velocity, alpha=-self.descent.rate)


Weights = Mapping[str, Weight]
Back = Callable[[Tensor, bool], Tensor]  # the gradient after a layer -> that before it, unless nobody wants it
Layer = Callable[[Tensor, Weights], tuple[Tensor, Back]]  # rows -> rows, and the way back, which moves the weights
aten = torch.ops.aten


@dataclass(frozen=True)
class Layers:
    """The layers of a network in their order."""

    steps: tuple[Layer, ...]
    first: int  # the lowest layer with weights: nobody wants the gradient before it
    alone: bool  # convolutions gain nothing from other lanes: such a network takes one lane at a time

    def descend(self, x: Tensor, y: Tensor, share: Tensor, weights: Weights) -> None:
        """Moves the weights by one step on the cross-entropy; a row counts by its share in its batch."""
        x = _channels_last(x) if self.alone and x.dim() == 4 else x
        backs = []
        for step in self.steps:
            x, back = step(x, weights)
            backs.append(back)
        surprise = x.softmax(1).scatter_add_(1, y[:, None], x.new_full((len(y), 1), -1.0))
        slope = surprise.mul_(share[:, None])
        for i in range(len(backs) - 1, self.first - 1, -1):
            slope = backs[i](slope, i > self.first)


def layers_of(module: nn.Module) -> Layers | None:
    """The module as plain layers; None if it is anything but a sequence of such."""
    if is_hooked(module):
        return None
    parts = list(leaves(module))
    steps = [_layer(name, leaf) for name, leaf in parts]
    weights = [id(weight) for _, leaf in parts for weight in leaf.parameters()]
    if None in steps or len(set(weights)) < len(weights):  # a weight that is used twice must not move in between
        return None
    first = next((i for i, (_, leaf) in enumerate(parts) if any(True for _ in leaf.parameters())), len(parts))
    convolves = any(type(leaf) is nn.Conv2d for _, leaf in parts)
    return Layers(tuple(step for step in steps if step), first, convolves)


def leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The parts of nested sequences in their order, each with its name and a dot."""
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for inner, part in module._modules.items():  # named_children leaves out who comes a second time
        if part is not None:
            yield from leaves(part, f"{name}{inner}.")


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody is called before, after or instead of it or one of its parts, on the way there or back."""
    return any("forward" in vars(part) or any(getattr(part, h) for h in HOOKS) for part in module.modules())


def _layer(name: str, leaf: nn.Module) -> Layer | None:
    if type(leaf) is nn.Linear:
        return partial(_linear, name)
    if type(leaf) is nn.ReLU:
        return _relu
    if type(leaf) is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1):
        return _flat
    if type(leaf) is nn.Conv2d and leaf.padding_mode == "zeros" and not isinstance(leaf.padding, str):
        return partial(_convolution, name, leaf)
    return partial(_pool, leaf) if type(leaf) is nn.MaxPool2d and not leaf.return_indices else None


def _linear(name: str, x: Tensor, weights: Weights) -> tuple[Tensor, Back]:
    weight, bias = weights[f"{name}weight"], weights.get(f"{name}bias")
    lanes, out, _ = weight.now.shape
    rows = x.view(lanes, -1, x.shape[1])
    if weight.now[0].numel() < WIDE:
        product = torch.bmm(rows, weight.now.transpose(1, 2))
    else:
        product = torch.bmm(weight.now, rows.transpose(1, 2)).transpose(1, 2).contiguous()

    def back(gradient: Tensor, wanted: bool) -> Tensor:
        slope = gradient.view(lanes, -1, out)
        before = torch.bmm(slope, weight.now).flatten(0, 1) if wanted else gradient
        weight.move_by_product(slope.transpose(1, 2), rows)
        if bias is not None:
            bias.move(slope.sum(1))
        return before

    return (product if bias is None else product.add_(bias.now[:, None])).view(-1, out), back


def _relu(x: Tensor, weights: Weights) -> tuple[Tensor, Back]:
    y = x.relu_()  # no layer looks at its output again
    return y, lambda gradient, wanted: aten.threshold_backward(gradient, y, 0)


def _flat(x: Tensor, weights: Weights) -> tuple[Tensor, Back]:
    return x.flatten(1), lambda gradient, wanted: gradient.view(x.shape)


def _pool(like: nn.MaxPool2d, x: Tensor, weights: Weights) -> tuple[Tensor, Back]:
    how = like.kernel_size, like.stride, like.padding, like.dilation, like.ceil_mode
    y, places = max_pool2d(x, *how, return_indices=True)
    pairs = [value if isinstance(value, tuple) else (value, value) for value in how[:4]]
    return y, lambda gradient, wanted: aten.max_pool2d_with_indices_backward(gradient, x, *pairs, how[4], places)


def _convolution(name: str, like: nn.Conv2d, x: Tensor, weights: Weights) -> tuple[Tensor, Back]:
    """Of a single lane."""
    weight, bias = weights[f"{name}weight"], weights.get(f"{name}bias")
    how = like.stride, like.padding, like.dilation

    def back(gradient: Tensor, wanted: bool) -> Tensor:
        needed = [wanted, True, bias is not None]
        before, slope, offset = aten.convolution_backward(
            gradient, x, weight.now[0], [like.out_channels], *how, False, [0, 0], like.groups, needed
        )
        weight.move(slope[None])
        if bias is not None:
            bias.move(offset[None])
        return before if wanted else gradient

    offset = None if bias is None else bias.now[0]
    return conv2d(x, weight.now[0], offset, *how, like.groups), back  # type: ignore[arg-type]


def _channels_last(x: Tensor) -> Tensor:
    """The same images, channels innermost in memory, which convolutions and pooling on a CPU like best."""
    inner = x.permute(0, 2, 3, 1)
    return x.new_empty(inner.shape).copy_(inner).permute(0, 3, 1, 2)
