"""Local training of any network by autograd: a block of clients at once, or one client after the other.

At once, a `vmap` of the forward pass makes the losses of all clients, and autograd takes the gradient of their sum. All
weights of a client are one row of a matrix, which the optimiser updates in place; so on a GPU a CUDA graph of one step
is replayed for all steps, whoever trains. One after the other, which is faster for convolutions on a CPU, a module of
torch trains on batches without padding, as in a plain loop.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from kinfed.client import Batch
from kinfed.cuda_graphs import CAPTURING, CudaGraphs
from kinfed.errors import raise_if_cancelled
from kinfed.fastpath.optimiser import Optimiser, OptimiserState, RowLayout, find_orders
from kinfed.gpu_memory import room_on
from kinfed.keys import fold
from kinfed.models.network import WEIGHT, Network, take_gradients
from kinfed.params import NOTHING, Params, Stack, stack
from kinfed.targets import fill_unknown, is_known

LEAST = 3  # lanes; products of fewer round differently
MOST = 2  # trainings whose memory is kept for their graphs
TOGETHER, SMALL = 5, 2**18  # steps in a graph of networks with fewer weights; otherwise one
SHARE = 0.6  # of the memory that this process may still take on a GPU, for a step
MANY = 2**21  # bytes of activations of a client's step: about what a core's caches hold
SEQUENTIAL_KINDS = (
    nn.RNNBase,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


@dataclass(frozen=True)
class GradientRule:
    """Which gradient is taken: of a network's loss, perhaps over labelled samples alone, or Per-FedAvg's of pairs."""

    network: Network
    labelled: bool = False  # samples without a label have no part in it
    inner_lr: float = 0.0  # of the look-ahead step on the first samples of a batch; 0: none
    inner_size: int = 0  # of these

    def gradients(self, names: tuple[str, ...], moved: int, batch: "LaneBatch", values: list[Tensor]) -> list[Tensor]:
        """Of all lanes by the first `moved` values, and then the buffers that they end with."""
        if not self.inner_lr:
            return self.at(names, moved, batch, values)
        first, second = batch.split(self.inner_size)
        inner = self.at(names, moved, first, values)[:moved]
        ahead = [w - self.inner_lr * g for w, g in zip(values, inner, strict=False)]
        return self.at(names, moved, second, [*ahead, *values[moved:]])

    def at(self, names: tuple[str, ...], moved: int, batch: "LaneBatch", values: list[Tensor]) -> list[Tensor]:
        """The same without looking ahead."""
        x, y, mask, key = batch.x, batch.y, batch.mask, batch.key
        if self.labelled:
            mask, y = mask & is_known(y.flatten(0, 1)).view(mask.shape), fill_unknown(y)
        if batch.weight is not None:
            names, values = (*names, WEIGHT), [*values, batch.weight]
        return list(take_gradients(self.network, names, moved, x, y, mask, key, *values))


@dataclass(frozen=True)
class LaneBatch:
    """A mini-batch of all lanes."""

    x: Tensor  # [lanes, b, ...]
    y: Tensor  # [lanes, b]
    mask: Tensor  # [lanes, b]
    key: Tensor  # [lanes]
    weight: Tensor | None = None  # [lanes, b]; None: all samples count the same

    def split(self, size: int) -> "tuple[LaneBatch, LaneBatch]":
        """The first samples, and the rest."""
        parts = (slice(size), slice(size, None))
        first, second = (
            LaneBatch(
                self.x[:, part],
                self.y[:, part],
                self.mask[:, part],
                fold(self.key, i),
                None if self.weight is None else self.weight[:, part],
            )
            for i, part in enumerate(parts)
        )
        return first, second


@dataclass(frozen=True)
class Steps:
    """All mini-batches of some lanes; a lane's real batches come first, and in a batch its real samples."""

    x: Tensor  # the pool of samples
    y: Tensor
    pick: Tensor  # [lanes, steps, b] indices into the pool
    mask: Tensor  # [lanes, steps, b]
    key: Tensor  # [lanes, steps]
    lr: Tensor  # [lanes, steps]; 0: the lane does not move
    weight: Tensor | None = None  # [lanes, steps, b] of each sample in the loss; None: 1

    def parts(self) -> Params:
        """All that lanes have of their own, by name."""
        parts = {"pick": self.pick, "mask": self.mask, "key": self.key, "lr": self.lr}
        return parts if self.weight is None else parts | {"weight": self.weight}

    def steps_first(self) -> "Steps":
        """The same with a step's numbers side by side in memory."""
        parts = {name: t.transpose(0, 1).contiguous().transpose(0, 1) for name, t in self.parts().items()}
        return Steps(self.x, self.y, **parts)

    def lanes(self, which: slice | Tensor) -> "Steps":
        """Those of some lanes."""
        return Steps(self.x, self.y, **{name: t[which] for name, t in self.parts().items()})

    def at(self, steps: slice, lanes: int) -> Params:
        """Some steps of the first lanes, steps first, as inputs of a CUDA graph."""
        return {name: t[:lanes, steps].transpose(0, 1) for name, t in self.parts().items()}


