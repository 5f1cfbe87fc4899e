"""Mini-batch SGD of several clients at once on a GPU, in kernels of our own.

Nothing in it waits for the GPU or asks it for a number, so a whole training can be recorded once and replayed.
"""

import importlib.util
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from kinfed.models.feed import Feed
from kinfed.models.stages import Fitted, Framed, Image, Moving, Stage, fitted
from kinfed.params import Stack

AHEAD = 2**26  # numbers of images that are made ready at once


@cache
def has_kernels() -> bool:
    """Whether Triton is there, which comes with torch for GPUs."""
    return importlib.util.find_spec("triton") is not None


class Staged(Protocol):
    """A network that is a sequence of stages."""

    @property
    def stages(self) -> tuple[Stage, ...]: ...

    def inputs(self, x: Tensor) -> Tensor: ...


def descended(
    network: Staged, feed: Feed, rate: Tensor, start: Stack, shift: Stack, momentum: float, mu: float
) -> Stack:
    """The weights of all lanes after all their batches; an empty batch moves nothing.

    To every gradient the shift is added, if there is one; then nothing may pull to the start (mu = 0).
    """
    assert not (shift and mu)
    shape = feed.x.shape[1:]
    image: Image = (shape[1], shape[2], shape[0]) if len(shape) == 3 else (1, 1, shape.numel())
    fits = fitted(network.stages, image)
    weights = [Moving.at(fit.packed(start), momentum, mu, fit.packed(shift) if shift else None) for fit in fits]
    lanes, steps, b = feed.pick.shape
    desks = _desks(fits, weights[0].now.new_empty(lanes, b))
    whole = feed.pick, feed.y[feed.pick], feed.shares(), rate * feed.mask.any(2)
    picks, ys, shares, strides = (t.transpose(0, 1).contiguous() for t in whole)
    at_once = max(1, AHEAD // desks[0].x.images.numel())
    for begin in range(0, steps, at_once):
        images = _images(network, feed.x, picks[begin : begin + at_once], fits[0])
        for step in range(begin, min(begin + at_once, steps)):
            _step(desks, images[step - begin], ys[step], shares[step], weights, strides[step])
            weights = [weight.after_step() for weight in weights]
    missed = steps - feed.mask.any(2).sum(1)  # steps that a lane did not take
    ends = [fit.unpacked(weight.after(missed)) for fit, weight in zip(fits, weights, strict=True)]
    return {name: next(end[name] for end in ends if name in end) for name in start}


def _images(network: Staged, x: Tensor, pick: Tensor, fit: Fitted) -> Tensor:
    """The rows of some steps as the first layer wants them: [steps, lanes, b, height, width, channels], framed."""
    rows = network.inputs(x.index_select(0, pick.flatten())).view(-1, fit.sees[2] - fit.blank, *fit.sees[:2])
    frame = (fit.stage.pad,) * 4
    images: Tensor = pad(rows.permute(0, 2, 3, 1), (0, fit.blank, *frame)).contiguous()
    return images.view(*pick.shape, *images.shape[1:])


@dataclass(frozen=True)
class Desk:
    """Where a stage works: what it sees, what it makes, and the slopes of both."""

    fit: Fitted
    x: Framed  # what it sees; that of the first stage is only a picture of its shape
    made: Framed  # by its layer; the next one's x, unless a pooling comes between
    y: Framed  # after the pooling, the next one's x
    where: Tensor  # what a pooling took
    slope: Framed  # of `made`
    slope_after: Framed  # of `y`; the same, unless a pooling or a flattening comes between
    masks: bool  # whether what it sees came out of a ReLU

    @property
    def sees(self) -> Framed:
        """What it sees, as its layer takes it."""
        return self.x.flat() if self.fit.stage.is_linear else self.x


def _desks(fits: list[Fitted], like: Tensor) -> list[Desk]:
    """A desk for each stage of a network, for lanes and rows as in `like`."""
    desks: list[Desk] = []
    seen = [Framed.of(like, fit.sees, fit.stage.pad) for fit in fits]
    ends = Framed.of(like, fits[-1].leaves)
    for i, (fit, y) in enumerate(zip(fits, [*seen[1:], ends], strict=True)):
        made = Framed.of(like, fit.makes) if fit.stage.pool > 1 else y
        where = like.new_empty(*like.shape, *fit.leaves, dtype=torch.uint8) if fit.stage.pool > 1 else like
        slope = Framed.of(like, fit.makes, fit.reach if i else 0) if fit is not fits[-1] else made
        is_same = fit.stage.pool == 1 and (slope.frame == 0 or not fits[i + 1].stage.is_linear)
        after = slope if is_same else Framed.of(like, fit.leaves)
        desks.append(Desk(fit, seen[i], made, y, where, slope, after, i > 0 and fits[i - 1].stage.relu))
    return desks


def _step(desks: list[Desk], images: Tensor, y: Tensor, share: Tensor, weights: list[Moving], stride: Tensor) -> None:
    """One step of every lane on its batch of images: [lanes, b, height, width, channels], framed."""
    from kinfed.models import kernels  # Triton's own import is heavy, and needs a GPU

    desks = [replace(desks[0], x=Framed(images, desks[0].x.frame)), *desks[1:]]
    for desk, weight in zip(desks, weights, strict=True):
        kernels.convolve(desk.fit.stage, desk.sees, weight.now, desk.made, stride)
        if desk.fit.stage.pool > 1:
            kernels.pool(desk.fit.stage, desk.made, desk.y, desk.where)
    kernels.surprise(desks[-1].y.images, y, share)
    for before, desk, weight in zip([None, *desks[:-1]][::-1], desks[::-1], weights[::-1], strict=True):
        stage = desk.fit.stage
        if stage.pool > 1:
            kernels.unpool(stage, desk.slope_after, desk.where, desk.slope)
        elif desk.slope_after is not desk.slope:
            desk.slope.fill(desk.slope_after)
        if before:
            onto = before.slope_after.flat() if stage.is_linear else before.slope_after
            kernels.convolve_back(stage, desk.slope, weight.now, onto, desk.sees if desk.masks else None, stride)
        kernels.learn(stage, desk.sees, desk.slope, weight, stride)
