"""Convolutions of a block of clients on a GPU, each with weights of its own, as products with windows of the images.

torch's `vmap` makes one convolution of as many groups as there are clients of it, which is slow there: 1.5 to 2.5 times
as slow for networks of 64 channels and more, on an H200. In training, square windows of stride 1 have kernels of their
own (`kinfed.kernels`). Elsewhere what each window sees is gathered; then products are left. Where all clients have the
same weights, their samples are those of one convolution, which torch does best.

GroupNorm is here because these convolutions leave channels innermost in memory. torch's own copies such images to
channels first, so that all that follows reads and writes across memory; and in a `vmap` it scales and shifts apart.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfed.kernels.layout import PaddedImages, PlainConvolution
from kinfed.params import lanes_first
from kinfed.registry import is_installed

Pair = tuple[int, int]
FEW_CHANNELS = 128
BUSY = 1056  # tiles of a product that keep a large GPU busy
GATHERED = 2**26  # numbers that windows may have at once where nothing is kept for a gradient
LEAST = 3  # lanes; products of fewer round differently


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
    def can_turn(self) -> bool:
        """Whether the gradient of an image is a convolution, too: with the windows turned round."""
        inside = all(pad < size for pad, size in zip(self.padding, self.size, strict=True))
        return self.stride == (1, 1) and self.dilation == (1, 1) and inside

    def turn(self) -> "Windows2d":
        """The windows of that convolution."""
        high, wide = (size - 1 - pad for size, pad in zip(self.size, self.padding, strict=True))
        return self._replace(padding=(high, wide))

    @property
    def has_kernel(self) -> bool:
        """Whether there are kernels for it: square windows, one at each pixel."""
        return self.can_turn and len({*self.size}) == 1 == len({*self.padding})

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


class _Product(torch.autograd.Function):
    """Images [lanes, b, h, w, c] and weights [lanes, taps · c, out] -> [lanes, b, down, across, out]."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, windows: Windows2d) -> Tensor:
        parts = 1 if any(ctx.needs_input_grad) else count_parts(images, weight, windows)
        if parts > 1:
            some = zip(images.tensor_split(parts), weight.tensor_split(parts), strict=True)
            return torch.cat([multiply_windows(*part, windows)[1] for part in some])
        ctx.windows, ctx.image = windows, images.shape
        rows, product = multiply_windows(images, weight, windows)
        ctx.save_for_backward(rows, weight)
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (rows, weight), windows, (lanes, b, high, wide, channels) = ctx.saved_tensors, ctx.windows, ctx.image
        gradient = gradient.contiguous()
        by_weight = multiply_deep(rows, gradient.view(lanes, -1, weight.shape[2]))
        if not ctx.needs_input_grad[0]:
            return None, by_weight, None
        if windows.can_turn and weight.shape[2] <= channels <= FEW_CHANNELS:  # elsewhere it was slower on an H200
            around = gather_windows(gradient.flatten(0, 1), windows.turn()).view(lanes, b * high * wide, -1)
            taps = weight.unflatten(1, (-1, channels)).flip(1).transpose(2, 3).flatten(1, 2)
            return (around @ taps).view(ctx.image), by_weight, None
        back = (gradient.view(lanes, -1, weight.shape[2]) @ weight.transpose(1, 2)).view(
            lanes * b, *gradient.shape[2:4], -1, channels
        )
        return add_windows(back, windows, (high, wide)).view(ctx.image), by_weight, None


