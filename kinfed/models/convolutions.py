"""Convolutions of a block of clients on a GPU, each with weights of its own, as products with windows of the images.

torch's `vmap` makes one convolution of as many groups as there are clients of it, which is slow there. `unfold` gathers
what each pixel sees, `fold` adds it up again, and each is the other's gradient; what is left are batched products.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[int, int]


class Windows2d(NamedTuple):
    """Windows of an image: [height, width] each."""

    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def grid(self, image: Pair) -> Pair:
        """Windows down and across an image."""
        down, across = (
            (side + 2 * pad - dilation * (size - 1) - 1) // stride + 1
            for side, size, stride, pad, dilation in zip(image, *self, strict=True)
        )
        return down, across

    @property
    def is_pixel(self) -> bool:
        """Whether a window is a pixel, and each pixel is one."""
        return self.size == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    def taps(self, count: Pair) -> list[tuple[slice, slice]]:
        """Where the i-th pixel of all windows is in the padded image."""
        starts = [
            (i * self.dilation[0], j * self.dilation[1]) for i in range(self.size[0]) for j in range(self.size[1])
        ]
        (down, across), (high, wide) = count, self.stride
        return [
            (slice(i, i + high * (down - 1) + 1, high), slice(j, j + wide * (across - 1) + 1, wide)) for i, j in starts
        ]


class _Unfold(torch.autograd.Function):
    """Images [n, h, w, c] -> what each window sees [n, down, across, taps, c]."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, windows: Windows2d) -> Tensor:
        ctx.windows, ctx.image = windows, images.shape[1:3]
        return gather_windows(images, windows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return add_windows(gradient, ctx.windows, ctx.image), None


class _Fold(torch.autograd.Function):
    """What each window adds [n, down, across, taps, c] -> images [n, h, w, c]."""

    @staticmethod
    def forward(ctx: Any, seen: Tensor, windows: Windows2d, image: Pair) -> Tensor:
        ctx.windows = windows
        return add_windows(seen, windows, image)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gather_windows(gradient, ctx.windows), None, None


def gather_windows(images: Tensor, windows: Windows2d) -> Tensor:
    """What each window sees: [n, down, across, taps, c]."""
    down, across = windows.grid((images.shape[1], images.shape[2]))
    (high, wide), (up, left) = windows.padding, windows.stride
    framed = F.pad(images, (0, 0, wide, wide, high, high)).contiguous() if high or wide else images.contiguous()
    n, row, column, channel = framed.stride()
    sizes = len(images), down, across, *windows.size, images.shape[3]
    steps = n, up * row, left * column, windows.dilation[0] * row, windows.dilation[1] * column, channel
    return framed.as_strided(sizes, steps).flatten(3, 4).contiguous()


def add_windows(seen: Tensor, windows: Windows2d, image: Pair) -> Tensor:
    """Images [n, h, w, c] to which each window has added what it has, in a fixed order."""
    (high, wide), (up, left) = image, windows.padding
    images = seen.new_zeros(len(seen), high + 2 * up, wide + 2 * left, seen.shape[-1])
    for tap, (rows, columns) in enumerate(windows.taps((seen.shape[1], seen.shape[2]))):
        images[:, rows, columns] += seen[:, :, :, tap]
    return images[:, up : up + high, left : left + wide].contiguous()


def convolve_lanes(x: Tensor, weight: Tensor, windows: Windows2d) -> Tensor:
    """Convolutions of all lanes: [lanes, b, c, h, w] -> [lanes, b, out, h', w']; weight [lanes, out, c, *size]."""
    lanes, b, _, high, wide = x.shape
    pixels = x.permute(0, 1, 3, 4, 2).flatten(0, 1)
    count = windows.grid((high, wide))
    seen = pixels if windows.is_pixel else cast("Callable[..., Tensor]", _Unfold.apply)(pixels, windows)
    product = seen.reshape(lanes, b * count[0] * count[1], -1) @ weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
    return product.view(lanes, b, *count, -1).permute(0, 1, 4, 2, 3)


def transpose_lanes(x: Tensor, weight: Tensor, windows: Windows2d, image: Pair) -> Tensor:
    """Transposed convolutions of all lanes to images of this size: weight [lanes, c, out, *size]."""
    lanes, b, channels, down, across = x.shape
    pixels = x.permute(0, 1, 3, 4, 2).reshape(lanes, -1, channels)
    seen = pixels @ weight.permute(0, 1, 3, 4, 2).flatten(2)
    if windows.is_pixel:
        return seen.view(lanes, b, down, across, -1).permute(0, 1, 4, 2, 3)
    seen = seen.view(lanes * b, down, across, windows.size[0] * windows.size[1], -1)
    images = cast("Callable[..., Tensor]", _Fold.apply)(seen, windows, image)
    return images.view(lanes, b, *images.shape[1:]).permute(0, 1, 4, 2, 3)


class _Convolution(torch.autograd.Function):
    """A convolution that a `vmap` hands over for all its clients."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, windows: Windows2d) -> Tensor:
        return F.conv2d(x, weight, None, windows.stride, windows.padding, windows.dilation)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Autograd sees the products."""

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, windows: Windows2d
    ) -> tuple[Tensor, int]:
        x, weight = _lanes_first(info.batch_size, (x, weight), dims)
        return convolve_lanes(x, weight, windows), 0


