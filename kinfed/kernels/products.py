"""Triton kernels for a block of clients on a GPU, each with weights of its own; imported where there is a GPU.

A lane is a client's index in the block. Images are [lanes, b, height, width, channels], channels innermost, some padded
with zeros, so that no window needs to ask where an image ends; a linear layer is a convolution of 1x1 images. A weight
is [lanes, size * size * channels (+ 1), out]; the last row is the bias. No product is laid out in memory (no
unfolding), and a weight is updated where its gradient is computed. Numbers are multiplied as three TF32 products,
whose error is that of float32, or as one (`tf32`), which is faster and less accurate.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from kinfed.kernels.block_products import multiply_blocks, sum_pooled_windows
from kinfed.kernels.layout import (
    LayerShape,
    PackedWeight,
    PaddedImages,
    gradient_tile,
    has_few_channels,
    pools_at_once,
    precision,
    product_tile,
)

MANY_PIXELS = 512  # of a lane that one program sums up for a gradient; where there are more, several share them


def convolve(layer: LayerShape, x: PaddedImages, weight: Tensor, y: PaddedImages, lr: Tensor) -> None:
    """Makes y of x, after the ReLU if no pooling comes before it; undefined where a lane's learning rate is zero."""
    multiply = multiply_blocks if has_few_channels(layer, y.images.shape[4]) else _multiply
    multiply(layer, x, weight, y, y, lr, relu=layer.relu and layer.pool == 1)


def convolve_and_pool(
    layer: LayerShape, x: PaddedImages, weight: Tensor, y: PaddedImages, where: Tensor, lr: Tensor
) -> None:
    """Makes y of the largest of each window, after the ReLU if there is one, and notes which it was."""
    lanes, batch, high, wide, _ = x.images.shape
    out = y.images.shape[4]
    if pools_at_once(layer, out):
        multiply_blocks(layer, x, weight, y, y, lr, where, relu=layer.relu, pools=True)
        return
    whole = PaddedImages(weight.new_empty(lanes, batch, high - layer.size + 1, wide - layer.size + 1, out))
    convolve(layer, x, weight, whole, lr)
    _take_largest(layer, whole, y, where)


def convolve_back(
    layer: LayerShape, gradient: PaddedImages, weight: Tensor, before: PaddedImages, x: PaddedImages | None, lr: Tensor
) -> None:
    """Makes the gradient before a layer of that after it; it is zero where x, if given, came out of a ReLU as zero."""
    multiply = multiply_blocks if has_few_channels(layer, before.images.shape[4]) else _multiply
    multiply(layer, gradient, weight, before, x or before, lr, back=True, mask=x is not None)


def update_weights(
    layer: LayerShape, x: PaddedImages, gradient: PaddedImages, weight: PackedWeight, lr: Tensor
) -> None:
    """One SGD step of a layer's weights, from its input and the gradient of its output."""
    parts = _count_parts(weight.now, gradient.pixels)
    partial = weight.now.new_empty(parts, *weight.now.shape) if parts > 1 else weight.now
    tensors, pulls = _rule_of(weight, lr)
    _sum_windows(layer, x, gradient, (*tensors[:3], partial, *tensors[3:]), pulls, parts, split=parts > 1)
    if parts > 1:
        _apply(partial, weight, lr)


def update_pooled_weights(
    layer: LayerShape, x: PaddedImages, gradient: PaddedImages, where: Tensor, weight: PackedWeight, lr: Tensor
) -> None:
    """The same from the gradient of what was pooled, and where that came from: most of its output's is zero."""
    _apply(sum_pooled_windows(layer, x, gradient, where, weight.now, lr), weight, lr)


def _apply(partial: Tensor, weight: PackedWeight, lr: Tensor) -> None:
    """An SGD step by the sum of a gradient's parts."""
    tensors, pulls = _rule_of(weight, lr)
    numbers = weight.now[0].numel()
    _apply_partial_sums[(triton.cdiv(numbers, 1024), len(weight.now))](
        partial, *tensors, len(weight.now), len(partial), numbers, *pulls, 1024
    )