class _KernelProduct(torch.autograd.Function):
    """The same by kernels, which gather nothing."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, windows: Windows2d) -> Tensor:
        from kinfed.kernels import products  # Triton's own import is heavy, and needs a GPU

        weight, all_lanes = weight.contiguous(), weight.new_ones(len(weight))
        framed = _frame(images, windows.padding[0])
        y = images.new_empty(*images.shape[:2], *windows.grid((images.shape[2], images.shape[3])), weight.shape[2])
        ctx.layer, ctx.turned, ctx.image = PlainConvolution(windows.size[0]), windows.turn(), images.shape
        products.convolve(ctx.layer, framed, weight, PaddedImages(y), all_lanes)
        ctx.padding = framed.pad
        ctx.save_for_backward(framed.images, weight, all_lanes)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        from kinfed.kernels import products

        images, weight, all_lanes = ctx.saved_tensors
        framed = _frame(gradient, ctx.turned.padding[0])
        by_weight = products.compute_gradient(ctx.layer, PaddedImages(images, ctx.padding), framed, weight, all_lanes)
        if not ctx.needs_input_grad[0]:
            return None, by_weight, None
        before = gradient.new_empty(ctx.image)
        products.convolve_back(ctx.layer, framed, weight, PaddedImages(before), None, all_lanes)
        return before, by_weight, None


def _frame(images: Tensor, around: int) -> PaddedImages:
    """Images with zeros around them, one after the other in memory."""
    return PaddedImages(F.pad(images, (0, 0, *(around,) * 4)).contiguous(), around)


def _has_kernel(images: Tensor, weight: Tensor, windows: Windows2d) -> bool:
    """Whether kernels take this product: in training, since they are compiled for each shape; channels in fours."""
    trains = torch.is_grad_enabled() and weight.requires_grad and images.dtype == weight.dtype == torch.float32
    return trains and windows.has_kernel and images.shape[4] % 4 == 0 and images.is_cuda and is_installed("triton")


def _cast(x: Tensor) -> Tensor:
    """In the precision that autocast asks for, inside of one; operations of our own are not cast by it."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def multiply_deep(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ · right of each lane, [lanes, k, out]; many rows are summed in parts, which keep a GPU busy."""
    lanes, rows, k = left.shape
    tiles = lanes * -(-k // 64) * -(-right.shape[2] // 64)
    parts = next(n for n in range(min(max(1, BUSY // tiles), max(1, rows // 256)), 0, -1) if rows % n == 0)
    if parts == 1:
        return left.transpose(1, 2) @ right
    cut = [t.reshape(lanes * parts, rows // parts, -1) for t in (left, right)]
    return (cut[0].transpose(1, 2) @ cut[1]).view(lanes, parts, k, -1).sum(1)


def count_parts(images: Tensor, weight: Tensor, windows: Windows2d) -> int:
    """In how many parts the lanes [lanes, b, h, w, c] go, so that windows of all of them are not there at once."""
    down, across = windows.grid((images.shape[2], images.shape[3]))
    of_lane = images.shape[1] * down * across * weight.shape[1]
    return max(1, len(images) // max(LEAST, GATHERED // max(1, of_lane)))


def multiply_windows(images: Tensor, weight: Tensor, windows: Windows2d) -> tuple[Tensor, Tensor]:
    """What windows see, as rows [lanes, rows, taps · c], and their products [lanes, b, down, across, out]."""
    seen = gather_windows(images.flatten(0, 1), windows)
    rows = seen.view(len(images), -1, weight.shape[1])
    return rows, (rows @ weight).view(*images.shape[:2], *seen.shape[1:3], weight.shape[2])


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
    pixels, matrix = x.permute(0, 1, 3, 4, 2), weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
    if windows.is_pixel:
        product = (pixels.reshape(lanes, b * high * wide, -1) @ matrix).view(lanes, b, high, wide, -1)
    else:
        operands = _cast(pixels), _cast(matrix)
        rule = _KernelProduct if _has_kernel(*operands, windows) else _Product
        product = cast("Callable[..., Tensor]", rule.apply)(*operands, windows)
    return product.permute(0, 1, 4, 2, 3)


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


def pool_mean(x: Tensor, output_size: int | tuple[int | None, int | None] | None) -> Tensor:
    """torch's `adaptive_avg_pool2d` of one client in a block; to one pixel, torch calls what `vmap` loops over."""
    sizes = (output_size, output_size) if isinstance(output_size, int) or output_size is None else tuple(output_size)
    return x.mean((-2, -1), keepdim=True) if sizes == (1, 1) else F.adaptive_avg_pool2d(x, output_size)


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
        if dims[1] is None:  # all clients have the same weights: their samples are those of one
            x = x.movedim(cast("int", dims[0]), 0)
            y = F.conv2d(x.flatten(0, 1), weight, None, windows.stride, windows.padding, windows.dilation)
            return y.unflatten(0, x.shape[:2]), 0
        x, weight = lanes_first(info, (x, weight), dims[:2])
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
        x, weight = lanes_first(info, (x, weight), dims[:2])
        return transpose_lanes(x, weight, windows, image), 0


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


class _LaneNorm(torch.autograd.Function):
    """Pixels [lanes, b, pixels, c], normalised within each sample's groups of channels; weight and bias [lanes, c]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        by_var, by_mean = torch.var_mean(x, 2, correction=0)
        mean = _group_means(by_mean, groups)
        inverse = (_group_means(by_var + (by_mean - mean).square(), groups) + eps).rsqrt()
        scale = weight[:, None] * inverse
        ctx.groups = groups
        ctx.save_for_backward(x, weight, mean, inverse)
        return torch.addcmul((bias[:, None] - mean * scale)[:, :, None], x, scale[:, :, None])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        by_bias = gradient.sum(2)
        by_weight = ((gradient * x).sum(2) - mean * by_bias) * inverse
        along, across = (
            _group_means(weight[:, None] * t, ctx.groups) / x.shape[2] * inverse for t in (by_weight, by_bias)
        )
        factor = -along * inverse
        offset = -across - mean * factor
        by_x = torch.addcmul(offset[:, :, None], x, factor[:, :, None])
        by_x = by_x.addcmul_(gradient, (weight[:, None] * inverse)[:, :, None])
        return by_x, by_weight.sum(1), by_bias.sum(1), None, None


def _group_means(channels: Tensor, groups: int) -> Tensor:
    """Means over the channels of each group, for each channel: [lanes, b, c]."""
    means: Tensor = channels.unflatten(2, (groups, -1)).mean(3, keepdim=True)
    return means.expand(-1, -1, -1, channels.shape[2] // groups).flatten(2)


def norm_lanes(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """GroupNorm of all lanes: [lanes, b, c, h, w]; weight and bias [lanes, c]."""
    pixels = x.permute(0, 1, 3, 4, 2)
    if not pixels.is_contiguous():
        y = F.group_norm(x.flatten(0, 1), groups, None, None, eps).view(x.shape)
        return torch.addcmul(bias[:, None, :, None, None], y, weight[:, None, :, None, None])
    y = cast("Callable[..., Tensor]", _LaneNorm.apply)(pixels.flatten(2, 3), weight, bias, groups, eps)
    return y.view(pixels.shape).permute(0, 1, 4, 2, 3)


class _GroupNorm(torch.autograd.Function):
    """A GroupNorm that a `vmap` hands over for all its clients."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        return F.group_norm(x, groups, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Autograd sees what the rule for a `vmap` does."""

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> tuple[Tensor, int]:
        x, weight, bias = lanes_first(info, (x, weight, bias), dims[:3])
        return norm_lanes(x, weight, bias, groups, eps), 0


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """torch's `group_norm` of one client in a block."""
    if x.dim() != 4:
        return F.group_norm(x, num_groups, weight, bias, eps)
    x = x.float() if torch.is_autocast_enabled(x.device.type) else x
    affine = (x.new_full((x.shape[1],), value) if t is None else t for t, value in ((weight, 1.0), (bias, 0.0)))
    return cast("Callable[..., Tensor]", _GroupNorm.apply)(x, *affine, num_groups, eps)


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


CONVOLUTIONS: dict[Callable[..., Tensor], Callable[..., Tensor]] = {  # torch's own, and that for a `vmap`
    F.conv1d: conv1d,
    F.conv2d: conv2d,
    F.conv_transpose2d: conv_transpose2d,
    F.adaptive_avg_pool2d: pool_mean,
}
