"""How images and weights of a block of clients lie in memory for the kernels, and how these cut their work."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Image = tuple[int, int, int]  # height, width, channels


class LayerShape(Protocol):
    """What a kernel has to know of a layer."""

    @property
    def size(self) -> int: ...  # of the window

    @property
    def bias(self) -> bool: ...

    @property
    def relu(self) -> bool: ...

    @property
    def pool(self) -> int: ...  # the side of the windows whose largest goes on; 1: no pooling


class PlainConvolution(NamedTuple):
    """A convolution and nothing else."""

    size: int
    bias: bool = False
    relu: bool = False
    pool: int = 1


@dataclass(frozen=True)
class PaddedImages:
    """Images of some lanes, each padded with zeros: [lanes, b, height + 2 · pad, width + 2 · pad, channels]."""

    images: Tensor
    pad: int = 0

    @classmethod
    def of(cls, like: Tensor, image: Image, pad: int = 0) -> "PaddedImages":
        """Empty ones, as many as in `like`; the padding is never written to."""
        make = like.new_zeros if pad else like.new_empty
        return cls(make(*like.shape[:2], *(side + 2 * pad for side in image[:2]), image[2]), pad)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width without the padding."""
        high, wide = (side - 2 * self.pad for side in self.images.shape[2:4])
        return high, wide

    @property
    def pixels(self) -> int:
        """Pixels of a lane."""
        return self.images.shape[1] * self.size[0] * self.size[1]

    @property
    def inside(self) -> Tensor:
        """The images without the padding, in the same memory."""
        inside = slice(self.pad, -self.pad or None)
        return self.images[:, :, inside, inside]

    def fill(self, other: "PaddedImages") -> None:
        """Copies images without padding."""
        self.inside.copy_(other.images)

    def flat(self) -> "PaddedImages":
        """Each image as one pixel of many channels: the input of a linear layer."""
        return PaddedImages(self.images.flatten(2)[:, :, None, None])


@dataclass(frozen=True)
class PackedWeight:
    """A packed weight, its value a step ago, and a term beside its gradient, where they are needed.

    The term of a lane with a pull is pull · (w - beside), of others `beside` itself. Without momentum a step changes
    `now`; with it, the new value is written over `previous`, and the two are swapped.
    """

    now: Tensor
    previous: Tensor | None
    momentum: float = 0.0
    beside: Tensor | None = None  # None: no lane has a term
    pull: Tensor | None = None  # [lanes]

    @classmethod
    def at(
        cls, start: Tensor, momentum: float = 0.0, beside: Tensor | None = None, pull: Tensor | None = None
    ) -> "PackedWeight":
        """A weight at `start`, which it takes over."""
        return cls(start, start.clone() if momentum else None, momentum, beside, pull)

    def reset(self, start: Tensor, beside: Tensor | None, pull: Tensor | None) -> None:
        """Restarts at another start, with another term if it has one."""
        news = (self.now, start), (self.previous, start), (self.beside, beside), (self.pull, pull)
        for own, t in news:
            if own is not None and t is not None:
                own.copy_(t)

    def swap(self) -> "PackedWeight":
        """The weight after a step."""
        return self if self.previous is None else replace(self, now=self.previous, previous=self.now)

    def end(self, steps: Tensor) -> Tensor:
        """The weights of lanes that took so many steps each."""
        if self.previous is None:
            return self.now
        return torch.where((steps % 2 == 0)[:, None, None], self.now, self.previous)


def find_anchor(start: Tensor, shift: Tensor | None, pull: float, share: float) -> Tensor:
    """Where a pull leads that is a shift as well: pull · (w - anchor) = pull · (w - share · start) + shift."""
    return start * share if shift is None else start * share - shift / pull


# how the kernels cut their work: by tables of what was fastest on an H200, not by a rule
Tile = tuple[tuple[int, int, int], int, int]  # rows, columns and depth of a tile of products; warps; loads ahead
BLOCK = 2  # the side of the blocks of pixels that are one row of a product where channels are few


def precision() -> str:
    """How numbers are multiplied."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def product_tile(rows: int, depth: int, out: int) -> Tile:
    """How a product of so many rows and columns, over such a depth, is cut."""
    across, tf32 = _across(out), precision() == "tf32"
    if rows <= 16:
        return (16, across if out >= 512 else min(32, across), 64 if out >= 512 or depth <= 64 else 32), 2, 4
    if depth <= 32:
        return (128, across, 32), 4, 2
    if 128 < rows <= 1024 and out >= 256:
        return (128, across, 32), 4, 3
    if across == 16 and rows > 4096 and depth >= 128:
        return (128, across, 16), 4, 4
    if rows <= 1024 or across == 16:
        return (64, across, 32), 4, 4
    if across == 32:
        return ((128, across, 32), 8, 3) if tf32 else ((64, across, 64), 4, 3)
    return ((256, across, 32), 8, 4) if tf32 else ((128, across, 32), 8, 3)


def gradient_tile(rows: int, total: int, out: int, lanes: int) -> Tile:
    """How the gradient of a weight [total, out] is cut, whose depth are the rows."""
    across = _across(out)
    if rows <= 16:
        return ((64, min(32, across), 16), 4, 1) if total > 512 else ((32, min(32, across), 16), 2, 2)
    if total <= 33:
        return (32, across, 32), 2, 4
    if across == 16:
        return ((64, across, 32), 2, 4) if rows > 4096 and total >= 128 else ((16, across, 64), 2, 3)
    many = lanes * total > 20_000 and precision() == "tf32x3"
    return ((128, across, 32), 4, 3) if many else ((32, across, 64), 4, 3)


def has_few_channels(layer: LayerShape, channels: int) -> bool:
    """Whether blocks of pixels are rows of a product that makes so many channels, not single pixels."""
    return layer.size > 1 and channels <= 8


def pools_at_once(layer: LayerShape, channels: int) -> bool:
    """Whether one kernel makes so many channels and pools them."""
    return layer.pool == BLOCK and has_few_channels(layer, channels)


def uses_pooled_gradient(layer: LayerShape, seen: int) -> bool:
    """Whether the gradient of a weight with so many rows is made of that of what was pooled."""
    return layer.pool > 1 and seen <= 128


def block_columns(channels: int) -> int:
    """Columns of a row that is a block of pixels."""
    return BLOCK**2 * max(4, _next_power(channels))


def block_tile(depth: int, columns: int) -> Tile:
    """How a product whose rows are blocks of pixels, over such a depth, is cut."""
    return ((64, columns, 64), 4, 3) if depth > 256 else ((64, columns, 16), 4, 1)


def window_tile(seen: int, out: int, image: tuple[int, int]) -> tuple[tuple[int, int, int], int]:
    """How a weight's gradient is summed up from pooled images of this size, and how many of them a program takes.

    A tile has so many of their pixels, in rows of so many, and all rows of the weight.
    """
    span, deep = _next_power(image[1]), max(16, _next_power(seen))
    return (max(span, 4096 // deep), span, deep), -(-(2**14) * max(1, out // 8) // (image[0] * image[1] * deep))


def _across(out: int) -> int:
    """Columns of a tile: a power of two."""
    return min(64, max(16, _next_power(out)))


def _next_power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
