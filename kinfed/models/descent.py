"""Mini-batch SGD of several clients at once on a plain network: the quick way of local training."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.cancellation import raise_if_cancelled
from kinfed.errors import SequentialOnly
from kinfed.models.feed import Feed
from kinfed.models.layers import Descent, Layers, Weight, Weights
from kinfed.models.model import Model
from kinfed.models.network import in_lanes
from kinfed.models.on_gpu import descended
from kinfed.models.stages import Pace
from kinfed.params import NOTHING, Params, Stack, stack

LEAST = 3  # lanes; products of one lane, and convolutions of two, round differently from those of more


@dataclass(frozen=True)
class Quick:
    """A plain network, and how its weights move."""

    network: Model
    momentum: float = 0.0
    mu: float = 0.0
    inner: float = 0.0  # the rate of a trial step before every real one, on a GPU; 0: no such step

    @property
    def layers(self) -> Layers:
        """Its layers; a model that trains the quick way on a CPU has them."""
        assert self.network.layers
        return self.network.layers


def descend(quick: Quick, feed: Feed, rate: Tensor, start: Params, shift: Mapping[str, Tensor] = NOTHING) -> Params:
    """The weights of one client after all its batches; inside a vmap, those of all its clients at once.

    Every gradient is shifted, if there is a shift.
    """
    lane = (feed.pick, feed.mask, *start.values(), *shift.values())
    ends = _Descend.apply(quick, tuple(start), feed.x, feed.y, rate, *lane)  # type: ignore[no-untyped-call]
    return dict(zip(start, ends, strict=True))


class _Descend(torch.autograd.Function):
    """A whole training as one operation, so that a vmap hands its clients over undisguised."""

    @staticmethod
    def forward(
        quick: Quick, names: tuple[str, ...], x: Tensor, y: Tensor, rate: Tensor, *lane: Tensor
    ) -> tuple[Tensor, ...]:
        pick, mask, *weights = (t[None] for t in lane)
        ends = _descended(quick, Feed(x, y, pick, mask), rate, *_named(names, weights))
        return tuple(w[0] for w in ends.values())

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Nothing is kept: nobody differentiates through a whole training."""

    @staticmethod
    def vmap(
        info: object, dims: tuple[int | None, ...], quick: Quick, names: tuple[str, ...],
        x: Tensor, y: Tensor, rate: Tensor, *lane: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:  # fmt: skip
        if any(dim is not None for dim in dims[2:5]):
            raise SequentialOnly("the clients of a block have different pools of rows or learning rates")
        pick, mask, *weights = in_lanes(info, lane, dims[5:])
        ends = _descended(quick, Feed(x, y, pick, mask), rate, *_named(names, weights))
        return tuple(ends.values()), (0,) * len(ends)


def _named(names: tuple[str, ...], weights: list[Tensor]) -> tuple[Stack, Stack]:
    """The start, and the shift if there is one."""
    return dict(zip(names, weights, strict=False)), dict(zip(names, weights[len(names) :], strict=False))


def _descended(quick: Quick, feed: Feed, rate: Tensor, start: Stack, shift: Stack) -> Stack:
    with torch.no_grad():
        if rate.is_cuda:
            return descended(quick.network, feed, rate, start, shift, Pace(quick.momentum, quick.mu, quick.inner))
        descent = Descent(float(rate), quick.momentum, quick.mu)
        return (_in_turn if quick.layers.alone else _together)(quick, feed, descent, start, shift)


def _in_turn(quick: Quick, feed: Feed, descent: Descent, start: Stack, shift: Stack) -> Stack:
    """The weights of all lanes, one after the other; engines fill small blocks up with copies, which cost nothing."""
    ends: list[Params] = []
    parts = feed.pick, feed.mask, *start.values(), *shift.values()
    shares = feed.shares()
    for lane in range(len(feed.pick)):
        twins = (i for i in range(lane) if all(torch.equal(part[i], part[lane]) for part in parts))
        twin = next(twins, None)
        own = ({name: w[lane] for name, w in part.items()} for part in (start, shift))
        ends.append(_alone(quick, feed, lane, shares[lane], descent, *own) if twin is None else ends[twin])
    return stack(ends)


def _alone(
    quick: Quick, feed: Feed, lane: int, shares: Tensor, descent: Descent, start: Params, shift: Params
) -> Params:
    """The weights of one lane; it sees no padding."""
    own = {name: _own(w)[None] for name, w in start.items()}
    weights = {name: Weight.at(w, descent, shift[name][None] if shift else None) for name, w in own.items()}
    for pick, share, real in zip(feed.pick[lane], shares, feed.mask[lane].sum(1).tolist(), strict=True):
        if real:
            _step(quick, feed, pick[:real], share[:real], weights)
    return {name: w.now[0].contiguous() for name, w in weights.items()}


def _own(weight: Tensor) -> Tensor:
    return weight.clone(memory_format=torch.channels_last) if weight.dim() == 4 else weight.clone()


def _together(quick: Quick, feed: Feed, descent: Descent, start: Stack, shift: Stack) -> Stack:
    """The weights of all lanes, moved by the same products; a lane drops out after its last real batch."""
    steps = feed.mask.any(2).sum(1)
    order = steps.argsort(descending=True, stable=True)
    pick, share = (t[order].transpose(0, 1) for t in (feed.pick, feed.shares()))
    weights = {name: Weight.at(w[order], descent, shift[name][order] if shift else None) for name, w in start.items()}
    for begin, end, lanes in _phases(steps[order].tolist()):
        who = slice(lanes) if lanes >= LEAST else [*range(lanes), 0, 0][:LEAST]
        part = {name: w.pick(who) for name, w in weights.items()}
        for step in range(begin, end):
            _step(quick, feed, pick[step, who].flatten(), share[step, who].flatten(), part)
        if lanes < LEAST:
            for name, weight in weights.items():
                weight.put(part[name], lanes)
    back = order.argsort()
    return {name: w.now[back] for name, w in weights.items()}


def _phases(steps: list[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of steps (begin, end, lanes) in which the first `lanes` lanes are at work; `steps` falls."""
    begin = 0
    for lanes in range(len(steps), 0, -1):
        if steps[lanes - 1] > begin:
            yield begin, steps[lanes - 1], lanes
            begin = steps[lanes - 1]


def _step(quick: Quick, feed: Feed, pick: Tensor, share: Tensor, weights: Weights) -> None:
    """One step of every lane: a row counts by its share in its batch."""
    raise_if_cancelled()
    x, y = feed.x.index_select(0, pick), feed.y.index_select(0, pick).clamp_(min=0)
    quick.layers.descend(quick.network.inputs(x), y, share, weights)