@dataclass(frozen=True)
class LaneTraining:
    """The training of some lanes: their weights as rows of a matrix, and buffers that no gradient moves."""

    rule: GradientRule
    layout: RowLayout  # of the weights that move
    state: OptimiserState
    buffers: dict[str, Tensor]  # [lanes, ...] each
    fixed: Stack  # weights that do not move
    pool: tuple[Tensor, Tensor]

    def first(self, lanes: int) -> "LaneTraining":
        """The first lanes, in the same memory."""
        buffers, fixed = ({name: t[:lanes] for name, t in part.items()} for part in (self.buffers, self.fixed))
        return LaneTraining(self.rule, self.layout, self.state.first(lanes), buffers, fixed, self.pool)

    @property
    def is_small(self) -> bool:
        """Whether launching a step takes about as long as running it."""
        return self.state.weights.shape[1] < SMALL

    def take_steps(self, inputs: Params) -> Params:
        """Some steps; a function that a CUDA graph can capture."""
        for step in range(len(inputs["lr"])):
            self.step({name: t[step] for name, t in inputs.items()})
        return {}

    def step(self, inputs: Params) -> None:
        """One step of all lanes."""
        x, y = (t[inputs["pick"]] for t in self.pool)
        batch = LaneBatch(x, y, inputs["mask"], inputs["key"], inputs.get("weight"))
        moved, names = len(self.layout.names), (*self.layout.names, *self.fixed, *self.buffers)
        weights = self.layout.unpack(self.state.weights)
        values = [*weights.values(), *self.fixed.values(), *self.buffers.values()]
        if self.rule.inner_lr and self.state.moments:
            answer = self._step_pair(names, batch, values, inputs["lr"])
        else:
            answer = self.rule.gradients(names, moved, batch, values)
            self.state.step(self.layout.pack(answer[:moved]), inputs["lr"])
        for buffer, now in zip(self.buffers.values(), answer[moved:], strict=True):
            buffer.copy_(now)

    def _step_pair(self, names: tuple[str, ...], batch: LaneBatch, values: list[Tensor], lr: Tensor) -> list[Tensor]:
        """A step that looks ahead, by one momentum for both of its mini-batches; without a second, nothing moves."""
        (first, second), moved = batch.split(self.rule.inner_size), len(self.layout.names)
        (moment,), live = self.state.moments, second.mask.any(1)
        before = moment.clone()
        moment.mul_(self.state.optimiser.momentum).add_(
            self.layout.pack(self.rule.at(names, moved, first, values)[:moved])
        )
        ahead = self.layout.unpack(self.state.weights - self.rule.inner_lr * moment)
        answer = self.rule.at(names, moved, second, [*ahead.values(), *values[moved:]])
        self.state.step(self.layout.pack(answer[:moved]), lr * live)
        moment.copy_(torch.where(live[:, None], moment, before))
        return answer

    def restart(self, weights: Tensor, shift: Tensor | None, buffers: Stack, fixed: Stack) -> None:
        """Starts anew from other weights, in the same memory."""
        self.state.restart(weights, shift)
        for own, other in ((self.buffers, buffers), (self.fixed, fixed)):
            for name, t in own.items():
                t.copy_(other[name])

    def end(self) -> Stack:
        """What training has led to, in memory of its own."""
        return {
            name: w.clone(memory_format=torch.contiguous_format)
            for name, w in self.layout.unpack(self.state.weights).items()
        } | {name: b.clone() for name, b in self.buffers.items()}


