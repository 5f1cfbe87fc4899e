"""Mini-batch SGD of several clients at once on a CPU, for networks of plain layers."""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.errors import raise_if_cancelled
from kinfed.fastpath.layers import Layers
from kinfed.fastpath.stages import SGD, Schedule
from kinfed.fastpath.weights import UpdateRule, Weight, Weights
from kinfed.params import Params, Stack, stack

LEAST = 3  # lanes; products of one lane, and convolutions of two, round differently from those of more


class LayeredNetwork(NamedTuple):
    """A network that is a sequence of plain layers."""

    layers: Layers
    inputs: Callable[[Tensor, Tensor], Tensor]  # samples of all lanes and their keys


def train_lanes(network: LayeredNetwork, schedule: Schedule, lr: Tensor, start: Stack, shift: Stack, sgd: SGD) -> Stack:
    """The weights of all lanes after all their batches; the shift is added to every gradient, if there is one."""
    rule = UpdateRule(float(lr), sgd.momentum, sgd.pull, sgd.anchor)
    train = _train_in_turn if network.layers.has_convolutions else _train_together
    return train(network, schedule, rule, start, shift)


def _train_in_turn(network: LayeredNetwork, schedule: Schedule, rule: UpdateRule, start: Stack, shift: Stack) -> Stack:
    """The weights of all lanes, one after the other; engines fill small blocks up with copies, which cost nothing."""
    ends: list[Params] = []
    parts = schedule.pick, schedule.mask, schedule.keys, *start.values(), *shift.values()
    sample_weights = schedule.sample_weights()
    for lane in range(len(schedule.pick)):
        twins = (i for i in range(lane) if all(torch.equal(part[i], part[lane]) for part in parts))
        twin = next(twins, None)
        own = ({name: w[lane] for name, w in part.items()} for part in (start, shift))
        end = _train_lane(network, schedule, lane, sample_weights[lane], rule, *own) if twin is None else ends[twin]
        ends.append(end)
    return stack(ends)


def _train_lane(
    network: LayeredNetwork, schedule: Schedule, lane: int, sample_weights: Tensor, rule: UpdateRule, start: Params,
    shift: Params,
) -> Params:  # fmt: skip
    """The weights of one lane; it sees no padding."""
    own = {name: network.layers.lay_out(name, w[None]) for name, w in start.items()}
    weights = {name: Weight.at(w, rule, shift[name][None] if shift else None) for name, w in own.items()}
    counts = schedule.mask[lane].sum(1).tolist()
    for pick, sample_weight, key, real in zip(
        schedule.pick[lane], sample_weights, schedule.keys[lane], counts, strict=True
    ):
        if real:
            _step(network, schedule, pick[None, :real], sample_weight[:real], weights, key[None, None])
    return {name: w.now[0].contiguous() for name, w in weights.items()}


def _train_together(network: LayeredNetwork, schedule: Schedule, rule: UpdateRule, start: Stack, shift: Stack) -> Stack:
    """The weights of all lanes, updated by the same products; a lane drops out after its last real batch."""
    steps = schedule.mask.any(2).sum(1)
    order = steps.argsort(descending=True, stable=True)
    whole = schedule.pick, schedule.sample_weights(), schedule.keys
    pick, sample_weight, keys = (t[order].transpose(0, 1) for t in whole)
    own = {name: network.layers.lay_out(name, w[order]) for name, w in start.items()}
    weights = {name: Weight.at(w, rule, shift[name][order] if shift else None) for name, w in own.items()}
    lowest = weights.get(network.layers.lowest)
    at_once = network.layers.count_steps(lowest, schedule.pick.shape[2]) if lowest else 1
    take = _step if at_once == 1 else _take_steps
    for begin, end, lanes in _phases(steps[order].tolist(), at_once):
        count = lanes.stop - lanes.start
        active = lanes if count >= LEAST else [*range(lanes.start, lanes.stop), lanes.start, lanes.start][:LEAST]
        part = {name: w.select(active) for name, w in weights.items()}
        for step in range(begin, end, at_once):
            some = slice(step, min(step + at_once, end))
            take(network, schedule, pick[some, active], sample_weight[some, active], part, keys[some, active])
        if count < LEAST:
            for name, weight in weights.items():
                weight.put(part[name], lanes)
    back = order.argsort()
    return {name: w.now[back].contiguous() for name, w in weights.items()}


def _phases(steps: list[int], at_once: int) -> Iterator[tuple[int, int, slice]]:
    """Stretches of steps (begin, end) and the lanes that train in them, all of them to its end; `steps` falls.

    With several steps at once a stretch has so many, or those that are left to its lanes: where it ends depends on
    their own steps alone, not on those of other lanes.
    """
    if at_once == 1:
        yield from ((begin, end, slice(0, lanes)) for begin, end, lanes in _split_by_lanes(steps))
        return
    for begin in range(0, max(steps, default=0), at_once):
        first = 0
        for end, group in groupby(min(count, begin + at_once) for count in steps if count > begin):
            lanes = slice(first, first + len(list(group)))
            yield begin, end, lanes
            first = lanes.stop


def _split_by_lanes(steps: list[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of steps (begin, end, lanes) in which the first `lanes` lanes train."""
    begin = 0
    for lanes in range(len(steps), 0, -1):
        if steps[lanes - 1] > begin:
            yield begin, steps[lanes - 1], lanes
            begin = steps[lanes - 1]


def _step(
    network: LayeredNetwork, schedule: Schedule, pick: Tensor, sample_weight: Tensor, weights: Weights, keys: Tensor
) -> None:
    """One step of every lane; pick and weights: [1, lanes, b], keys: [1, lanes]."""
    raise_if_cancelled()
    pick, sample_weight, keys = pick.flatten(), sample_weight.flatten(), keys[0]
    x, y = schedule.x.index_select(0, pick), schedule.y.index_select(0, pick).clamp_(min=0)
    network.layers.sgd_step(network.inputs(x, keys), y, sample_weight, weights, keys)


def _take_steps(
    network: LayeredNetwork, schedule: Schedule, pick: Tensor, sample_weight: Tensor, weights: Weights, keys: Tensor
) -> None:
    """Several steps of every lane, whose samples nothing augments; pick and weights: [steps, lanes, b]."""
    raise_if_cancelled()
    by_lane = pick.transpose(0, 1)
    x = network.inputs(schedule.x.index_select(0, by_lane.flatten()), keys[0]).view(
        *by_lane.shape, *schedule.x.shape[1:]
    )
    network.layers.sgd_steps(x, schedule.y[by_lane].clamp_(min=0), sample_weight.transpose(0, 1), weights, keys)
