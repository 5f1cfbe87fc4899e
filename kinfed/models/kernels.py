"""Triton kernels for a block of clients on a GPU, each with weights of its own; imported where there is a GPU.

A lane is a client's place. Images are [lanes, b, height, width, channels], channels innermost, some in a frame of
zeros, so that no window needs to ask where an image ends; a linear layer is a convolution of 1x1 images. A weight is
[lanes, size * size * channels (+ 1), out]; the last row is the bias. No product is laid out in memory (no
unfolding), and a weight moves where its gradient is made. Numbers are multiplied as three products of tf32, whose error
is that of float32, or as one, which is faster and coarser.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from kinfed.models.stages import Framed, Moving, Stage
from kinfed.models.tiles import learning_tile, precision, product_tile

MANY_ROWS = 512  # of a lane that one program sums up for a gradient; where there are more, several share them


def convolve(stage: Stage, x: Framed, weight: Tensor, y: Framed, stride: Tensor) -> None:
    """Makes y of x, after the ReLU if no pooling comes before it; anything where a lane's stride is zero."""
    _multiply(stage, x, weight, y, y, stride, back=False, relu=stage.relu and stage.pool == 1)


def convolve_back(
    stage: Stage, slope: Framed, weight: Tensor, before: Framed, x: Framed | None, stride: Tensor
) -> None:
    """Makes the gradient before a layer of that after it; it is zero where x, if given, came out of a ReLU as zero."""
    _multiply(stage, slope, weight, before, x or before, stride, back=True, mask=x is not None)


