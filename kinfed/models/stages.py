"""A plain network as stages: a layer with weights, then perhaps a ReLU and a pooling. On a GPU a stage is a kernel."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from kinfed.models.layers import is_hooked, leaves
from kinfed.params import Stack

Image = tuple[int, int, int]  # height, width, channels


@dataclass(frozen=True)
class Stage:
    """A convolution (stride 1, zeros around) or a linear layer, which sees 1x1 images."""

    name: str  # of the module, with its dot
    size: int  # of the window
    pad: int
    bias: bool
    out: int  # channels
    is_linear: bool
    relu: bool = False
    pool: int = 1  # the side of the windows whose largest goes on; 1: no pooling

    def fit(self, image: Image) -> "Fitted":
        """The stage for images like this."""
        if self.is_linear:
            return Fitted(self, image, (1, 1, self.out), (1, 1, self.out))
        high, wide = (side + 2 * self.pad - self.size + 1 for side in image[:2])
        return Fitted(self, image, (high, wide, self.out), (high // self.pool, wide // self.pool, self.out))


@dataclass(frozen=True)
class Fitted:
    """A stage, what it sees, what its layer makes of it, and what its pooling leaves."""

    stage: Stage
    sees: Image
    makes: Image
    leaves: Image
    blank: int = 0  # channels of zeros after the real ones it sees

    @property
    def reach(self) -> int:
        """How far beyond its edge windows look at what the layer makes, on the way back."""
        return self.stage.size - 1 - self.stage.pad

    def packed(self, models: Stack) -> Tensor:
        """The weights of all lanes as kernels want them: [lanes, what is seen (+ bias), out]."""
        weight = models[f"{self.stage.name}weight"]
        weight = pad(weight, (0, 0, 0, 0, 0, self.blank)) if self.blank else weight
        if self.stage.is_linear:  # it sees what `nn.Flatten` makes of an image: channels first
            weight = weight.unflatten(2, (self.sees[2], *self.sees[:2]))
        seen = weight.permute(0, 3, 4, 2, 1)
        packed = weight.new_empty(len(weight), seen[0, ..., 0].numel() + self.stage.bias, self.stage.out)
        packed[:, : packed.shape[1] - self.stage.bias].view(seen.shape).copy_(seen)
        if self.stage.bias:
            packed[:, -1] = models[f"{self.stage.name}bias"]
        return packed

    def unpacked(self, weight: Tensor) -> Stack:
        """The weights by name, as the network has them."""
        high, wide = self.sees[:2] if self.stage.is_linear else (self.stage.size, self.stage.size)
        seen = weight[:, : high * wide * self.sees[2]].unflatten(1, (high, wide, self.sees[2]))
        own = seen[..., : self.sees[2] - self.blank, :].permute(0, 4, 3, 1, 2)
        bias = {f"{self.stage.name}bias": weight[:, -1].clone()} if self.stage.bias else {}
        return {
            f"{self.stage.name}weight": (own.flatten(2) if self.stage.is_linear else own).clone(
                memory_format=torch.contiguous_format
            )
        } | bias


@dataclass(frozen=True)
class Framed:
    """Images of some lanes, each in a frame of zeros: [lanes, b, height + 2 · frame, width + 2 · frame, channels]."""

    images: Tensor
    frame: int = 0

    @classmethod
    def of(cls, like: Tensor, image: Image, frame: int = 0) -> "Framed":
        """Empty ones, as many as in `like`; whoever fills them leaves the frame alone."""
        make = like.new_zeros if frame else like.new_empty
        return cls(make(*like.shape[:2], *(side + 2 * frame for side in image[:2]), image[2]), frame)

    @property
    def inner(self) -> tuple[int, int]:
        """Height and width without the frame."""
        high, wide = (side - 2 * self.frame for side in self.images.shape[2:4])
        return high, wide

    @property
    def rows(self) -> int:
        """Pixels of a lane."""
        return self.images.shape[1] * self.inner[0] * self.inner[1]

    def fill(self, other: "Framed") -> None:
        """Takes images without a frame over."""
        inside = slice(self.frame, -self.frame or None)
        self.images[:, :, inside, inside] = other.images

    def flat(self) -> "Framed":
        """Each image as one pixel of many channels: what a linear layer sees."""
        return Framed(self.images.flatten(2)[:, :, None, None])


class Pace(NamedTuple):
    """How weights move."""

    momentum: float = 0.0
    mu: float = 0.0  # μ of FedProx' pull to the start
    inner: float = 0.0  # the rate of a trial step before every real one; 0: no such step


@dataclass(frozen=True)
class Moving:
    """A packed weight, what it was a step ago, and what pulls or shifts it, where that is needed.

    Without momentum a step changes `now`; with it, what comes next is written over `old`, and they change places.
    """

    now: Tensor
    old: Tensor | None
    start: Tensor | None
    shift: Tensor | None
    momentum: float
    mu: float

    @classmethod
    def at(cls, start: Tensor, momentum: float, mu: float, shift: Tensor | None = None) -> "Moving":
        """A weight that stands at `start`, which becomes its own."""
        return cls(start, start.clone() if momentum else None, start.clone() if mu else None, shift, momentum, mu)

    def restart(self, start: Tensor, shift: Tensor | None) -> None:
        """Puts it at another start, with another shift if it has one."""
        for own, t in ((self.now, start), (self.old, start), (self.start, start), (self.shift, shift)):
            if own is not None and t is not None:
                own.copy_(t)

    def after_step(self) -> "Moving":
        """The weight after a step was taken."""
        return self if self.old is None else replace(self, now=self.old, old=self.now)

    def after(self, steps: Tensor) -> Tensor:
        """The weights of lanes that took so many steps each."""
        if self.old is None:
            return self.now
        return torch.where((steps % 2 == 0)[:, None, None], self.now, self.old)


def stages_of(module: nn.Module) -> tuple[Stage, ...]:
    """The network as stages; none if it is anything but a sequence of such."""
    if is_hooked(module):
        return ()
    stages: list[Stage] = []
    parts = list(leaves(module))
    for (_, before), (name, leaf) in pairwise([("", nn.Identity()), *parts]):
        is_first_linear = type(leaf) is nn.Linear and not (stages and stages[-1].is_linear)
        known = _joined(stages, name, leaf)
        if known is None or is_first_linear != (type(before) is nn.Flatten):
            return ()
        stages = known
    weights = [id(w) for _, leaf in parts for w in leaf.parameters()]
    is_whole = bool(stages) and stages[-1].is_linear and len(set(weights)) == len(weights)
    return tuple(stages) if is_whole else ()


def _joined(stages: list[Stage], name: str, leaf: nn.Module) -> list[Stage] | None:
    """The stages with one more part of the network; None if it has no place there."""
    last = stages[-1] if stages else None
    if type(leaf) is nn.Linear:
        return [*stages, Stage(name, 1, 0, leaf.bias is not None, leaf.out_features, True)]
    if type(leaf) is nn.Conv2d and not (last and last.is_linear) and _is_simple(leaf):
        around = int(leaf.padding[0])
        return [*stages, Stage(name, leaf.kernel_size[0], around, leaf.bias is not None, leaf.out_channels, False)]
    if type(leaf) is nn.ReLU and last:
        return [*stages[:-1], replace(last, relu=True)]
    if type(leaf) is nn.MaxPool2d and last and not last.is_linear and last.pool == 1 and _is_tiling(leaf):
        return [*stages[:-1], replace(last, pool=int(leaf.kernel_size))]  # type: ignore[arg-type]
    return stages if type(leaf) is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1) else None


def _is_simple(layer: nn.Conv2d) -> bool:
    square = layer.kernel_size[0] == layer.kernel_size[1] and layer.padding in ((p := layer.padding[0], p), p)
    usual = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.groups == 1
    known = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return square and usual and known and int(layer.padding[0]) < layer.kernel_size[0]


def _is_tiling(layer: nn.MaxPool2d) -> bool:
    plain = layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode and not layer.return_indices
    return plain and isinstance(layer.kernel_size, int) and layer.stride == layer.kernel_size


def fitted(stages: tuple[Stage, ...], image: Image) -> list[Fitted]:
    """The stages for images like this."""
    fits: list[Fitted] = []
    if not stages[0].is_linear and image[2] % 4 == 3:  # four channels are read at once
        fits.append(replace(stages[0].fit((*image[:2], image[2] + 1)), blank=1))
        stages, image = stages[1:], fits[0].leaves
    for stage in stages:
        fits.append(stage.fit(image))
        image = fits[-1].leaves
    return fits