class _Transposed(torch.autograd.Function):
    """The same of a transposed convolution."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, windows: Windows2d, image: Pair) -> Tensor:
        return transpose_lanes(x[None], weight[None], windows, image)[0]

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Autograd sees the products."""

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, windows: Windows2d, image: Pair
    ) -> tuple[Tensor, int]:
        x, weight = _lanes_first(info.batch_size, (x, weight), dims)
        return transpose_lanes(x, weight, windows, image), 0


def _lanes_first(lanes: int, parts: tuple[Tensor, ...], dims: tuple[int | None, ...]) -> list[Tensor]:
    return [
        t.expand(lanes, *t.shape) if dim is None else t.movedim(dim, 0) for t, dim in zip(parts, dims, strict=False)
    ]


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Pair = 1, padding: int | Pair | str = 0,
    dilation: int | Pair = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """torch's `conv2d` of one client in a block."""
    if groups > 1 or isinstance(padding, str) or x.dim() != 4:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    size = (weight.shape[2], weight.shape[3])
    windows = Windows2d(size, _pair(stride), _pair(padding), _pair(dilation))
    y = cast("Callable[..., Tensor]", _Convolution.apply)(x, weight, windows)
    return y if bias is None else y + bias[:, None, None]


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Pair = 1, padding: int | Pair = 0,
    output_padding: int | Pair = 0, groups: int = 1, dilation: int | Pair = 1,
) -> Tensor:  # fmt: skip
    """torch's `conv_transpose2d` of one client in a block."""
    if groups > 1 or x.dim() != 4:
        return F.conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups, dilation)
    size = (weight.shape[2], weight.shape[3])
    windows = Windows2d(size, _pair(stride), _pair(padding), _pair(dilation))
    high, wide = (
        (side - 1) * step - 2 * pad + far * (wide - 1) + more + 1
        for side, wide, step, pad, far, more in zip(x.shape[2:], *windows, _pair(output_padding), strict=True)
    )
    y = cast("Callable[..., Tensor]", _Transposed.apply)(x, weight, windows, (high, wide))
    return y if bias is None else y + bias[:, None, None]


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | tuple[int] = 1,
    padding: int | tuple[int] | str = 0, dilation: int | tuple[int] = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """torch's `conv1d` of one client in a block."""
    if groups > 1 or isinstance(padding, str) or x.dim() != 3:
        return F.conv1d(x, weight, bias, stride, padding, dilation, groups)
    step, pad, far = (value if isinstance(value, int) else value[0] for value in (stride, padding, dilation))
    return conv2d(x[:, :, None], weight[:, :, None], bias, (1, step), (0, pad), (1, far))[:, :, 0]


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


CONVOLUTIONS: dict[Callable[..., Tensor], Callable[..., Tensor]] = {  # torch's own, and that for a `vmap`
    F.conv1d: conv1d,
    F.conv2d: conv2d,
    F.conv_transpose2d: conv_transpose2d,
}