@dataclass
class TrainingGraphs:
    """Trainings whose memory is kept, by all that they depend on, and the CUDA graphs of their steps."""

    trainings: dict[object, LaneTraining] = field(default_factory=dict)
    graphs: CudaGraphs = field(default_factory=lambda: CudaGraphs(8 * MOST))
    numbers: dict[object, int] = field(default_factory=dict)  # of trainings, which graphs are kept by
    bytes_each: dict[object, int] = field(default_factory=dict)  # of a lane in a step
    at_once: dict[object, int] = field(default_factory=dict)  # lanes; another number would need other graphs

    def keep(self, key: object, training: LaneTraining) -> int:
        """Keeps a training, of which this is the number; the oldest goes."""
        self.trainings[key] = training
        number = self.numbers.setdefault(key, len(self.numbers))
        for old in list(self.trainings)[:-MOST]:
            del self.trainings[old]
            self.graphs.discard_all(lambda known, old=old: known[0] == self.numbers[old])
        return number

    def clear(self) -> None:
        """Gives all memory back."""
        self.trainings.clear()
        self.at_once.clear()
        self.graphs.clear()


@dataclass(frozen=True)
class AutogradPlan:
    """A training by autograd."""

    rule: GradientRule
    optimiser: Optimiser
    in_turn: bool  # one client after the other
    graphs: TrainingGraphs | None = None

    @property
    def batches_a_step(self) -> int:
        """Mini-batches that a step takes: two where it looks ahead."""
        return 2 if self.rule.inner_lr else 1


def plan_autograd(
    rule: GradientRule, device: torch.device, optimiser: Optimiser, graphs: TrainingGraphs | None, activations: int = 0
) -> AutogradPlan:
    """How such a training runs best: on a CPU convolutions and recurrent layers gain nothing from other clients.

    Nor do networks of which a client's step keeps many activations, in bytes, and a block would keep them all.
    """
    gains_nothing = activations > MANY or any(isinstance(p, SEQUENTIAL_KINDS) for p in rule.network.template.modules())
    is_usual = type(rule.network).forward is Network.forward and not rule.inner_lr
    return AutogradPlan(rule, optimiser, device.type == "cpu" and gains_nothing and is_usual, graphs)


def train_lanes(plan: AutogradPlan, steps: Steps, start: Stack, shift: Stack, fixed: Stack) -> Stack:
    """The weights and buffers of all lanes after all their batches."""
    plan.rule.network.check_padding(steps.x[:1])
    with torch.no_grad():
        if plan.in_turn:
            return _train_in_turn(plan, steps, start, shift, fixed)
        parts = range(0, len(steps.pick), at_once := _lanes_at_once(plan, steps, start, fixed))
        ends = []
        for begin in parts:
            some = slice(begin, begin + at_once)
            own = ({name: t[some] for name, t in part.items()} for part in (start, shift, fixed))
            ends.append(_train_together(plan, steps.lanes(some), *own))
        return ends[0] if len(ends) == 1 else {name: torch.cat([end[name] for end in ends]) for name in ends[0]}


def _train_together(plan: AutogradPlan, steps: Steps, start: Stack, shift: Stack, fixed: Stack) -> Stack:
    """The weights of all lanes, updated by the same operations; those that are done drop out, at least three stay."""
    taken = steps.mask.any(2).sum(1)
    order, lasting = taken.argsort(descending=True, stable=True), taken.tolist()
    is_sorted = lasting == sorted(lasting, reverse=True)  # as engines cut blocks they are, and nothing is copied
    if not is_sorted:
        start, shift, fixed = ({name: t[order] for name, t in part.items()} for part in (start, shift, fixed))
        steps = steps.lanes(order)
    training, number = _prepare(plan, steps, start, shift, fixed)
    together = TOGETHER if training.is_small else 1
    steps = steps.steps_first()
    parts: dict[int, LaneTraining] = {}
    for begin, end, active in _phases(sorted(lasting, reverse=True), plan.graphs is not None):
        part = parts.setdefault(active, training.first(active))
        for few in _groups(begin, end, together if plan.graphs else 1):
            raise_if_cancelled()
            inputs = steps.at(few, active)
            if plan.graphs:
                plan.graphs.graphs.run((number, active), part.take_steps, inputs)
            else:
                part.take_steps(inputs)
    trained, back = training.end(), order.argsort()
    return trained if is_sorted else {name: t[back] for name, t in trained.items()}


