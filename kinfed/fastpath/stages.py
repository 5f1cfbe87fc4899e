"""A plain network as stages: a layer with weights, then perhaps a ReLU and a pooling. On a GPU a stage is a kernel.

`Schedule` holds the mini-batches of all steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from kinfed.fastpath.layers import DROPOUTS, Drop
from kinfed.fastpath.sequences import find_augmentation, find_drops, is_hooked, leaves
from kinfed.kernels.layout import Image
from kinfed.keys import fold
from kinfed.params import Stack


@dataclass(frozen=True)
class Stage:
    """A convolution (stride 1, zeros around) or a linear layer, whose input is a 1x1 image."""

    name: str  # of the module, with its dot
    size: int  # of the window
    pad: int
    bias: bool
    out: int  # channels
    is_linear: bool
    relu: bool = False
    pool: int = 1  # the side of the windows whose largest goes on; 1: no pooling
    drop: Drop | None = None  # of what goes on

    def shape(self, image: Image) -> "ShapedStage":
        """The stage for images like this."""
        if self.is_linear:
            return ShapedStage(self, image, (1, 1, self.out), (1, 1, self.out))
        high, wide = (side + 2 * self.pad - self.size + 1 for side in image[:2])
        return ShapedStage(self, image, (high, wide, self.out), (high // self.pool, wide // self.pool, self.out))


@dataclass(frozen=True)
class ShapedStage:
    """A stage for images of one size: the shapes of its input, of its layer's output, and after pooling."""

    stage: Stage
    input: Image
    output: Image
    pooled: Image
    extra: int = 0  # channels of zeros after the input's real ones

    @property
    def margin(self) -> int:
        """Padding that the gradient of its output needs in the backward pass."""
        return self.stage.size - 1 - self.stage.pad

    def pack(self, models: Stack) -> Tensor:
        """The weights of all lanes in the kernels' layout: [lanes, height · width · channels (+ bias), out]."""
        weight = models[f"{self.stage.name}weight"]
        weight = pad(weight, (0, 0, 0, 0, 0, self.extra)) if self.extra else weight
        if self.stage.is_linear:  # its input is what `nn.Flatten` makes of an image: channels first
            weight = weight.unflatten(2, (self.input[2], *self.input[:2]))
        seen = weight.permute(0, 3, 4, 2, 1)
        packed = weight.new_empty(len(weight), seen[0, ..., 0].numel() + self.stage.bias, self.stage.out)
        packed[:, : packed.shape[1] - self.stage.bias].view(seen.shape).copy_(seen)
        if self.stage.bias:
            packed[:, -1] = models[f"{self.stage.name}bias"]
        return packed

    def unpack(self, weight: Tensor) -> Stack:
        """The weights by name, as the network has them."""
        high, wide = self.input[:2] if self.stage.is_linear else (self.stage.size, self.stage.size)
        seen = weight[:, : high * wide * self.input[2]].unflatten(1, (high, wide, self.input[2]))
        own = seen[..., : self.input[2] - self.extra, :].permute(0, 4, 3, 1, 2)
        bias = {f"{self.stage.name}bias": weight[:, -1].clone()} if self.stage.bias else {}
        return {
            f"{self.stage.name}weight": (own.flatten(2) if self.stage.is_linear else own).clone(
                memory_format=torch.contiguous_format
            )
        } | bias


def parse_stages(module: nn.Module) -> tuple[Stage, ...]:
    """The network as stages; none if it is anything but a sequence of such."""
    if is_hooked(module):
        return ()
    parts = list(leaves(module))
    drops = find_drops(parts, find_augmentation(module).draws)
    stages = _drop_out(_append_all([part for part in parts if type(part[1]) not in DROPOUTS]), parts, drops)
    weights = [id(w) for _, leaf in parts for w in leaf.parameters()]
    is_whole = bool(stages) and stages[-1].is_linear and len(set(weights)) == len(weights)
    return tuple(stages) if is_whole else ()


def _append_all(parts: list[tuple[str, nn.Module]]) -> list[Stage]:
    """The stages of these parts; none if one of them has no place."""
    stages: list[Stage] = []
    for (_, before), (name, leaf) in pairwise([("", nn.Identity()), *parts]):
        is_first_linear = type(leaf) is nn.Linear and not (stages and stages[-1].is_linear)
        longer = _append(stages, name, leaf)
        if longer is None or is_first_linear != (type(before) is nn.Flatten):
            return []
        stages = longer
    return stages


