"""Mini-batch SGD of several clients at once on a GPU, in kernels of our own.

Nothing in it waits for the GPU or asks it for a number, so it can be recorded once and replayed, whole or in parts.
"""

from functools import cache, partial

import torch
from torch import Tensor

from kinfed.models.feed import Feed
from kinfed.models.stages import Image, Pace, fitted
from kinfed.models.walks import PRESENT, Batches, Recorded, Staged, Walk
from kinfed.params import Stack
from kinfed.registry import is_installed

AHEAD = 2**26  # numbers of images that are made ready at once
RECORDED = 16, 64  # steps in a recording: of short trainings, and of long ones
LONG = 128  # steps


@cache
def has_kernels() -> bool:
    """Whether Triton is there, which comes with torch for GPUs."""
    return is_installed("triton")


def descended(network: Staged, feed: Feed, rate: Tensor, start: Stack, shift: Stack, pace: Pace) -> Stack:
    """The weights of all lanes after all their batches; an empty batch moves nothing.

    To every gradient the shift is added, if there is one; then nothing may pull to the start (μ = 0). With an inner
    rate a batch is a pair of mini-batches, and the gradient of the second is taken a step at that rate down the first.
    """
    assert not (shift and pace.mu) and not (pace.inner and pace.momentum)
    shape = feed.x.shape[1:]
    image: Image = (shape[1], shape[2], shape[0]) if len(shape) == 3 else (1, 1, shape.numel())
    fits = fitted(network.stages, image)
    starts, shifts = [fit.packed(start) for fit in fits], [fit.packed(shift) for fit in fits if shift]
    batches = _batches(feed, rate, pace.inner)
    steps, lanes, rows = batches.pick.shape
    at_once = max(2, AHEAD // (lanes * rows * shape.numel()) // 2 * 2)  # even: pairs stay together
    begin = partial(Walk.of, network, feed.x, fits, starts, shifts, rows, pace)
    walk: Walk | Recorded
    if walks := PRESENT.get():
        at_once = min(at_once, RECORDED[steps > LONG])
        key = id(network), feed.x.data_ptr(), lanes, rows, at_once, pace, bool(shift)
        walk, batches = walks.at(key, starts, shifts, begin), batches.filled(at_once)
    else:
        walk = begin()
    for part in batches.cut(at_once):
        walk.go(part)
    missed = len(batches.stride) - feed.mask.any(2).sum(1)  # steps that a lane did not take
    ends = [fit.unpacked(weight.after(missed)) for fit, weight in zip(fits, walk.weights, strict=True)]
    return {name: next(end[name] for end in ends if name in end) for name in start}


def _batches(feed: Feed, rate: Tensor, inner: float) -> Batches:
    """All batches, the steps first; with an inner rate the two halves of a batch are steps of their own."""
    live = feed.mask.any(2)
    stride = rate * live
    if inner:
        feed, stride = feed.halved(), torch.stack([inner * live, stride], 2).flatten(1)
    whole = feed.pick, feed.y[feed.pick].clamp(min=0), feed.shares(), stride
    return Batches(*(t.transpose(0, 1).contiguous() for t in whole))