def _prepare(plan: AutogradPlan, steps: Steps, start: Stack, shift: Stack, fixed: Stack) -> tuple[LaneTraining, int]:
    """A training at its start; where graphs are kept, one of the same shapes starts anew."""
    layout = _lay_out(plan.rule.network, start)
    rows, shifts = (layout.pack([part[name] for name in layout.names]) if part else None for part in (start, shift))
    assert rows is not None
    kinds = bool(shift), tuple(fixed), steps.weight is None
    held = {**fixed, **start}
    buffers = {name: held[name] for name in held if name in plan.rule.network.buffers}  # fixed ones move in a pass, too
    fixed = {name: w for name, w in fixed.items() if name not in buffers}
    key = plan.rule, plan.optimiser, steps.x.data_ptr(), steps.pick.shape[::2], rows.shape, *kinds
    known = plan.graphs.trainings.pop(key, None) if plan.graphs else None
    if isinstance(known, LaneTraining):
        known.restart(rows, shifts, buffers, fixed)
        training = known
    else:
        state = OptimiserState.at(plan.optimiser, rows, shifts)
        buffers, fixed = ({name: t.clone() for name, t in part.items()} for part in (buffers, fixed))
        training = LaneTraining(plan.rule, layout, state, buffers, fixed, (steps.x, steps.y))
    return training, plan.graphs.keep(key, training) if plan.graphs else 0


def _lay_out(network: Network, start: Stack) -> RowLayout:
    """How the weights that move lie in a row."""
    shapes = {name: start[name].shape[1:] for name in network.weights if name in start}
    is_cuda = any(w.is_cuda for w in start.values())
    return RowLayout(shapes, find_orders(network.template, is_cuda))


