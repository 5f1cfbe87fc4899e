"""Mini-batch SGD of several clients at once on a GPU, in kernels of our own.

Nothing in it waits for the GPU or asks it for a number, so a whole training can be recorded once and replayed.
"""

import importlib.util
from functools import cache
from typing import Protocol

from torch import Tensor
from torch.nn.functional import pad

from kinfed.models.feed import Feed
from kinfed.models.stages import Fitted, Image, Moving, Stage, fitted
from kinfed.params import Stack


@cache
def has_kernels() -> bool:
    """Whether Triton is there, which comes with torch for GPUs."""
    return importlib.util.find_spec("triton") is not None


class Staged(Protocol):
    """A network that is a sequence of stages."""

    @property
    def stages(self) -> tuple[Stage, ...]: ...

    def inputs(self, x: Tensor) -> Tensor: ...


def descended(network: Staged, feed: Feed, rate: Tensor, start: Stack, momentum: float, mu: float) -> Stack:
    """The weights of all lanes after all their batches; an empty batch moves nothing."""
    shape = feed.x.shape[1:]
    image: Image = (shape[1], shape[2], shape[0]) if len(shape) == 3 else (1, 1, shape.numel())
    fits = fitted(network.stages, image)
    weights = [Moving.at(fit.packed(start), momentum, mu) for fit in fits]
    whole = feed.pick, feed.y[feed.pick], feed.shares(), rate * feed.mask.any(2)
    for pick, y, share, stride in zip(*(t.transpose(0, 1).contiguous() for t in whole), strict=True):
        rows = network.inputs(feed.x.index_select(0, pick.flatten()))
        images = pad(rows.movedim(1, -1), (0, fits[0].blank)).contiguous().view(*pick.shape, *fits[0].sees)
        _step(fits, images, y, share, weights, stride)
        weights = [weight.after_step() for weight in weights]
    missed = feed.pick.shape[1] - feed.mask.any(2).sum(1)  # steps that a lane did not take
    ends = [fit.unpacked(weight.after(missed)) for fit, weight in zip(fits, weights, strict=True)]
    return {name: next(end[name] for end in ends if name in end) for name in start}


def _step(fits: list[Fitted], x: Tensor, y: Tensor, share: Tensor, weights: list[Moving], stride: Tensor) -> None:
    """One step of every lane on its batch x: [lanes, b, height, width, channels]."""
    from kinfed.models import kernels  # Triton's own import is heavy, and needs a GPU

    seen: list[Tensor] = []
    made: list[tuple[Tensor, Tensor]] = []  # before a pooling, and which it took
    for fit, weight in zip(fits, weights, strict=True):
        seen.append(x.reshape(*x.shape[:2], 1, 1, -1) if fit.stage.is_linear else x)
        x = kernels.convolve(fit.stage, seen[-1], weight.now, fit.makes, stride)
        made.append((x, x))
        if fit.stage.pool > 1:
            x, where = kernels.pool(fit.stage, x, fit.leaves)
            made[-1] = made[-1][0], where
    slope = kernels.surprise(x, y, share)
    for i in range(len(fits) - 1, -1, -1):
        stage = fits[i].stage
        slope = slope.view(*slope.shape[:2], *fits[i].leaves)
        if stage.pool > 1:
            slope = kernels.unpool(stage, slope, made[i][1], made[i][0])
        before = slope
        if i > 0:
            before = kernels.convolve_back(stage, slope, weights[i].now, seen[i], fits[i - 1].stage.relu, stride)
        kernels.learn(stage, seen[i], slope, weights[i], stride)
        slope = before