def _drop_out(stages: list[Stage], parts: list[tuple[str, nn.Module]], drops: Sequence[Drop | None]) -> list[Stage]:
    """The stages with the dropouts of the network; none if one of them is not the last of its stage, or the network's.

    A ReLU may follow: it changes no factor.
    """
    owners = {stage.name: stage for stage in stages}
    last: Stage | None = None
    is_flat = False
    for (name, leaf), drop in zip(parts, drops, strict=True):
        if drop and (last is None or last.drop or (drop.channels and is_flat)):
            return []
        if type(leaf) is nn.MaxPool2d and last and last.drop:
            return []
        is_flat = is_flat or type(leaf) is nn.Flatten
        last = replace(last, drop=drop) if drop and last else owners.get(name, last)
        if last:
            owners[last.name] = last
    return [] if last and last.drop else list(owners.values())


def _append(stages: list[Stage], name: str, leaf: nn.Module) -> list[Stage] | None:
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
        return [*stages[:-1], replace(last, pool=_side(leaf))]
    return stages if type(leaf) is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1) else None


def _is_simple(layer: nn.Conv2d) -> bool:
    square = layer.kernel_size[0] == layer.kernel_size[1] and layer.padding in ((p := layer.padding[0], p), p)
    usual = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.groups == 1
    known = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return square and usual and known and int(layer.padding[0]) < layer.kernel_size[0]


def _side(layer: nn.MaxPool2d) -> int:
    return layer.kernel_size if isinstance(layer.kernel_size, int) else layer.kernel_size[0]


def _is_tiling(layer: nn.MaxPool2d) -> bool:
    plain = layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode and not layer.return_indices
    return plain and isinstance(layer.kernel_size, int) and layer.stride == layer.kernel_size


def shape_stages(stages: tuple[Stage, ...], image: Image) -> list[ShapedStage]:
    """The stages for images like this."""
    shaped: list[ShapedStage] = []
    if not stages[0].is_linear and image[2] % 4 == 3:  # four channels are read at once
        shaped.append(replace(stages[0].shape((*image[:2], image[2] + 1)), extra=1))
        stages, image = stages[1:], shaped[0].pooled
    for stage in stages:
        shaped.append(stage.shape(image))
        image = shaped[-1].pooled
    return shaped


class SGD(NamedTuple):
    """The settings of mini-batch SGD: w -= lr · v, where v = momentum · v + gradient + term.

    The term is weight_decay · w + mu · (w - start) + shift. The first two are one pull towards one anchor:
    (weight_decay + mu) · (w - anchor), where the anchor is a share of the start.
    """

    momentum: float = 0.0
    mu: float = 0.0  # μ of FedProx
    inner_lr: float = 0.0  # of the look-ahead step before every real one (Per-FedAvg), on a GPU; 0: no such step
    weight_decay: float = 0.0

    @property
    def pull(self) -> float:
        """How strongly weights are pulled."""
        return self.mu + self.weight_decay

    @property
    def anchor(self) -> float:
        """The share of the start that they are pulled to."""
        return self.mu / self.pull if self.pull else 0.0


@dataclass(frozen=True)
class Schedule:
    """All mini-batches of some lanes; a lane's real batches come first, and in a batch its real samples."""

    x: Tensor  # the pool of samples
    y: Tensor  # -1: no label
    pick: Tensor  # [lanes, steps, b] indices into the pool
    mask: Tensor  # [lanes, steps, b]
    key: Tensor | None = None  # [lanes, steps] of the batches, by which dropout draws; None: zeros

    @property
    def keys(self) -> Tensor:
        """The keys of all batches."""
        return self.pick.new_zeros(self.pick.shape[:-1]) if self.key is None else self.key

    def split_pairs(self) -> "Schedule":
        """Each batch as two, the first half of its samples and the second: [lanes, 2 · steps, b / 2]."""
        pick, mask = (t.unflatten(2, (2, -1)).flatten(1, 2) for t in (self.pick, self.mask))
        keys = torch.stack([fold(self.keys, half) for half in range(2)], 2).flatten(1)
        return Schedule(self.x, self.y, pick, mask, keys)

    def sample_weights(self) -> Tensor:
        """The weight of each sample in its batch's mean: [lanes, steps, b]; 0 for padding and without a label."""
        counts = self.mask & (self.y[self.pick] >= 0)
        return counts / counts.sum(2, keepdim=True).clamp(min=1)