def _phases(taken: list[int], few_sizes: bool) -> Iterator[tuple[int, int, int]]:
    """Stretches of steps (begin, end, lanes that take part); `taken` falls. Few sizes: halves, quarters, and so on."""
    lanes = len(taken)
    halves = [-(-lanes // 2**i) for i in range(lanes.bit_length())]
    sizes = sorted({n for n in (halves if few_sizes else range(lanes + 1)) if n >= LEAST} | {lanes})
    begin = 0
    while begin < taken[0]:
        at = bisect_left(sizes, sum(n > begin for n in taken))
        end = taken[sizes[at - 1]] if at else taken[0]
        yield begin, end, sizes[at]
        begin = end


def _groups(begin: int, end: int, size: int) -> Iterator[slice]:
    """Steps from `begin` on, so many at a time, then those that are left one by one."""
    whole = begin + (end - begin) // size * size
    yield from (slice(step, step + size) for step in range(begin, whole, size))
    yield from (slice(step, step + 1) for step in range(whole, end))


def _lanes_at_once(plan: AutogradPlan, steps: Steps, start: Stack, fixed: Stack) -> int:
    """How many lanes a GPU has memory for; all on a CPU, whose blocks are small."""
    lanes = len(steps.pick)
    if not steps.x.is_cuda or torch.cuda.is_current_stream_capturing() or lanes <= LEAST:
        return lanes
    key = plan.rule, plan.optimiser, steps.pick.shape[2], steps.x.shape[1:]
    graphs = plan.graphs or TrainingGraphs()
    if key not in graphs.bytes_each:
        graphs.bytes_each[key] = _measure_lane(plan, steps, start, fixed)
    if (key, lanes) not in graphs.at_once:
        most = max(LEAST, int(SHARE * room_on(steps.x.device) / graphs.bytes_each[key]))
        graphs.at_once[key, lanes] = -(-lanes // -(-lanes // most))
    return graphs.at_once[key, lanes]


def _measure_lane(plan: AutogradPlan, steps: Steps, start: Stack, fixed: Stack) -> int:
    """Bytes of a lane in a step, measured with a few."""
    few = slice(LEAST)
    own, held = ({name: t[few] for name, t in part.items()} for part in (start, fixed))
    with CAPTURING:
        torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    training, _ = _prepare(AutogradPlan(plan.rule, plan.optimiser, False), steps.lanes(few), own, {}, held)
    training.take_steps(steps.lanes(few).at(slice(1), LEAST))
    return max(1, (torch.cuda.max_memory_allocated() - before) // LEAST)


def _train_in_turn(plan: AutogradPlan, steps: Steps, start: Stack, shift: Stack, fixed: Stack) -> Stack:
    """The weights of all lanes, one after the other; engines fill small blocks up with copies, which cost nothing."""
    ends: list[Params] = []
    every = (*steps.parts().values(), *start.values(), *shift.values(), *fixed.values())
    for lane in range(len(steps.pick)):
        twins = (i for i in range(lane) if all(torch.equal(part[i], part[lane]) for part in every))
        twin = next(twins, None)
        own = ({name: t[lane] for name, t in part.items()} for part in (start, shift, fixed))
        ends.append(train_module(plan, _lane_batches(steps, lane), *own) if twin is None else ends[twin])
    return stack(ends)


def _lane_batches(steps: Steps, lane: int) -> Iterator[tuple[Batch, Tensor]]:
    """The real samples of the batches of one lane, and the learning rate of each."""
    for step, real in enumerate(steps.mask[lane].sum(1).tolist()):
        if real:
            raise_if_cancelled()
            pick, mask = steps.pick[lane, step, :real], steps.mask[lane, step, :real]
            weight = None if steps.weight is None else steps.weight[lane, step, :real]
            batch = Batch(steps.x[pick], steps.y[pick], mask, mask[0], True, steps.key[lane, step], weight)
            yield batch, steps.lr[lane, step]


@dataclass(frozen=True)
class ModuleTraining:
    """The training of one client: a module whose weights are parts of the optimiser's one row."""

    rule: GradientRule
    module: nn.Module
    parameters: list[nn.Parameter]  # that move
    layout: RowLayout
    state: OptimiserState

    def step(self, batch: Batch, lr: Tensor) -> None:
        """One step on a batch without padding."""
        network = self.rule.network
        if self.rule.labelled:
            batch = batch._replace(y=fill_unknown(batch.y), mask=is_known(batch.y))
        buffers = dict(self.module.named_buffers()) if network.needs_operations(batch) else {}
        with torch.enable_grad():
            with network.operations(batch, buffers) as operations:
                output = self.module(network.inputs(batch.x))
            loss = network.mean_loss(output, batch)
            gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)  # 0: unused
        if operations:
            for name, now in operations.moved.items():
                buffers[name].copy_(now)
        self.state.step(self.layout.pack([g[None] for g in gradients]), lr[None])


def train_module(
    plan: AutogradPlan, batches: Iterator[tuple[Batch, Tensor]], start: Params, shift: Mapping[str, Tensor] = NOTHING,
    fixed: Mapping[str, Tensor] = NOTHING,
) -> Params:  # fmt: skip
    """The weights and buffers of one client after a step on each of these batches, which have no padding."""
    network = plan.rule.network
    moving = [name for name in network.weights if name in start]
    with torch.no_grad(), network.borrow(network.template) as module:
        named = dict(module.named_parameters())
        own: Params = {**named, **dict(module.named_buffers())}
        layout = RowLayout({name: start[name].shape for name in moving})
        with _keep_buffers(module), _hold(own, {**fixed, **start}, layout) as row:
            shifts = layout.pack([shift[name][None] for name in moving]) if shift else None
            state = OptimiserState.at(plan.optimiser, row, shifts)
            training = ModuleTraining(plan.rule, module, [named[name] for name in moving], layout, state)
            for batch, lr in batches:
                training.step(batch, lr)
            own |= dict(module.named_buffers())  # a forward pass may have put others there
            return {name: own[name].detach().clone() for name in start}


@contextmanager
def _keep_buffers(module: nn.Module) -> Iterator[None]:
    """After it a module has its own buffers again, should a forward pass have put others in their place."""
    before = [(part, dict(part._buffers)) for part in module.modules() if part._buffers]
    try:
        yield
    finally:
        for part, buffers in before:
            part._buffers.update(buffers)


@contextmanager
def _hold(own: Params, values: Params, layout: RowLayout) -> Iterator[Tensor]:
    """Inside it a module's own parameters and buffers have these values; those that move are parts of one row."""
    row = layout.pack([values[name][None] for name in layout.names])
    parts = layout.unpack(row)
    held = dict(own)
    before = {name: t.data for name, t in held.items()}
    try:
        for name, t in own.items():
            value = parts[name][0] if name in parts else values.get(name, t)
            t.data = value if name in parts else value.detach().clone().to(row.device)
        yield row
    finally:
        for name, value in before.items():
            held[name].data = value


__all__ = ["AutogradPlan", "GradientRule", "Steps", "TrainingGraphs", "plan_autograd", "train_lanes", "train_module"]
