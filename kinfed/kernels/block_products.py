# mypy: ignore-errors
"""Triton kernels for layers with few channels; imported where there is a GPU.

A product fills its tile best with many columns. So where a layer has few channels, the four pixels of a block of 2x2
are columns of one row, and a pooling of such blocks takes its maxima where they were computed. Where a weight is small
and its output is pooled, its gradient is summed up from the pooled gradient: all others of a window are zero.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from kinfed.kernels.layout import BLOCK, LayerShape, PaddedImages, block_columns, block_tile, precision, window_tile


def multiply_blocks(
    layer: LayerShape, x: PaddedImages, weight: Tensor, y: PaddedImages, by: PaddedImages, lr: Tensor,
    where: Tensor | None = None, *, back: bool = False, relu: bool = False, mask: bool = False, pools: bool = False,
) -> None:  # fmt: skip
    """Makes y of windows of x, or its gradient (`back`); with pools, of the largest of each block, noted in `where`."""
    high, wide = y.size
    down, along = (high, wide) if pools else (triton.cdiv(high, BLOCK), triton.cdiv(wide, BLOCK))
    rows, columns = y.images.shape[1] * down * along, block_columns(y.images.shape[4])
    tile, warps, ahead = block_tile((layer.size + BLOCK - 1) ** 2 * x.images.shape[4], columns)
    _block_products[(triton.cdiv(rows, tile[0]), len(weight))](
        x.images, weight, y.images, by.images, y.images if where is None else where, lr, rows,
        x.images.stride(0), weight.stride(0), y.images.stride(0), by.images.stride(0), *x.images.shape[2:],
        down, along, high, wide, *y.images.shape[4:], *y.images.shape[2:4], y.pad, *by.images.shape[2:4], by.pad,
        layer.size, layer.bias, back, relu, mask, pools, BLOCK, precision(), *tile, num_warps=warps, num_stages=ahead,
    )  # fmt: skip


def sum_pooled_windows(
    layer: LayerShape, x: PaddedImages, gradient: PaddedImages, where: Tensor, weight: Tensor, lr: Tensor
) -> Tensor:
    """Parts of the gradient of a weight, from its input and the gradient of what was pooled: [parts, *weight]."""
    lanes, total, out = weight.shape
    (rows, span, deep), each = window_tile(total - layer.bias, out, gradient.size)
    parts = triton.cdiv(where.shape[1], each)
    partial = weight.new_empty(parts, lanes, total, out)
    _window_gradient[(out, lanes, parts)](
        x.images, gradient.images, where, partial, lr, lanes, where.shape[1], each, total, x.images.stride(0),
        *x.images.shape[2:], *gradient.size, out, layer.size, layer.pool, layer.bias, rows, span, deep, num_warps=4,
    )  # fmt: skip
    return partial


@triton.jit
def _block_products(
    x, weight, y, by, where, lr,
    rows: constexpr, x_lane: constexpr, weight_lane: constexpr, y_lane: constexpr, by_lane: constexpr,
    xh: constexpr, xw: constexpr, xc: constexpr, down: constexpr, along: constexpr,
    high: constexpr, wide: constexpr, yc: constexpr, yh: constexpr, yw: constexpr, y_pad: constexpr,
    bh: constexpr, bw: constexpr, by_pad: constexpr,
    size: constexpr, bias: constexpr, back: constexpr, relu: constexpr, mask: constexpr, pools: constexpr,
    block: constexpr, input_precision: constexpr, tall: constexpr, across: constexpr, deep: constexpr,
):  # fmt: skip
    """A tile of y whose rows are blocks of pixels, and its columns the channels of each pixel of a block.

    What a block sees is larger than a window: beyond a pixel's own window its weights are zero.
    """
    lane = tl.program_id(1).to(tl.int64)
    if tl.load(lr + lane) == 0:
        return  # its batch is empty
    pixels: constexpr = block * block
    channels: constexpr = across // pixels
    side: constexpr = size + block - 1
    total: constexpr = side * side * xc
    row, column = tl.program_id(0) * tall + tl.arange(0, tall), tl.arange(0, across)
    image, i, j = row // (down * along), row % (down * along) // along, row % along
    n, up, left = column // pixels, column % pixels // block, column % block
    seen = x + lane * x_lane + ((image * xh + i * block) * xw + j * block) * xc
    weight += lane * weight_lane
    sums = tl.zeros((tall, across), tl.float32)
    for begin in range(0, total, deep):
        k = begin + tl.arange(0, deep)
        r, s, c = k // xc // side, k // xc % side, k % xc
        real = (row < rows)[:, None] & (k < total)[None, :]
        if not pools and (high % block > 0 or wide % block > 0):  # the last blocks reach beyond the image
            real &= ((i * block)[:, None] + r[None, :] < xh) & ((j * block)[:, None] + s[None, :] < xw)
        images = tl.load(seen[:, None] + ((r * xw + s) * xc + c)[None, :], mask=real, other=0.0)
        tap_r, tap_s = r[:, None] - up[None, :], s[:, None] - left[None, :]
        inside = (tap_r >= 0) & (tap_r < size) & (tap_s >= 0) & (tap_s < size)
        inside &= (k < total)[:, None] & (n < yc)[None, :]
        tap = tap_r * size + tap_s
        if back:
            spot = ((size * size - 1 - tap) * yc + n[None, :]) * xc + c[:, None]
        else:
            spot = (tap * xc + c[:, None]) * yc + n[None, :]
        sums = tl.dot(images, tl.load(weight + spot, mask=inside, other=0.0), sums, input_precision=input_precision)
    if bias and not back:
        sums += tl.load(weight + size * size * xc * yc + n, mask=n < yc, other=0.0)[None, :]
    real, m = row < rows, tl.arange(0, channels)
    if pools:
        at = ((image * yh + i + y_pad) * yw + j + y_pad) * yc
        spot, noted = lane * y_lane + at[:, None] + m[None, :], (lane * rows + row)[:, None] * yc + m[None, :]
        _store_largest(sums, y + spot, where + noted, real[:, None] & (m < yc)[None, :], relu, tall, channels, pixels)
    else:
        h, w = (i * block)[:, None] + up[None, :], (j * block)[:, None] + left[None, :]
        there = lane * by_lane + ((image[:, None] * bh + h + by_pad) * bw + w + by_pad) * yc + n[None, :]
        spot = lane * y_lane + ((image[:, None] * yh + h + y_pad) * yw + w + y_pad) * yc + n[None, :]
        _store_pixels(sums, y + spot, by + there, real[:, None] & (n < yc)[None, :] & (h < high) & (w < wide),
                      relu, mask)  # fmt: skip


@triton.jit
def _store_pixels(sums, y, by, whole, relu: constexpr, mask: constexpr):
    """Stores a tile, after the ReLU if there is one; with a mask zero where `by` is not positive."""
    if relu:
        sums = tl.where(sums < 0, 0.0, sums)  # keeps what is not a number
    if mask:
        sums = tl.where(tl.load(by, mask=whole, other=1.0) <= 0, 0.0, sums)
    tl.store(y, sums, mask=whole)


@triton.jit
def _store_largest(
    sums, y, where, whole, relu: constexpr, tall: constexpr, channels: constexpr, pixels: constexpr
):  # fmt: skip
    """Stores the largest of the pixels of each block and channel, and which it was."""
    every = tl.zeros((tall, channels, pixels), tl.int32) + tl.arange(0, pixels)[None, None, :]
    best, place = tl.reduce((tl.reshape(sums, (tall, channels, pixels)), every), 2, _take_larger)
    if relu:
        best = tl.where(best < 0, 0.0, best)
    tl.store(y, best, mask=whole)
    tl.store(where, place.to(tl.uint8), mask=whole)


@triton.jit
def _take_larger(value, place, other, other_place):
    """The larger number and its place; of equal ones the first, and always what is not a number."""
    stays = (value > other) | ((value == other) & (place < other_place)) | (value != value)
    return tl.where(stays, value, other), tl.where(stays, place, other_place)


@triton.jit
def _window_gradient(
    x, gradient, where, partial, lr, lanes,
    batch: constexpr, each: constexpr, total: constexpr, x_lane: constexpr,
    xh: constexpr, xw: constexpr, xc: constexpr, high: constexpr, wide: constexpr, yc: constexpr,
    size: constexpr, pool: constexpr, bias: constexpr, rows: constexpr, span: constexpr, deep: constexpr,
):  # fmt: skip
    """A channel's gradient of a weight, of some images: each pooled pixel's counts for the window that it came from."""
    lane, n, first = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.program_id(2)
    if tl.load(lr + lane) == 0:
        return  # its batch is empty
    seen: constexpr = size * size * xc
    k, cell = tl.arange(0, deep), tl.arange(0, rows)
    look = (k // xc // size * xw + k // xc % size) * xc + k % xc
    x += lane * x_lane
    gradient += lane * (batch * high * wide * yc) + n
    where += lane * (batch * high * wide * yc) + n
    down, along = cell // span, cell % span  # some rows of an image at once, each as wide as a power of two
    flat, corner = (down * wide + along) * yc, (down * xw + along) * (pool * xc)
    sums, every = tl.zeros((rows, deep), tl.float32), tl.zeros((rows,), tl.float32)
    for nth in range(each):
        image = first * each + nth
        for i in range(0, high, rows // span):
            real = (i + down < high) & (along < wide) & (image < batch)
            there = (image * high + i) * (wide * yc) + flat
            value = tl.load(gradient + there, mask=real, other=0.0)
            place = tl.load(where + there, mask=real, other=0).to(tl.int32)
            at = (image * xh + i * pool) * (xw * xc) + corner + (place // pool * xw + place % pool) * xc
            window = tl.load(x + at[:, None] + look[None, :], mask=real[:, None] & (k < seen)[None, :], other=0.0)
            sums += value[:, None] * window
            every += value
    spot = partial + (first.to(tl.int64) * lanes + lane) * (total * yc) + n
    tl.store(spot + k * yc, tl.sum(sums, 0), mask=k < seen)
    if bias:
        tl.store(spot + seen * yc, tl.sum(every, 0))
