"""Plain layers for several clients at once, each with weights of its own, which the backward pass updates.

A lane is a client's index in the block: samples are [lanes * b, ...], lane by lane, and a weight is [lanes, ...]. A
layer's weights are updated as soon as it has passed its gradient on. So no gradient of a whole model is ever stored,
and that of a matrix is not even computed: the product that would be it is added to the matrix at once. Autograd is left
out: for networks as small as clients have, its own work would take longer than theirs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

from kinfed.fastpath.weights import Weight, Weights
from kinfed.keys import fold
from kinfed.models.batch_operations import draw_kept
from kinfed.models.convolutions import Pair, Windows2d, add_windows, gather_windows

DROPOUTS = nn.Dropout, nn.Dropout2d
HAS_MKL = torch.backends.mkl.is_available()  # on Intel's CPUs; others multiply by a transposed matrix at half the speed
MOST_WINDOWS = 2**24  # numbers of windows that are held at once
ROWS = 60  # samples of the steps in which the lowest matrix does not move; more would overlap too much
LARGE = 2**16  # numbers in a matrix that is worth it
WIDE = 2**19  # numbers in a matrix from which on its product is faster with it on the left, by MKL


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
    lowest: str = ""  # the matrix that multiplies the samples themselves, if one does
    for_vectors: bool = False  # a linear layer comes before any flattening

    @classmethod
    def of(cls, parts: Sequence[tuple[str, nn.Module]], layers: tuple[Layer, ...], is_augmented: bool) -> "Layers":
        """The layers of these parts of a module, each with its name and a dot."""
        first = next((i for i, (_, leaf) in enumerate(parts) if any(True for _ in leaf.parameters())), len(parts))
        has_convolutions = any(type(leaf) is nn.Conv2d for _, leaf in parts)
        name, leaf = parts[min(first, len(parts) - 1)]
        own = f"{name}weight" if type(leaf) is nn.Linear else ""
        is_lowest = not is_augmented and all(type(before) is nn.Flatten for _, before in parts[:first])
        transposed, lowest = "" if HAS_MKL else own, own if is_lowest else ""  # no gradient goes below a transposed one
        head = next((type(leaf) for _, leaf in parts if type(leaf) in (nn.Linear, nn.Flatten)), None)
        return cls(layers, first, has_convolutions, transposed, lowest, head is nn.Linear)

    def lay_out(self, name: str, weight: Tensor) -> Tensor:
        """A copy of a weight [lanes, ...] as its layer reads it fastest."""
        if name == self.transposed:
            return weight.mT.clone(memory_format=torch.contiguous_format).mT
        if weight.dim() == 5:  # of a convolution: channels innermost
            order = (0, 1, 3, 4, 2) if HAS_MKL else (0, 3, 4, 2, 1)
            back = [order.index(i) for i in range(5)]
            return weight.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
        return weight.clone()

    def count_steps(self, lowest: Weight, batch: int) -> int:
        """How many steps to take at once, in which the lowest matrix need not move."""
        if HAS_MKL or lowest.velocity is not None:
            return 1
        pays = lowest.now.shape[1] >= 2 * ROWS and lowest.now[0].numel() >= LARGE  # overlaps cost products, too
        return max(1, ROWS // batch) if pays else 1

    def sgd_step(self, x: Tensor, y: Tensor, sample_weight: Tensor, weights: Weights, keys: Tensor) -> None:
        """One SGD step on the cross-entropy; a sample counts by its weight in its batch; dropout draws by the keys."""
        x = _channels_last(x) if self.has_convolutions and x.dim() == 4 else x
        self._step_through(self.layers, self.first, x, y, sample_weight, weights, keys)

    def sgd_steps(self, x: Tensor, y: Tensor, sample_weight: Tensor, weights: Weights, keys: Tensor) -> None:
        """Several steps on samples [lanes, steps, b, ...]; labels and weights: [lanes, steps, b], keys: [steps, lanes].

        The lowest matrix moves once, after them all.
        """
        bias = weights.get(f"{self.lowest.removesuffix('weight')}bias")
        deferred = DeferredMatrix.at(weights[self.lowest], bias, x.flatten(3))
        for step in range(x.shape[1]):
            layers: tuple[Layer, ...] = (partial(deferred.step, step), *self.layers[self.first + 1 :])
            counts = sample_weight[:, step].flatten()
            self._step_through(layers, 0, x[:, step], y[:, step].flatten(), counts, weights, keys[step])
        deferred.end()

    def _step_through(
        self, layers: tuple[Layer, ...], first: int, x: Tensor, y: Tensor, sample_weight: Tensor, weights: Weights,
        keys: Tensor,
    ) -> None:  # fmt: skip
        passes = []
        for layer in layers:
            x, backward = layer(x, weights, keys)
            passes.append(backward)
        error = x.softmax(1).scatter_add_(1, y[:, None], x.new_full((len(y), 1), -1.0))
        gradient = error.mul_(sample_weight[:, None])
        for i in range(len(passes) - 1, first - 1, -1):
            gradient = passes[i](gradient, i > first)


@dataclass(frozen=True)
class DeferredMatrix:
    """A matrix W that multiplies the samples of several steps of SGD, and moves once, after them all.

    Each step subtracts lr · gᵀ x. So in step t the product with its samples is x Wᵀ − lr Σ (x xₛᵀ) gₛ over the steps s
    before it, where W is as it was in the beginning: x Wᵀ is one product for all steps, the sum is of small ones. Large
    products are faster, and W is read twice and written once instead of in every step.
    """

    weight: Weight
    bias: Weight | None
    samples: Tensor  # [lanes, steps · b, inputs]
    overlaps: Tensor  # [lanes, n, n] of samples after the first step with those before the last, n = (steps - 1) · b
    product: Tensor  # [lanes, steps · b, outputs]
    gradients: Tensor  # the same shape, filled step by step
    batch: int

    @classmethod
    def at(cls, weight: Weight, bias: Weight | None, x: Tensor) -> "DeferredMatrix":
        """The matrix before these steps; x: [lanes, steps, b, inputs]."""
        samples = x.flatten(1, 2)
        product = torch.bmm(samples, weight.now.mT)
        b = x.shape[2]
        overlaps = torch.bmm(samples[:, b:], samples[:, :-b].mT.contiguous())
        return cls(weight, bias, samples, overlaps, product, torch.empty_like(product), b)

    def step(self, number: int, x: Tensor, weights: Weights, keys: Tensor) -> tuple[Tensor, Backward]:
        """A layer: the product in this step, once those before it were taken."""
        begin, end = number * self.batch, (number + 1) * self.batch
        output = self.product[:, begin:end]
        if number:
            overlap = self.overlaps[:, begin - self.batch : begin, :begin]
            output.baddbmm_(overlap, self.gradients[:, :begin], alpha=-self.weight.rule.lr)
        output = output.contiguous() if self.bias is None else output + self.bias.now[:, None]

        def backward(gradient: Tensor, needed: bool) -> Tensor:
            by_lane = gradient.view(output.shape)
            self.gradients[:, begin:end] = by_lane
            if self.bias is not None:
                self.bias.step(by_lane.sum(1))
            return gradient

        return output.view(-1, output.shape[2]), backward

    def end(self) -> None:
        """Moves the matrix."""
        self.weight.step_by_product(self.gradients.mT, self.samples)


def make_layer(name: str, leaf: nn.Module, drop: Drop | None) -> Layer | None:
    """A part of a module as a layer; None for any other than plain ones."""
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
