"""Plain layers for several clients at once, each with weights of its own, which the backward pass updates.

A lane is a client's index in the block: samples are [lanes * b, ...], lane by lane, and a weight is [lanes, ...]. A
layer's weights are updated as soon as it has passed its gradient on. So no gradient of a whole model is ever stored,
and that of a matrix is not even computed: the product that would be it is added to the matrix at once. Autograd is left
out: for networks as small as clients have, its own work would take longer than theirs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

from kinfed.keys import fold
from kinfed.models.batch_operations import draw_kept
from kinfed.models.convolutions import Pair, Windows2d, add_windows, gather_windows
from kinfed.models.inputs import Augmenter, Inputs, augment

DROPOUTS = nn.Dropout, nn.Dropout2d
HOOKS = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
HAS_MKL = torch.backends.mkl.is_available()  # on Intel's CPUs; others multiply by a transposed matrix at half the speed
MOST_WINDOWS = 2**24  # numbers of windows that are held at once
WIDE = 2**19  # numbers in a matrix from which on its product is faster with it on the left, by MKL


@dataclass(frozen=True)
class UpdateRule:
    """A step of SGD: w -= lr · v, where v = momentum · v + gradient + pull · (w - anchor · start) + shift."""

    lr: float
    momentum: float
    pull: float
    anchor: float


@dataclass(frozen=True)
class Weight:
    """One weight of some lanes, its velocity, anchor and shift, where they are needed; updated in place."""

    now: Tensor
    velocity: Tensor | None
    anchor: Tensor | None
    shift: Tensor | None
    rule: UpdateRule

    @classmethod
    def at(cls, start: Tensor, rule: UpdateRule, shift: Tensor | None = None) -> "Weight":
        """A weight at `start`, which it takes over."""
        needs_velocity = bool(rule.momentum or rule.pull) or shift is not None
        velocity = torch.zeros_like(start) if needs_velocity else None
        return cls(start, velocity, start * rule.anchor if rule.pull else None, shift, rule)

    def select(self, lanes: slice | list[int]) -> "Weight":
        """The weight of these lanes: a view for a slice, a copy for a list."""
        velocity, anchor, shift = (
            t if t is None else take_lanes(t, lanes) for t in (self.velocity, self.anchor, self.shift)
        )
        return Weight(take_lanes(self.now, lanes), velocity, anchor, shift, self.rule)

    def put(self, other: "Weight", lanes: int) -> None:
        """Copies the first lanes of another weight."""
        self.now[:lanes] = other.now[:lanes]
        if self.velocity is not None and other.velocity is not None:
            self.velocity[:lanes] = other.velocity[:lanes]

    def step_by_product(self, left: Tensor, right: Tensor) -> None:
        """Takes the step whose gradient is left @ right."""
        if self.velocity is None:
            self.now.baddbmm_(left, right, alpha=-self.rule.lr)
        else:
            self._apply(self.velocity.baddbmm_(left, right, beta=self.rule.momentum))

    def step(self, gradient: Tensor) -> None:
        """Takes the step of this gradient."""
        if self.velocity is None:
            self.now.add_(gradient, alpha=-self.rule.lr)
        else:
            self._apply(self.velocity.mul_(self.rule.momentum).add_(gradient))

    def _apply(self, velocity: Tensor) -> None:
        if self.anchor is not None:
            velocity.add_(self.now - self.anchor, alpha=self.rule.pull)
        if self.shift is not None:
            velocity.add_(self.shift)
        self.now.add_(velocity, alpha=-self.rule.lr)


def take_lanes(t: Tensor, lanes: slice | list[int] | Tensor) -> Tensor:
    """These lanes, laid out in memory as all were: a view for a slice, else a copy."""
    is_transposed = t.dim() == 3 and t.stride(1) < t.stride(2)
    return t.mT[lanes].mT if is_transposed else t[lanes]


Weights = Mapping[str, Weight]
Backward = Callable[[Tensor, bool], Tensor]  # the gradient after a layer -> that before it, unless it is not needed
Layer = Callable[[Tensor, Weights, Tensor], tuple[Tensor, Backward]]  # by keys [lanes]: activations, backward pass
aten = torch.ops.aten


@dataclass(frozen=True)
class Drop:
    """A dropout: which draw of a forward pass it is, of single numbers or of whole channels."""

    number: int
    p: float
    channels: bool

    def draw(self, keys: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The factors for numbers of this shape, [lanes · b, channels, ...]: those of `models.batch_operations`."""
        wanted = (*shape[:2], *(1,) * (len(shape) - 2)) if self.channels else shape
        return draw_kept(fold(keys, self.number), prod(wanted) // len(keys), self.p, dtype).view(wanted)


@dataclass(frozen=True)
class Layers:
    """The layers of a network in their order."""

    layers: tuple[Layer, ...]
    first: int  # the lowest layer with weights: the gradient before it is not needed
    has_convolutions: bool  # these gain nothing from other lanes: such a network trains one lane at a time
    transposed: str = ""  # the matrix that is kept transposed in memory, if one is

    def lay_out(self, name: str, weight: Tensor) -> Tensor:
        """A copy of a weight [lanes, ...] as its layer reads it fastest."""
        if name == self.transposed:
            return weight.mT.clone(memory_format=torch.contiguous_format).mT
        if weight.dim() == 5:  # of a convolution: channels innermost
            order = (0, 1, 3, 4, 2) if HAS_MKL else (0, 3, 4, 2, 1)
            back = [order.index(i) for i in range(5)]
            return weight.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
        return weight.clone()

    def sgd_step(self, x: Tensor, y: Tensor, sample_weight: Tensor, weights: Weights, keys: Tensor) -> None:
        """One SGD step on the cross-entropy; a sample counts by its weight in its batch; dropout draws by the keys."""
        x = _channels_last(x) if self.has_convolutions and x.dim() == 4 else x
        passes = []
        for layer in self.layers:
            x, backward = layer(x, weights, keys)
            passes.append(backward)
        error = x.softmax(1).scatter_add_(1, y[:, None], x.new_full((len(y), 1), -1.0))
        gradient = error.mul_(sample_weight[:, None])
        for i in range(len(passes) - 1, self.first - 1, -1):
            gradient = passes[i](gradient, i > self.first)


def parse_layers(module: nn.Module) -> Layers | None:
    """The module as plain layers; None if it is anything but a sequence of such."""
    if is_hooked(module):
        return None
    parts = list(leaves(module))
    drops = find_drops(parts, find_augmentation(module).draws)
    steps = [_layer(name, leaf, drop) for (name, leaf), drop in zip(parts, drops, strict=True)]
    weights = [id(weight) for _, leaf in parts for weight in leaf.parameters()]
    if None in steps or len(set(weights)) < len(weights):  # a weight that is used twice must not move in between
        return None
    first = next((i for i, (_, leaf) in enumerate(parts) if any(True for _ in leaf.parameters())), len(parts))
    has_convolutions = any(type(leaf) is nn.Conv2d for _, leaf in parts)
    lowest, leaf = parts[min(first, len(parts) - 1)]
    transposed = f"{lowest}weight" if type(leaf) is nn.Linear and not HAS_MKL else ""  # no gradient goes below it
    return Layers(tuple(step for step in steps if step), first, has_convolutions, transposed)


def leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The parts of nested sequences in their order, each with its name and a dot."""
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for inner, part in module._modules.items():  # named_children leaves out a part that comes twice
        if part is not None:
            yield from leaves(part, f"{name}{inner}.")


def is_hooked(module: nn.Module) -> bool:
    """Whether it or one of its parts has a hook, but for the augmentation of its input, or a forward of its own."""
    hooks = [hook for part in module.modules() for kind in HOOKS for hook in getattr(part, kind).values()]
    augmenters = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, Augmenter)]
    return hooks != augmenters[:1] or any("forward" in vars(part) for part in module.modules())


def find_augmentation(module: nn.Module) -> Inputs:
    """How a module that has no other hook augments its input in training."""
    found = (hook.inputs for hook in module._forward_pre_hooks.values() if isinstance(hook, Augmenter))
    return next(found, Inputs()) if module.training else Inputs()


def augment_lanes(x: Tensor, inputs: Inputs, keys: Tensor) -> Tensor:
    """The samples [lanes · b, ...] of several lanes, augmented by their keys [lanes] as `models.inputs` does."""
    numbers = iter(range(1, inputs.draws + 1))

    def draw(x: Tensor, count: int) -> Tensor:
        return Drop(next(numbers), 0.5, channels=False).draw(keys, (len(x), count), x.dtype) > 0

    return augment(x, inputs, draw)


def find_drops(parts: list[tuple[str, nn.Module]], before: int) -> "list[Drop | None]":
    """The dropout that each part is; None for other parts, and where nothing is dropped.

    So many draws of a forward pass come before them all.
    """
    drops: list[Drop | None] = []
    for _, leaf in parts:
        p = float(leaf.p) if type(leaf) in DROPOUTS and leaf.training else 0.0  # type: ignore[arg-type]
        number = before + sum(drop is not None for drop in drops) + 1
        drops.append(Drop(number, p, type(leaf) is nn.Dropout2d) if p else None)
    return drops


def _layer(name: str, leaf: nn.Module, drop: Drop | None) -> Layer | None:
    if type(leaf) in DROPOUTS:
        return partial(_dropout, drop) if drop else _pass_on
    if type(leaf) is nn.Linear:
        return partial(_linear, name)
    if type(leaf) is nn.ReLU:
        return _relu
    if type(leaf) is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1):
        return _flat
    if type(leaf) is nn.Conv2d and leaf.padding_mode == "zeros" and not isinstance(leaf.padding, str):
        has_windows = not HAS_MKL and leaf.groups == 1
        return partial(_convolve_windows if has_windows else _convolution, name, leaf)
    return partial(_pool, leaf) if type(leaf) is nn.MaxPool2d and not leaf.return_indices else None


def _linear(name: str, x: Tensor, weights: Weights, keys: Tensor) -> tuple[Tensor, Backward]:
    weight, bias = weights[f"{name}weight"], weights.get(f"{name}bias")
    lanes, out, _ = weight.now.shape
    samples = x.view(lanes, -1, x.shape[1])
    is_transposed = weight.now.stride(1) < weight.now.stride(2)
    if is_transposed or (HAS_MKL and weight.now[0].numel() < WIDE):
        product = torch.bmm(samples, weight.now.mT)
    else:
        beside = samples.mT if HAS_MKL else samples.mT.contiguous()
        product = torch.bmm(weight.now, beside).mT.contiguous()

    def backward(gradient: Tensor, needed: bool) -> Tensor:
        by_lane = gradient.view(lanes, -1, out)
        before = torch.bmm(by_lane, weight.now).flatten(0, 1) if needed else gradient
        weight.step_by_product(by_lane.transpose(1, 2), samples)
        if bias is not None:
            bias.step(by_lane.sum(1))
        return before

    return (product if bias is None else product.add_(bias.now[:, None])).view(-1, out), backward


def _pass_on(x: Tensor, weights: Weights, keys: Tensor) -> tuple[Tensor, Backward]:
    return x, lambda gradient, needed: gradient


def _dropout(drop: Drop, x: Tensor, weights: Weights, keys: Tensor) -> tuple[Tensor, Backward]:
    factors = drop.draw(keys, x.shape, x.dtype)
    return x * factors, lambda gradient, needed: gradient * factors


def _relu(x: Tensor, weights: Weights, keys: Tensor) -> tuple[Tensor, Backward]:
    y = x.relu_()  # no layer looks at its output again
    return y, lambda gradient, needed: aten.threshold_backward(gradient, y, 0)


def _flat(x: Tensor, weights: Weights, keys: Tensor) -> tuple[Tensor, Backward]:
    return x.flatten(1), lambda gradient, needed: gradient.view(x.shape)


def _pool(like: nn.MaxPool2d, x: Tensor, weights: Weights, keys: Tensor) -> tuple[Tensor, Backward]:
    how = like.kernel_size, like.stride, like.padding, like.dilation, like.ceil_mode
    y, places = max_pool2d(x, *how, return_indices=True)
    pairs = [value if isinstance(value, tuple) else (value, value) for value in how[:4]]
    return y, lambda gradient, needed: aten.max_pool2d_with_indices_backward(gradient, x, *pairs, how[4], places)


def _convolution(name: str, like: nn.Conv2d, x: Tensor, weights: Weights, keys: Tensor) -> tuple[Tensor, Backward]:
    """Of a single lane."""
    weight, bias = weights[f"{name}weight"], weights.get(f"{name}bias")
    padding = cast("tuple[int, int]", like.padding)  # text is not parsed
    how = like.stride, padding, like.dilation

    def backward(gradient: Tensor, needed: bool) -> Tensor:
        outputs = [needed, True, bias is not None]
        before, by_weight, by_bias = aten.convolution_backward(
            gradient, x, weight.now[0], [like.out_channels], *how, False, [0, 0], like.groups, outputs
        )
        weight.step(by_weight[None])
        if bias is not None:
            bias.step(by_bias[None])
        return before if needed else gradient

    offset = None if bias is None else bias.now[0]
    return conv2d(x, weight.now[0], offset, like.stride, padding, like.dilation, like.groups), backward


def _convolve_windows(name: str, like: nn.Conv2d, x: Tensor, weights: Weights, keys: Tensor) -> tuple[Tensor, Backward]:
    """The same as products with windows of the images, where torch has no fast convolutions."""
    how = like.kernel_size, like.stride, like.padding, like.dilation
    windows, (b, channels, *sides) = Windows2d(*cast("tuple[Pair, Pair, Pair, Pair]", how)), x.shape
    image = sides[0], sides[1]
    high, wide = windows.grid(image)
    rows, seen = b * high * wide, channels * prod(windows.size)
    if rows * seen > MOST_WINDOWS:
        return _convolution(name, like, x, weights, keys)
    gathered = gather_windows(x.permute(0, 2, 3, 1), windows).view(rows, seen)
    weight, bias = weights[f"{name}weight"], weights.get(f"{name}bias")
    matrix = weight.now[0].permute(2, 3, 1, 0).reshape(seen, -1)  # a view

    def backward(gradient: Tensor, needed: bool) -> Tensor:
        after = gradient.permute(0, 2, 3, 1).reshape(rows, -1)
        before = (after @ matrix.T).view(b, high, wide, -1, channels) if needed else None
        by_weight = (gathered.T @ after).view(*windows.size, channels, -1).permute(3, 2, 0, 1)
        weight.step(by_weight[None])
        if bias is not None:
            bias.step(after.sum(0)[None])
        return gradient if before is None else add_windows(before, windows, image).permute(0, 3, 1, 2)

    product = gathered @ matrix if bias is None else torch.addmm(bias.now[0], gathered, matrix)
    return product.view(b, high, wide, -1).permute(0, 3, 1, 2), backward


def _channels_last(x: Tensor) -> Tensor:
    """The same images, channels innermost in memory, the fastest layout for convolutions and pooling on a CPU."""
    inner = x.permute(0, 2, 3, 1)
    return x.new_empty(inner.shape).copy_(inner).permute(0, 3, 1, 2)