def learn(stage: Stage, x: Framed, slope: Framed, moving: Moving, stride: Tensor) -> None:
    """Moves a layer's weights against the gradient that x and the slope after the layer make."""
    lanes, rows = len(moving.now), slope.rows
    total, out = moving.now.shape[1:]
    parts = max(1, rows // MANY_ROWS) if total < 512 else 1  # a large weight has programs enough
    partial = moving.now.new_empty(parts, *moving.now.shape) if parts > 1 else moving.now
    tile, warps, ahead = learning_tile(rows, total, out, lanes)
    old = moving.now if moving.old is None else moving.old
    beside = next((t for t in (moving.start, moving.shift) if t is not None), old)
    pulls = (moving.old is not None, moving.start is not None, moving.shift is not None)
    grid = ((triton.cdiv(total - stage.bias, tile[0]) + stage.bias) * triton.cdiv(out, tile[1]), lanes, parts)
    _learn[grid](
        x.images, slope.images, moving.now, old, beside, partial, stride, moving.momentum, moving.mu, lanes,
        rows, triton.cdiv(rows, parts), total, x.images.stride(0), slope.images.stride(0), *x.images.shape[2:],
        *slope.inner, *slope.images.shape[2:], slope.frame, stage.size,
        *pulls, parts > 1, precision(), *tile,
        num_warps=warps, num_stages=ahead,
    )  # fmt: skip
    if parts > 1:
        numbers = total * out
        _follow[(triton.cdiv(numbers, 1024), lanes)](
            partial, moving.now, old, beside, stride, moving.momentum, moving.mu, lanes,
            parts, numbers, *pulls, 1024,
        )  # fmt: skip


def pool(stage: Stage, x: Framed, y: Framed, where: Tensor) -> None:
    """Makes y of the largest of each window, after the ReLU if there is one, and notes which it was."""
    numbers, shape = where.numel(), (*x.images.shape[2:], *y.inner, y.images.shape[3], y.frame)
    _pool[(triton.cdiv(numbers, 512),)](x.images, y.images, where, numbers, *shape, stage.pool, stage.relu, 512)


def unpool(stage: Stage, slope: Framed, where: Tensor, before: Framed) -> None:
    """Makes the gradient before a pooling: each window's goes to its largest."""
    high, wide = before.inner
    numbers = len(where) * where.shape[1] * high * wide * where.shape[4]
    shape = high, wide, where.shape[4], *where.shape[2:4], before.images.shape[3], before.frame
    _unpool[(triton.cdiv(numbers, 512),)](slope.images, where, before.images, numbers, *shape, stage.pool, 512)


def surprise(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """The gradient of the cross-entropy before the softmax, in place; a row counts by its share."""
    classes = logits.shape[-1]
    _surprise[(y.numel(),)](logits, y, share, classes, triton.next_power_of_2(classes))
    return logits


def _multiply(
    stage: Stage, x: Framed, weight: Tensor, y: Framed, by: Framed, stride: Tensor, *, back: bool, relu: bool = False,
    mask: bool = False,
) -> None:  # fmt: skip
    lanes, out = len(weight), y.images.shape[4]
    tile, warps, ahead = product_tile(y.rows, stage.size**2 * x.images.shape[4], out)
    grid = (triton.cdiv(y.rows, tile[0]) * triton.cdiv(out, tile[1]), lanes)
    _products[grid](
        x.images, weight, y.images, by.images, stride, y.rows, x.images.stride(0), weight.stride(0), y.images.stride(0),
        by.images.stride(0), *x.images.shape[2:], *y.inner, out, *y.images.shape[2:4], y.frame, *by.images.shape[2:4],
        by.frame, stage.size, stage.bias, back, relu, mask, precision(), *tile, num_warps=warps, num_stages=ahead,
    )  # fmt: skip


@triton.jit
def _products(
    x, weight, y, by, stride,
    rows: constexpr, x_lane: constexpr, weight_lane: constexpr, y_lane: constexpr, by_lane: constexpr,
    xh: constexpr, xw: constexpr, xc: constexpr, high: constexpr, wide: constexpr, yc: constexpr,
    yh: constexpr, yw: constexpr, y_frame: constexpr, bh: constexpr, bw: constexpr, by_frame: constexpr,
    size: constexpr, bias: constexpr, back: constexpr, relu: constexpr, mask: constexpr,
    precise: constexpr, tall: constexpr, across: constexpr, deep: constexpr,
):  # fmt: skip
    """Products of a tile of rows of y with all that they see in x; `back` takes the weight's windows from their end."""
    lane = tl.program_id(1).to(tl.int64)
    if tl.load(stride + lane) == 0:
        return  # its batch is empty
    tiles: constexpr = (yc + across - 1) // across
    at = (tl.program_id(0) // tiles) * tall + tl.arange(0, tall)
    n = (tl.program_id(0) % tiles) * across + tl.arange(0, across)
    whole = (at < rows)[:, None] & (n < yc)[None, :]
    total: constexpr = size * size * xc
    seen = x + lane * x_lane + _place(at, high, wide, xh, xw, xc, 0)
    weight += lane * weight_lane
    sums = tl.zeros((tall, across), tl.float32)
    for begin in range(0, total, deep):
        k = begin + tl.arange(0, deep)
        tap, c = k // xc, k % xc
        left = tl.load(
            seen[:, None] + ((tap // size * xw + tap % size) * xc + c)[None, :],
            mask=(at < rows)[:, None] & (k < total)[None, :], other=0.0,
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
        sums = tl.dot(left, right, sums, input_precision=precise)
    if bias and not back:
        sums += tl.load(weight + total * yc + n, mask=n < yc, other=0.0)[None, :]
    if relu:
        sums = tl.where(sums < 0, 0.0, sums)  # keeps what is not a number
    if mask:
        there = by + lane * by_lane + _place(at, high, wide, bh, bw, yc, by_frame)[:, None] + n[None, :]
        sums = tl.where(tl.load(there, mask=whole, other=1.0) <= 0, 0.0, sums)
    tl.store(y + lane * y_lane + _place(at, high, wide, yh, yw, yc, y_frame)[:, None] + n[None, :], sums, mask=whole)


@triton.jit
def _learn(
    x, slope, weight, old, beside, partial, stride, momentum, mu, lanes,
    rows: constexpr, part: constexpr, total: constexpr, x_lane: constexpr, slope_lane: constexpr,
    xh: constexpr, xw: constexpr, xc: constexpr, high: constexpr, wide: constexpr,
    yh: constexpr, yw: constexpr, yc: constexpr, frame: constexpr, size: constexpr,
    heavy: constexpr, pulled: constexpr, shifted: constexpr, split: constexpr,
    precise: constexpr, tall: constexpr, across: constexpr, deep: constexpr,
):  # fmt: skip
    """A tile of a weight's gradient, by which the tile moves, unless others have a part in it."""
    lane = tl.program_id(1).to(tl.int64)
    if tl.load(stride + lane) == 0:
        return  # its batch is empty
    first, last = tl.program_id(2), (tl.program_id(2) + 1) * part
    tiles: constexpr = (yc + across - 1) // across
    seen: constexpr = size * size * xc
    k = (tl.program_id(0) // tiles) * tall + tl.arange(0, tall)
    n = (tl.program_id(0) % tiles) * across + tl.arange(0, across)
    own, rate = lane * (total * yc), tl.load(stride + lane)
    partial += first.to(tl.int64) * lanes * (total * yc)
    slope += lane * slope_lane
    if tl.program_id(0) // tiles == (seen + tall - 1) // tall:  # beyond all windows: the bias
        every = tl.zeros((deep, across), tl.float32)
        for begin in range(0, part, deep):
            at = first * part + begin + tl.arange(0, deep)
            where = _place(at, high, wide, yh, yw, yc, frame)
            real = (at < rows) & (at < last)
            every += tl.load(slope + where[:, None] + n[None, :], mask=real[:, None] & (n < yc)[None, :], other=0.0)
        spot = own + seen * yc + n
        _learned(tl.sum(every, 0), weight + spot, old + spot, beside + spot, partial + spot, rate, momentum, mu, n < yc,
                 heavy, pulled, shifted, split)  # fmt: skip
        return
    look = (k // xc // size * xw + k // xc % size) * xc + k % xc
    x += lane * x_lane
    sums = tl.zeros((tall, across), tl.float32)
    for begin in range(0, part, deep):
        at = first * part + begin + tl.arange(0, deep)
        real = (at < rows) & (at < last)
        where = x + _place(at, high, wide, xh, xw, xc, 0)
        if deep == 16:  # few rows are read faster as they lie, many the other way round
            flat = tl.load(where[:, None] + look[None, :], mask=real[:, None] & (k < seen)[None, :], other=0.0)
            left = tl.trans(flat)
        else:
            left = tl.load(look[:, None] + where[None, :], mask=(k < seen)[:, None] & real[None, :], other=0.0)
        right = tl.load(
            slope + _place(at, high, wide, yh, yw, yc, frame)[:, None] + n[None, :],
            mask=real[:, None] & (n < yc)[None, :], other=0.0,
        )  # fmt: skip
        sums = tl.dot(left, right, sums, input_precision=precise)
    spot = own + k[:, None] * yc + n[None, :]
    _learned(sums, weight + spot, old + spot, beside + spot, partial + spot, rate, momentum, mu,
             (k < seen)[:, None] & (n < yc)[None, :], heavy, pulled, shifted, split)  # fmt: skip


@triton.jit
def _place(at, high: constexpr, wide: constexpr, h: constexpr, w: constexpr, c: constexpr, frame: constexpr):
    """Where the pixels `at`, counted without frames, begin in images of h x w pixels with their frames."""
    row, up, left = at // (high * wide), at % (high * wide) // wide, at % wide
    return ((row * h + up + frame) * w + left + frame) * c


@triton.jit
def _learned(
    gradient, weight, old, beside, partial, rate, momentum, mu, whole,
    heavy: constexpr, pulled: constexpr, shifted: constexpr, split: constexpr,
):  # fmt: skip
    """Moves a part of a weight by its gradient, or notes that, if others have a part in it."""
    if split:
        tl.store(partial, gradient, mask=whole)
    else:
        _move(gradient, weight, old, beside, rate, momentum, mu, whole, heavy, pulled, shifted)


@triton.jit
def _follow(
    partial, weight, old, beside, stride, momentum, mu, lanes,
    parts: constexpr, numbers: constexpr, heavy: constexpr, pulled: constexpr, shifted: constexpr, block: constexpr,
):  # fmt: skip
    """Moves a weight by the sum of the parts of its gradient."""
    lane = tl.program_id(1).to(tl.int64)
    if tl.load(stride + lane) == 0:
        return  # its batch is empty
    at = tl.program_id(0) * block + tl.arange(0, block)
    whole, there = at < numbers, lane * numbers + at
    gradient = tl.zeros((block,), tl.float32)
    for first in range(parts):
        gradient += tl.load(partial + first * lanes * numbers + there, mask=whole, other=0.0)
    rate = tl.load(stride + lane)
    _move(gradient, weight + there, old + there, beside + there, rate, momentum, mu, whole, heavy, pulled, shifted)


@triton.jit
def _move(
    gradient, weight, old, beside, stride, momentum, mu, whole,
    heavy: constexpr, pulled: constexpr, shifted: constexpr,
):  # fmt: skip
    """w - stride · (gradient + pull) + momentum · (w - old), in the place of old where there is momentum.

    The pull is mu · (w - start), or a shift. That is w - stride · v with v = momentum · v + gradient + pull: the last
    move was stride · v. It reads and writes less.
    """
    now = tl.load(weight, mask=whole, other=0.0)
    if pulled:
        gradient += mu * (now - tl.load(beside, mask=whole, other=0.0))
    if shifted:
        gradient += tl.load(beside, mask=whole, other=0.0)
    if heavy:
        moved = momentum * (now - tl.load(old, mask=whole, other=0.0)) - stride * gradient
        tl.store(old, now + moved, mask=whole)
    else:
        tl.store(weight, now - stride * gradient, mask=whole)


@triton.jit
def _pool(
    x, y, where, numbers, xh: constexpr, xw: constexpr, c: constexpr, high: constexpr, wide: constexpr,
    yw: constexpr, frame: constexpr, size: constexpr, relu: constexpr, block: constexpr,
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
    tl.store(y + ((row * (high + 2 * frame) + h + frame) * yw + w + frame) * c + at % c, best, mask=real)
    tl.store(where + at, place.to(tl.uint8), mask=real)


@triton.jit
def _unpool(
    slope, where, before, numbers, xh: constexpr, xw: constexpr, c: constexpr, yh: constexpr, yw: constexpr,
    bw: constexpr, frame: constexpr, size: constexpr, block: constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    row, h, w = at // (c * xw * xh), at // (c * xw) % xh, at // c % xw
    inside = (at < numbers) & (h // size < yh) & (w // size < yw)
    there = ((row * yh + h // size) * yw + w // size) * c + at % c
    mine = tl.load(where + there, mask=inside, other=255).to(tl.int32) == h % size * size + w % size
    value = tl.load(slope + there, mask=inside & mine, other=0.0)
    tl.store(before + ((row * (xh + 2 * frame) + h + frame) * bw + w + frame) * c + at % c, value, mask=at < numbers)


@triton.jit
def _surprise(logits, y, share, classes: constexpr, block: constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    scores = tl.load(logits + row * classes + at, mask=at < classes, other=-float("inf"))
    raised = tl.exp(scores - tl.max(scores, 0))
    chances = raised / tl.sum(raised, 0)
    slope = (chances - tl.where(at == tl.load(y + row), 1.0, 0.0)) * tl.load(share + row)
    tl.store(logits + row * classes + at, slope, mask=at < classes)