def _rule_of(weight: PackedWeight, lr: Tensor) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """What a step of this weight reads and writes, and whether it has momentum and a term."""
    has_momentum, has_term = weight.previous is not None, weight.beside is not None
    previous = weight.previous if has_momentum else weight.now
    beside, pull = (weight.beside, weight.pull) if has_term else (weight.now, lr)
    return (weight.now, previous, beside, lr, weight.momentum, pull), (has_momentum, has_term)


def compute_gradient(layer: LayerShape, x: PaddedImages, gradient: PaddedImages, weight: Tensor, lr: Tensor) -> Tensor:
    """The gradient of a layer's weights, from its input and the gradient of its output."""
    parts = _count_parts(weight, gradient.pixels)
    partial = weight.new_empty(parts, *weight.shape)
    tensors = (weight, weight, weight, partial, lr, 0.0, lr)
    _sum_windows(layer, x, gradient, tensors, (False, False), parts, split=True)
    return partial[0] if parts == 1 else partial.sum(0)


def _count_parts(weight: Tensor, pixels: int) -> int:
    """How many programs share the pixels of a lane: a large weight has programs enough."""
    lanes, total, out = weight.shape
    if total < 512:
        return max(1, pixels // MANY_PIXELS)
    programs = lanes * triton.cdiv(total, 128) * triton.cdiv(out, 64)
    return 2 if programs < 512 and pixels >= 4 * MANY_PIXELS else 1


def _sum_windows(
    layer: LayerShape, x: PaddedImages, gradient: PaddedImages, tensors: tuple[Any, ...], pulls: tuple[bool, ...],
    parts: int, split: bool,
) -> None:  # fmt: skip
    lanes, total, out = tensors[0].shape
    tile, warps, ahead = gradient_tile(gradient.pixels, total, out, lanes)
    grid = ((triton.cdiv(total - layer.bias, tile[0]) + layer.bias) * triton.cdiv(out, tile[1]), lanes, parts)
    _weight_gradient[grid](
        x.images, gradient.images, *tensors, lanes, gradient.pixels, triton.cdiv(gradient.pixels, parts), total,
        x.images.stride(0), gradient.images.stride(0), *x.images.shape[2:], *gradient.size, *gradient.images.shape[2:],
        gradient.pad, layer.size, *pulls, split, precision(), *tile, num_warps=warps, num_stages=ahead,
    )  # fmt: skip


def _take_largest(layer: LayerShape, x: PaddedImages, y: PaddedImages, where: Tensor) -> None:
    numbers, shape = where.numel(), (*x.images.shape[2:], *y.size, y.images.shape[3], y.pad)
    _pool[(triton.cdiv(numbers, 512),)](x.images, y.images, where, numbers, *shape, layer.pool, layer.relu, 512)


def unpool(layer: LayerShape, gradient: PaddedImages, where: Tensor, before: PaddedImages) -> None:
    """Makes the gradient before a pooling: each window's goes to its largest."""
    high, wide = before.size
    numbers = len(where) * where.shape[1] * high * wide * where.shape[4]
    shape = high, wide, where.shape[4], *where.shape[2:4], before.images.shape[3], before.pad
    _unpool[(triton.cdiv(numbers, 512),)](gradient.images, where, before.images, numbers, *shape, layer.pool, 512)


def cross_entropy_gradient(logits: Tensor, y: Tensor, sample_weight: Tensor) -> Tensor:
    """The gradient of the cross-entropy before the softmax, in place; a sample counts by its weight."""
    classes = logits.shape[-1]
    _cross_entropy_gradient[(y.numel(),)](logits, y, sample_weight, classes, triton.next_power_of_2(classes))
    return logits


def _multiply(
    layer: LayerShape, x: PaddedImages, weight: Tensor, y: PaddedImages, by: PaddedImages, lr: Tensor, *,
    back: bool = False, relu: bool = False, mask: bool = False,
) -> None:  # fmt: skip
    lanes, out = len(weight), y.images.shape[4]
    tile, warps, ahead = product_tile(y.pixels, layer.size**2 * x.images.shape[4], out)
    grid = (triton.cdiv(y.pixels, tile[0]) * triton.cdiv(out, tile[1]), lanes)
    _products[grid](
        x.images, weight, y.images, by.images, lr, y.pixels, x.images.stride(0), weight.stride(0), y.images.stride(0),
        by.images.stride(0), *x.images.shape[2:], *y.size, out, *y.images.shape[2:4], y.pad, *by.images.shape[2:4],
        by.pad, layer.size, layer.bias, back, relu, mask, precision(), *tile, num_warps=warps, num_stages=ahead,
    )  # fmt: skip


@triton.jit
def _products(
    x, weight, y, by, lr,
    pixels: constexpr, x_lane: constexpr, weight_lane: constexpr, y_lane: constexpr, by_lane: constexpr,
    xh: constexpr, xw: constexpr, xc: constexpr, high: constexpr, wide: constexpr, yc: constexpr,
    yh: constexpr, yw: constexpr, y_pad: constexpr, bh: constexpr, bw: constexpr, by_pad: constexpr,
    size: constexpr, bias: constexpr, back: constexpr, relu: constexpr, mask: constexpr,
    input_precision: constexpr, tall: constexpr, across: constexpr, deep: constexpr,
):  # fmt: skip
    """A tile of y: windows of x times the weight; `back` takes the weight's windows from their end."""
    lane = tl.program_id(1).to(tl.int64)
    if tl.load(lr + lane) == 0:
        return  # its batch is empty
    tiles: constexpr = (yc + across - 1) // across
    at = (tl.program_id(0) // tiles) * tall + tl.arange(0, tall)
    n = (tl.program_id(0) % tiles) * across + tl.arange(0, across)
    whole = (at < pixels)[:, None] & (n < yc)[None, :]
    total: constexpr = size * size * xc
    seen = x + lane * x_lane + _offset(at, high, wide, xh, xw, xc, 0)
    weight += lane * weight_lane
    sums = tl.zeros((tall, across), tl.float32)
    for begin in range(0, total, deep):
        k = begin + tl.arange(0, deep)
        tap, c = k // xc, k % xc
        left = tl.load(
            seen[:, None] + ((tap // size * xw + tap % size) * xc + c)[None, :],
            mask=(at < pixels)[:, None] & (k < total)[None, :], other=0.0,
        )  # fmt: skip
        if back:
            right = tl.load(
                weight + (((size * size - 1 - tap) * yc)[:, None] + n[None, :]) * xc + c[:, None],
                mask=(k < total)[:, None] & (n < yc)[None, :], other=0.0,
            )  # fmt: skip
        else:
            right = tl.load(
                weight + k[:, None] * yc + n[None, :], mask=(k < total)[:, None] & (n < yc)[None, :], other=0.0
            )
        sums = tl.dot(left, right, sums, input_precision=input_precision)
    if bias and not back:
        sums += tl.load(weight + total * yc + n, mask=n < yc, other=0.0)[None, :]
    if relu:
        sums = tl.where(sums < 0, 0.0, sums)  # keeps what is not a number
    if mask:
        there = by + lane * by_lane + _offset(at, high, wide, bh, bw, yc, by_pad)[:, None] + n[None, :]
        sums = tl.where(tl.load(there, mask=whole, other=1.0) <= 0, 0.0, sums)
    tl.store(y + lane * y_lane + _offset(at, high, wide, yh, yw, yc, y_pad)[:, None] + n[None, :], sums, mask=whole)


@triton.jit
def _weight_gradient(
    x, gradient, weight, previous, beside, partial, lr, momentum, pull, lanes,
    pixels: constexpr, part: constexpr, total: constexpr, x_lane: constexpr, gradient_lane: constexpr,
    xh: constexpr, xw: constexpr, xc: constexpr, high: constexpr, wide: constexpr,
    yh: constexpr, yw: constexpr, yc: constexpr, pad: constexpr, size: constexpr,
    has_momentum: constexpr, has_term: constexpr, split: constexpr,
    input_precision: constexpr, tall: constexpr, across: constexpr, deep: constexpr,
):  # fmt: skip
    """A tile of a weight's gradient, and its SGD step unless several programs sum it up."""
    lane = tl.program_id(1).to(tl.int64)
    if tl.load(lr + lane) == 0:
        return  # its batch is empty
    first, last = tl.program_id(2), (tl.program_id(2) + 1) * part
    tiles: constexpr = (yc + across - 1) // across
    seen: constexpr = size * size * xc
    k = (tl.program_id(0) // tiles) * tall + tl.arange(0, tall)
    n = (tl.program_id(0) % tiles) * across + tl.arange(0, across)
    own, rate, pull = lane * (total * yc), tl.load(lr + lane), pull + lane
    partial += first.to(tl.int64) * lanes * (total * yc)
    gradient += lane * gradient_lane
    if tl.program_id(0) // tiles == (seen + tall - 1) // tall:  # beyond all windows: the bias
        every = tl.zeros((deep, across), tl.float32)
        for begin in range(0, part, deep):
            at = first * part + begin + tl.arange(0, deep)
            where = _offset(at, high, wide, yh, yw, yc, pad)
            real = (at < pixels) & (at < last)
            every += tl.load(gradient + where[:, None] + n[None, :], mask=real[:, None] & (n < yc)[None, :], other=0.0)
        spot = own + seen * yc + n
        _apply_or_store(tl.sum(every, 0), weight + spot, previous + spot, beside + spot, partial + spot, rate, momentum,
                        pull, n < yc, has_momentum, has_term, split)  # fmt: skip
        return
    look = (k // xc // size * xw + k // xc % size) * xc + k % xc
    x += lane * x_lane
    sums = tl.zeros((tall, across), tl.float32)
    for begin in range(0, part, deep):
        at = first * part + begin + tl.arange(0, deep)
        real = (at < pixels) & (at < last)
        where = x + _offset(at, high, wide, xh, xw, xc, 0)
        if deep == 16:  # few pixels are read faster as they lie, many the other way round
            flat = tl.load(where[:, None] + look[None, :], mask=real[:, None] & (k < seen)[None, :], other=0.0)
            left = tl.trans(flat)
        else:
            left = tl.load(look[:, None] + where[None, :], mask=(k < seen)[:, None] & real[None, :], other=0.0)
        right = tl.load(
            gradient + _offset(at, high, wide, yh, yw, yc, pad)[:, None] + n[None, :],
            mask=real[:, None] & (n < yc)[None, :], other=0.0,
        )  # fmt: skip
        sums = tl.dot(left, right, sums, input_precision=input_precision)
    spot = own + k[:, None] * yc + n[None, :]
    _apply_or_store(sums, weight + spot, previous + spot, beside + spot, partial + spot, rate, momentum, pull,
             (k < seen)[:, None] & (n < yc)[None, :], has_momentum, has_term, split)  # fmt: skip


@triton.jit
def _offset(at, high: constexpr, wide: constexpr, h: constexpr, w: constexpr, c: constexpr, pad: constexpr):
    """Where the pixels `at`, counted without frames, begin in images of h x w pixels with their frames."""
    row, up, left = at // (high * wide), at % (high * wide) // wide, at % wide
    return ((row * h + up + pad) * w + left + pad) * c


@triton.jit
def _apply_or_store(
    gradient, weight, previous, beside, partial, rate, momentum, pull, whole,
    has_momentum: constexpr, has_term: constexpr, split: constexpr,
):  # fmt: skip
    """An SGD step of a part of a weight, or its partial gradient stored, if several programs sum it up."""
    if split:
        tl.store(partial, gradient, mask=whole)
    else:
        _sgd_step(gradient, weight, previous, beside, rate, momentum, pull, whole, has_momentum, has_term)


@triton.jit
def _apply_partial_sums(
    partial, weight, previous, beside, lr, momentum, pull, lanes,
    parts: constexpr, numbers: constexpr, has_momentum: constexpr, has_term: constexpr,
    block: constexpr,
):  # fmt: skip
    """An SGD step of a weight by the sum of its partial gradients."""
    lane = tl.program_id(1).to(tl.int64)
    if tl.load(lr + lane) == 0:
        return  # its batch is empty
    at = tl.program_id(0) * block + tl.arange(0, block)
    whole, there = at < numbers, lane * numbers + at
    gradient = tl.zeros((block,), tl.float32)
    for first in range(parts):
        gradient += tl.load(partial + first * lanes * numbers + there, mask=whole, other=0.0)
    _sgd_step(gradient, weight + there, previous + there, beside + there, tl.load(lr + lane), momentum, pull + lane,
              whole, has_momentum, has_term)  # fmt: skip


@triton.jit
def _sgd_step(
    gradient, weight, previous, beside, lr, momentum, pull, whole,
    has_momentum: constexpr, has_term: constexpr,
):  # fmt: skip
    """w - lr · (gradient + term) + momentum · (w - previous), stored over `previous` where there is momentum.

    The term is pull · (w - beside), or `beside` where nothing pulls. That is w - lr · v with v = momentum · v +
    gradient + term: the last update was lr · v. It reads and writes less.
    """
    now = tl.load(weight, mask=whole, other=0.0)
    if has_term:
        strength, other = tl.load(pull), tl.load(beside, mask=whole, other=0.0)
        gradient += tl.where(strength != 0, strength * (now - other), other)
    if has_momentum:
        moved = momentum * (now - tl.load(previous, mask=whole, other=0.0)) - lr * gradient
        tl.store(previous, now + moved, mask=whole)
    else:
        tl.store(weight, now - lr * gradient, mask=whole)


@triton.jit
def _pool(
    x, y, where, numbers, xh: constexpr, xw: constexpr, c: constexpr, high: constexpr, wide: constexpr,
    yw: constexpr, pad: constexpr, size: constexpr, relu: constexpr, block: constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = at < numbers
    row, h, w = at // (c * wide * high), at // (c * wide) % high, at // c % wide
    corner = x + ((row * xh + h * size) * xw + w * size) * c + at % c
    best = tl.load(corner, mask=real)
    place = tl.zeros((block,), tl.int32)
    for k in tl.static_range(1, size * size):
        value = tl.load(corner + (k // size * xw + k % size) * c, mask=real)
        better = (value > best) | (value != value)
        best, place = tl.where(better, value, best), tl.where(better, k, place)
    if relu:
        best = tl.where(best < 0, 0.0, best)
    tl.store(y + ((row * (high + 2 * pad) + h + pad) * yw + w + pad) * c + at % c, best, mask=real)
    tl.store(where + at, place.to(tl.uint8), mask=real)


@triton.jit
def _unpool(
    gradient, where, before, numbers, xh: constexpr, xw: constexpr, c: constexpr, yh: constexpr, yw: constexpr,
    bw: constexpr, pad: constexpr, size: constexpr, block: constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    row, h, w = at // (c * xw * xh), at // (c * xw) % xh, at // c % xw
    inside = (at < numbers) & (h // size < yh) & (w // size < yw)
    there = ((row * yh + h // size) * yw + w // size) * c + at % c
    mine = tl.load(where + there, mask=inside, other=255).to(tl.int32) == h % size * size + w % size
    value = tl.load(gradient + there, mask=inside & mine, other=0.0)
    tl.store(before + ((row * (xh + 2 * pad) + h + pad) * bw + w + pad) * c + at % c, value, mask=at < numbers)


@triton.jit
def _cross_entropy_gradient(logits, y, sample_weight, classes: constexpr, block: constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    scores = tl.load(logits + row * classes + at, mask=at < classes, other=-float("inf"))
    raised = tl.exp(scores - tl.max(scores, 0))
    chances = raised / tl.sum(raised, 0)
    gradient = (chances - tl.where(at == tl.load(y + row), 1.0, 0.0)) * tl.load(sample_weight + row)
    tl.store(logits + row * classes + at, gradient, mask=at < classes)
