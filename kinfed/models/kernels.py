"""Triton kernels for a block of clients on a GPU, each with weights of its own; imported where there is a GPU.

A lane is a client's place. Rows are [lanes, b, height, width, channels], channels innermost; a linear layer is a
convolution of 1x1 images. A weight is [lanes, size * size * channels (+ 1), out]; the last row is the bias. No product
is laid out in memory (no unfolding), and a weight moves where its gradient is made. Numbers are multiplied as three
products of tf32, whose error is that of float32, or as one, which is faster and coarser.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from kinfed.models.stages import Image, Moving, Stage

MANY_ROWS = 1024  # of a lane that one program sums up for a gradient; more are split among programs


def convolve(stage: Stage, x: Tensor, weight: Tensor, into: Image, stride: Tensor) -> Tensor:
    """The layer's output, after its ReLU if it has one: [lanes, b, *into]; anything where a lane's stride is zero."""
    y = x.new_empty(*x.shape[:2], *into)
    _multiply(stage, x, weight, y, y, stride, back=False, relu=stage.relu and stage.pool == 1)
    return y


def convolve_back(stage: Stage, slope: Tensor, weight: Tensor, x: Tensor, was_relu: bool, stride: Tensor) -> Tensor:
    """The gradient before a layer from that after it; where x came out of a ReLU as zero, it is zero."""
    before = torch.empty_like(x)
    _multiply(stage, slope, weight, before, x, stride, back=True, mask=was_relu)
    return before


def learn(stage: Stage, x: Tensor, slope: Tensor, moving: Moving, stride: Tensor) -> None:
    """Moves a layer's weights against the gradient that x and the slope after the layer make."""
    lanes, rows = slope.shape[0], slope.shape[1] * slope.shape[2] * slope.shape[3]
    total, out = moving.now.shape[1:]
    parts = triton.cdiv(rows, MANY_ROWS) if total < 512 else 1  # a large weight has programs enough
    partial = x.new_empty(parts, *moving.now.shape) if parts > 1 else x
    tile, warps, ahead = learning_tile(rows, out)
    old, start = (moving.now if t is None else t for t in (moving.old, moving.start))
    grid = (triton.cdiv(total, tile[0]) * triton.cdiv(out, tile[1]), lanes, parts)
    _learn[grid](
        x, slope, moving.now, old, start, partial, stride, moving.momentum, moving.mu, lanes,
        rows, triton.cdiv(rows, parts), total, *x.shape[2:], *slope.shape[2:], stage.size, stage.pad, stage.bias,
        moving.old is not None, moving.start is not None, parts > 1, precision(), *tile,
        num_warps=warps, num_stages=ahead,
    )  # fmt: skip
    if parts > 1:
        numbers = total * out
        _follow[(triton.cdiv(numbers, 1024), lanes)](
            partial, moving.now, old, start, stride, moving.momentum, moving.mu, lanes,
            parts, numbers, moving.old is not None, moving.start is not None, 1024,
        )  # fmt: skip


def pool(stage: Stage, x: Tensor, into: Image) -> tuple[Tensor, Tensor]:
    """The largest of each window, after the ReLU if there is one, and which it was."""
    y = x.new_empty(*x.shape[:2], *into)
    where = torch.empty_like(y, dtype=torch.uint8)
    _pool[(triton.cdiv(y.numel(), 512),)](x, y, where, y.numel(), *x.shape[2:], *into[:2], stage.pool, stage.relu, 512)
    return y, where


def unpool(stage: Stage, slope: Tensor, where: Tensor, x: Tensor) -> Tensor:
    """The gradient before the pooling of x: each window's goes to its largest."""
    before = torch.empty_like(x)
    shape = *x.shape[2:], *slope.shape[2:4]
    _unpool[(triton.cdiv(x.numel(), 512),)](slope, where, before, x.numel(), *shape, stage.pool, 512)
    return before


