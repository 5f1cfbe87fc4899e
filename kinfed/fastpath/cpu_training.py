"""Mini-batch SGD of several clients at once on a CPU, for networks of plain layers."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.errors import raise_if_cancelled
from kinfed.fastpath.layers import Layers, UpdateRule, Weight, Weights
from kinfed.fastpath.stages import SGD, Schedule
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
            _step(network, schedule, pick[:real], sample_weight[:real], weights, key[None])
    return {name: w.now[0].contiguous() for name, w in weights.items()}


def _train_together(network: LayeredNetwork, schedule: Schedule, rule: UpdateRule, start: Stack, shift: Stack) -> Stack:
    """The weights of all lanes, updated by the same products; a lane drops out after its last real batch."""
    steps = schedule.mask.any(2).sum(1)
    order = steps.argsort(descending=True, stable=True)
    whole = schedule.pick, schedule.sample_weights(), schedule.keys
    pick, sample_weight, keys = (t[order].transpose(0, 1) for t in whole)
    own = {name: network.layers.lay_out(name, w[order]) for name, w in start.items()}
    weights = {name: Weight.at(w, rule, shift[name][order] if shift else None) for name, w in own.items()}
    for begin, end, lanes in _phases(steps[order].tolist()):
        active = slice(lanes) if lanes >= LEAST else [*range(lanes), 0, 0][:LEAST]
        part = {name: w.select(active) for name, w in weights.items()}
        for step in range(begin, end):
            samples = pick[step, active].flatten(), sample_weight[step, active].flatten()
            _step(network, schedule, *samples, part, keys[step, active])
        if lanes < LEAST:
            for name, weight in weights.items():
                weight.put(part[name], lanes)
    back = order.argsort()
    return {name: w.now[back].contiguous() for name, w in weights.items()}


def _phases(steps: list[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of steps (begin, end, lanes) in which the first `lanes` lanes train; `steps` falls."""
    begin = 0
    for lanes in range(len(steps), 0, -1):
        if steps[lanes - 1] > begin:
            yield begin, steps[lanes - 1], lanes
            begin = steps[lanes - 1]


def _step(
    network: LayeredNetwork, schedule: Schedule, pick: Tensor, sample_weight: Tensor, weights: Weights, keys: Tensor
) -> None:
    """One step of every lane."""
    raise_if_cancelled()
    x, y = schedule.x.index_select(0, pick), schedule.y.index_select(0, pick).clamp_(min=0)
    network.layers.sgd_step(network.inputs(x, keys), y, sample_weight, weights, keys)