def surprise(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """The gradient of the cross-entropy before the softmax, in place; a row counts by its share."""
    classes = logits.shape[-1]
    _surprise[(y.numel(),)](logits, y, share, classes, triton.next_power_of_2(classes))
    return logits


def precision() -> str:
    """How numbers are multiplied."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def product_tile(rows: int, out: int) -> tuple[tuple[int, int, int], int, int]:
    """Rows, columns and depth of a tile of products, warps, and loads ahead; measured, not derived."""
    across = min(64, max(16, triton.next_power_of_2(out)))
    if rows <= 16:
        return (16, across, 32 if out < 512 else 64), 4, 4
    if rows <= 1024 or across == 32:
        return (64, across, 32), 4, 4
    return (128, across, 32), 8 if across == 64 else 4, 3


def learning_tile(rows: int, out: int) -> tuple[tuple[int, int, int], int, int]:
    """The same for a tile of a gradient, whose depth are the rows."""
    across = min(64, max(16, triton.next_power_of_2(out)))
    return ((32, across, 16), 4, 2) if rows <= 16 else ((32, across, 64), 4, 3)


def _multiply(
    stage: Stage, x: Tensor, weight: Tensor, y: Tensor, by: Tensor, stride: Tensor, *, back: bool, relu: bool = False,
    mask: bool = False,
) -> None:  # fmt: skip
    lanes, rows = y.shape[0], y.shape[1] * y.shape[2] * y.shape[3]
    tile, warps, ahead = product_tile(rows, y.shape[4])
    grid = (triton.cdiv(rows, tile[0]) * triton.cdiv(y.shape[4], tile[1]), lanes)
    _products[grid](
        x, weight, y, by, stride, rows, *x.shape[2:], *y.shape[2:], stage.size, stage.pad, stage.bias, back, relu, mask,
        precision(), *tile, x.shape[1], num_warps=warps, num_stages=ahead,
    )  # fmt: skip


@triton.jit
def _products(
    x, weight, y, by, stride,
    rows: constexpr, xh: constexpr, xw: constexpr, xc: constexpr, yh: constexpr, yw: constexpr, yc: constexpr,
    size: constexpr, pad: constexpr, bias: constexpr, back: constexpr, relu: constexpr, mask: constexpr,
    precise: constexpr, tall: constexpr, across: constexpr, deep: constexpr, batch: constexpr,
):  # fmt: skip
    """Products of a tile of rows of y with all that they see in x; `back` looks the other way."""
    lane = tl.program_id(1).to(tl.int64)
    if tl.load(stride + lane) == 0:
        return  # its batch is empty
    tiles: constexpr = (yc + across - 1) // across
    at = (tl.program_id(0) // tiles) * tall + tl.arange(0, tall)
    n = (tl.program_id(0) % tiles) * across + tl.arange(0, across)
    row, h, w = at // (yh * yw), at % (yh * yw) // yw, at % yw
    seen: constexpr = size * size * xc
    total: constexpr = seen if back else seen + bias
    x += lane * (batch * xh * xw * xc)
    weight += lane * (size * size * xc * yc + bias * (xc if back else yc))
    there = lane * (rows * yc) + at[:, None] * yc + n[None, :]
    sums = tl.zeros((tall, across), tl.float32)
    for begin in range(0, total, deep):
        k = begin + tl.arange(0, deep)
        tap, c = k // xc, k % xc
        i, j = tap // size, tap % size
        if back:
            sh, sw = h[:, None] - i[None, :] + pad, w[:, None] - j[None, :] + pad
            right = tl.load(
                weight + (tap[:, None] * yc + n[None, :]) * xc + c[:, None],
                mask=(k < total)[:, None] & (n < yc)[None, :], other=0.0,
            )  # fmt: skip
        else:
            sh, sw = h[:, None] + i[None, :] - pad, w[:, None] + j[None, :] - pad
            right = tl.load(
                weight + k[:, None] * yc + n[None, :], mask=(k < total)[:, None] & (n < yc)[None, :], other=0.0
            )
        inside = (sh >= 0) & (sh < xh) & (sw >= 0) & (sw < xw) & (at < rows)[:, None] & (k < seen)[None, :]
        left = tl.load(x + ((row[:, None] * xh + sh) * xw + sw) * xc + c[None, :], mask=inside, other=0.0)
        if bias and not back:
            left = tl.where((k == seen)[None, :], 1.0, left)
        sums = tl.dot(left, right, sums, input_precision=precise)
    if relu:
        sums = tl.where(sums < 0, 0.0, sums)  # keeps what is not a number
    whole = (at < rows)[:, None] & (n < yc)[None, :]
    if mask:
        sums = tl.where(tl.load(by + there, mask=whole, other=1.0) <= 0, 0.0, sums)
    tl.store(y + there, sums, mask=whole)


@triton.jit
def _learn(
    x, slope, weight, old, start, partial, stride, momentum, mu, lanes,
    rows: constexpr, part: constexpr, total: constexpr,
    xh: constexpr, xw: constexpr, xc: constexpr, yh: constexpr, yw: constexpr, yc: constexpr,
    size: constexpr, pad: constexpr, bias: constexpr, heavy: constexpr, pulled: constexpr, split: constexpr,
    precise: constexpr, wide: constexpr, across: constexpr, deep: constexpr,
):  # fmt: skip
    """A tile of a weight's gradient, by which the tile moves, unless others have a part in it."""
    lane = tl.program_id(1).to(tl.int64)
    if tl.load(stride + lane) == 0:
        return  # its batch is empty
    first = tl.program_id(2)
    tiles: constexpr = (yc + across - 1) // across
    k = (tl.program_id(0) // tiles) * wide + tl.arange(0, wide)
    n = (tl.program_id(0) % tiles) * across + tl.arange(0, across)
    seen: constexpr = size * size * xc
    tap, c = k // xc, k % xc
    i, j = tap // size, tap % size
    x += lane * (rows // (yh * yw) * xh * xw * xc)
    slope += lane * (rows * yc)
    sums = tl.zeros((wide, across), tl.float32)
    for begin in range(0, part, deep):
        at = first * part + begin + tl.arange(0, deep)
        real = (at < rows) & (begin + tl.arange(0, deep) < part)
        row, h, w = at // (yh * yw), at % (yh * yw) // yw, at % yw
        sh, sw = h[:, None] + i[None, :] - pad, w[:, None] + j[None, :] - pad
        inside = (sh >= 0) & (sh < xh) & (sw >= 0) & (sw < xw) & real[:, None] & (k < seen)[None, :]
        left = tl.load(x + ((row[:, None] * xh + sh) * xw + sw) * xc + c[None, :], mask=inside, other=0.0)
        if bias:
            left = tl.where((k == seen)[None, :] & real[:, None], 1.0, left)
        right = tl.load(slope + at[:, None] * yc + n[None, :], mask=real[:, None] & (n < yc)[None, :], other=0.0)
        sums = tl.dot(tl.trans(left), right, sums, input_precision=precise)
    there = lane * (total * yc) + k[:, None] * yc + n[None, :]
    whole = (k < total)[:, None] & (n < yc)[None, :]
    if split:
        tl.store(partial + first.to(tl.int64) * lanes * (total * yc) + there, sums, mask=whole)
    else:
        _move(sums, weight + there, old + there, start + there, tl.load(stride + lane), momentum, mu,
              whole, heavy, pulled)  # fmt: skip


@triton.jit
def _follow(
    partial, weight, old, start, stride, momentum, mu, lanes,
    parts: constexpr, numbers: constexpr, heavy: constexpr, pulled: constexpr, block: constexpr,
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
    _move(gradient, weight + there, old + there, start + there, tl.load(stride + lane), momentum, mu,
          whole, heavy, pulled)  # fmt: skip


@triton.jit
def _move(gradient, weight, old, start, stride, momentum, mu, whole, heavy: constexpr, pulled: constexpr):
    """w - stride · (gradient + mu · (w - start)) + momentum · (w - old), in the place of old where there is momentum.

    That is w - stride · v with v = momentum · v + gradient: the last move was stride · v. It reads and writes less.
    """
    now = tl.load(weight, mask=whole, other=0.0)
    if pulled:
        gradient += mu * (now - tl.load(start, mask=whole, other=0.0))
    if heavy:
        moved = momentum * (now - tl.load(old, mask=whole, other=0.0)) - stride * gradient
        tl.store(old, now + moved, mask=whole)
    else:
        tl.store(weight, now - stride * gradient, mask=whole)


@triton.jit
def _pool(
    x, y, where, numbers, xh: constexpr, xw: constexpr, c: constexpr, yh: constexpr, yw: constexpr,
    size: constexpr, relu: constexpr, block: constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = at < numbers
    row, h, w = at // (c * yw * yh), at // (c * yw) % yh, at // c % yw
    corner = x + ((row * xh + h * size) * xw + w * size) * c + at % c
    best = tl.load(corner, mask=real)
    place = tl.zeros((block,), tl.int32)
    for k in tl.static_range(1, size * size):
        value = tl.load(corner + (k // size * xw + k % size) * c, mask=real)
        better = (value > best) | (value != value)
        best, place = tl.where(better, value, best), tl.where(better, k, place)
    if relu:
        best = tl.where(best < 0, 0.0, best)
    tl.store(y + at, best, mask=real)
    tl.store(where + at, place.to(tl.uint8), mask=real)


@triton.jit
def _unpool(
    slope, where, before, numbers, xh: constexpr, xw: constexpr, c: constexpr, yh: constexpr, yw: constexpr,
    size: constexpr, block: constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    row, h, w = at // (c * xw * xh), at // (c * xw) % xh, at // c % xw
    inside = (at < numbers) & (h // size < yh) & (w // size < yw)
    there = ((row * yh + h // size) * yw + w // size) * c + at % c
    mine = tl.load(where + there, mask=inside, other=255).to(tl.int32) == h % size * size + w % size
    tl.store(before + at, tl.load(slope + there, mask=inside & mine, other=0.0), mask=at < numbers)


@triton.jit
def _surprise(logits, y, share, classes: constexpr, block: constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    scores = tl.load(logits + row * classes + at, mask=at < classes, other=-float("inf"))
    raised = tl.exp(scores - tl.max(scores, 0))
    chances = raised / tl.sum(raised, 0)
    slope = (chances - tl.where(at == tl.load(y + row), 1.0, 0.0)) * tl.load(share + row)
    tl.store(logits + row * classes + at, slope, mask=at < classes)
