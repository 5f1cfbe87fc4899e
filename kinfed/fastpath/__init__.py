"""The fast path of local training: mini-batch SGD of a block of clients without autograd.

`plan_training` says whether it supports a training, or in words why not; `train` trains by such a plan. On a CPU the
network must be a sequence of plain layers, on a GPU one of stages, for which there are Triton kernels. Nothing else of
the package is used from outside: engines own a `StepGraphs` and hand it to their clients.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, cast

import torch
from torch import Tensor

from kinfed.errors import SequentialOnly
from kinfed.fastpath import autograd_training, cpu_training, gpu_training
from kinfed.fastpath.autograd_training import (
    AutogradPlan,
    GradientRule,
    Steps,
    TrainingGraphs,
    plan_autograd,
    train_module,
)
from kinfed.fastpath.cpu_training import LEAST, LayeredNetwork
from kinfed.fastpath.gpu_training import StepGraphs, has_kernels
from kinfed.fastpath.joint_training import JointTraining, begin_round, find_step_graphs
from kinfed.fastpath.layers import Layers
from kinfed.fastpath.optimiser import Optimiser, OptimiserName
from kinfed.fastpath.sequences import augment_lanes, find_augmentation, parse_layers
from kinfed.fastpath.stages import SGD, Schedule, Stage, parse_stages
from kinfed.models import Model, Network
from kinfed.models.inputs import Inputs
from kinfed.params import NOTHING, Params, Stack, lanes_first


@dataclass(frozen=True, eq=False)
class ParsedNetwork:
    """A classifier, and its layers and stages if it consists of such."""

    network: Network
    layers: Layers | None  # on a CPU
    stages: tuple[Stage, ...]  # on a GPU
    augmentation: Inputs = field(default_factory=Inputs)  # of samples in training

    @property
    def kind(self) -> Hashable:
        """What networks share whose stages and samples are alike: they can train in one block."""
        network = self.network
        own = None if type(network).inputs is Network.inputs else id(network)
        return self.stages, self.augmentation, network.mean, network.std, own

    def inputs(self, x: Tensor, keys: Tensor) -> Tensor:
        """Samples [lanes · b, ...] as the network trains on them, augmented by the keys [lanes]."""
        return augment_lanes(self.network.inputs(x), self.augmentation, keys)


@dataclass(frozen=True)
class FastPlan:
    """A training that the fast path supports."""

    network: ParsedNetwork
    sgd: SGD
    graphs: StepGraphs | None = None  # where CUDA graphs of steps are kept; None: steps are launched one by one

    @property
    def batches_a_step(self) -> int:
        """Mini-batches that a step takes: two where it looks ahead."""
        return 2 if self.sgd.inner_lr else 1


@dataclass(frozen=True)
class NotSupported:
    """Why the fast path does not support a training."""

    reason: str

    def __bool__(self) -> bool:
        return False


def plan_training(
    network: Network | None, device: torch.device, sgd: SGD, graphs: StepGraphs | None = None, axes: int = 1
) -> FastPlan | NotSupported:
    """How the fast path trains this network there by SGD on samples of so many axes, or why it does not.

    No network stands for a gradient of some other origin.
    """
    if network is None:
        return NotSupported("the gradient is not that of a network's loss")
    if sgd.inner_lr and (device.type != "cuda" or sgd.momentum):
        return NotSupported("look-ahead steps are for GPUs, and without momentum")
    parsed = parse(network)
    reason = _obstacle(parsed, device, axes)
    return NotSupported(reason) if reason else FastPlan(parsed, sgd, graphs)


def _obstacle(parsed: ParsedNetwork, device: torch.device, axes: int = 1) -> str:
    """What a network lacks for the fast path on a device; empty where it lacks nothing."""
    if device.type == "cuda":
        return "" if parsed.stages and has_kernels() else "there are no kernels for this network"
    if device.type != "cpu" or not parsed.layers:
        return "the network is not a sequence of plain layers"
    return "a linear layer takes samples of several axes" if axes > 1 and parsed.layers.for_vectors else ""


def supports(network: Network, device: torch.device) -> bool:
    """Whether the fast path can train this network there."""
    return not _obstacle(parse(network), device)


@lru_cache(maxsize=64)
def parse(network: Network) -> ParsedNetwork:
    """The network as the fast path sees it; one with a loss, forward or gradient of its own has no layers for it."""
    own = type(network)
    usual = isinstance(network, Model) and network.task.is_plain() and own.loss_of is Model.loss_of
    usual = usual and own.forward is Network.forward and own.mean_loss is Network.mean_loss
    if not usual or own.compute_gradient is not Network.compute_gradient:
        return ParsedNetwork(network, None, ())
    module = network.template
    return ParsedNetwork(network, parse_layers(module), parse_stages(module), find_augmentation(module))


def explain(network: Network) -> str:
    """How clients train this network in one block on a CPU, in words."""
    if network.refuses:
        return f"sequentially: {network.refuses}"
    layers = parse(network).layers
    if layers is None:
        plan = plan_autograd(GradientRule(network), torch.device("cpu"), Optimiser(), None)
        return f"autograd, {'one client after the other' if plan.in_turn else 'a block in one vmap'}"
    return "fast path, one client after the other" if layers.has_convolutions else "fast path, a block in one product"


def train(
    plan: FastPlan, schedule: Schedule, lr: Tensor, start: Params, shift: Mapping[str, Tensor] = NOTHING
) -> Params:
    """The weights of one client after all its batches; inside a vmap, those of all its clients at once.

    The shift is added to every gradient, if there is one.
    """
    lane = (schedule.pick, schedule.mask, schedule.keys, *start.values(), *shift.values())
    apply = cast("Callable[..., tuple[Tensor, ...]]", _Train.apply)
    return dict(zip(start, apply(plan, tuple(start), schedule.x, schedule.y, lr, *lane), strict=True))


class _Train(torch.autograd.Function):
    """A whole training as one operation, so that a vmap hands over the plain tensors of all its clients."""

    @staticmethod
    def forward(
        plan: FastPlan, names: tuple[str, ...], x: Tensor, y: Tensor, lr: Tensor, *lane: Tensor
    ) -> tuple[Tensor, ...]:
        pick, mask, keys, *weights = (t[None] for t in lane)
        ends = train_lanes(plan, Schedule(x, y, pick, mask, keys), lr, *_by_name(names, weights))
        return tuple(w[0] for w in ends.values())

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Nothing is kept: nobody differentiates through a whole training."""

    @staticmethod
    def vmap(
        info: object, dims: tuple[int | None, ...], plan: FastPlan, names: tuple[str, ...],
        x: Tensor, y: Tensor, lr: Tensor, *lane: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:  # fmt: skip
        if any(dim is not None for dim in dims[2:5]):
            raise SequentialOnly("the clients of a block have different pools of samples or learning rates")
        pick, mask, keys, *weights = lanes_first(info, lane, dims[5:])
        ends = train_lanes(plan, Schedule(x, y, pick, mask, keys), lr, *_by_name(names, weights))
        return tuple(ends.values()), (0,) * len(ends)


class Lane(NamedTuple):
    """What one client trains with; inside a vmap, all its clients."""

    pick: Tensor  # [steps, b] indices into the pool
    mask: Tensor  # [steps, b]
    key: Tensor  # [steps]
    lr: Tensor  # [steps]
    start: Params
    shift: Mapping[str, Tensor] = NOTHING
    fixed: Mapping[str, Tensor] = NOTHING  # weights that do not move
    weight: Tensor | None = None  # [steps, b] of each sample in the loss; None: 1

    def flat(self) -> Params:
        """All tensors by name."""
        weight = {} if self.weight is None else {"weight": self.weight}
        parts = {"start": self.start, "shift": self.shift, "fixed": self.fixed, "steps": weight}
        named = {f"{part} {name}": t for part, own in parts.items() for name, t in own.items()}
        return {"pick": self.pick, "mask": self.mask, "key": self.key, "lr": self.lr} | named


def train_by_autograd(plan: AutogradPlan, x: Tensor, y: Tensor, lane: Lane) -> Params:
    """The weights and buffers of one client after all its batches; inside a vmap, those of all its clients at once."""
    flat, apply = lane.flat(), cast("Callable[..., tuple[Tensor, ...]]", _TrainByAutograd.apply)
    return dict(zip(lane.start, apply(plan, tuple(flat), x, y, *flat.values()), strict=True))


class _TrainByAutograd(torch.autograd.Function):
    """A whole training as one operation, so that a vmap hands over the plain tensors of all its clients."""

    @staticmethod
    def forward(plan: AutogradPlan, names: tuple[str, ...], x: Tensor, y: Tensor, *lane: Tensor) -> tuple[Tensor, ...]:
        ends = _run_autograd(plan, names, x, y, [t[None] for t in lane])
        return tuple(w[0] for w in ends)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Nothing is kept: nobody differentiates through a whole training."""

    @staticmethod
    def vmap(
        info: object, dims: tuple[int | None, ...], plan: AutogradPlan, names: tuple[str, ...], x: Tensor, y: Tensor,
        *lane: Tensor,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:  # fmt: skip
        if any(dim is not None for dim in dims[2:4]):
            raise SequentialOnly("the clients of a block have different pools of samples")
        ends = _run_autograd(plan, names, x, y, list(lanes_first(info, lane, dims[4:])))
        return ends, (0,) * len(ends)


def _run_autograd(
    plan: AutogradPlan, names: tuple[str, ...], x: Tensor, y: Tensor, lanes: list[Tensor]
) -> tuple[Tensor, ...]:
    parts: dict[str, dict[str, Tensor]] = {"start": {}, "shift": {}, "fixed": {}, "steps": {}}
    for name, t in zip(names[4:], lanes[4:], strict=True):
        part, _, own = name.partition(" ")
        parts[part][own] = t
    steps = Steps(x, y, *lanes[:4], **parts.pop("steps"))
    ends = autograd_training.train_lanes(plan, steps, **parts)
    return tuple(ends[name] for name in parts["start"])


def _by_name(names: tuple[str, ...], weights: list[Tensor]) -> tuple[Stack, Stack]:
    """The start, and the shift if there is one."""
    return dict(zip(names, weights, strict=False)), dict(zip(names, weights[len(names) :], strict=False))


def train_lanes(plan: FastPlan, schedule: Schedule, lr: Tensor, start: Stack, shift: Stack) -> Stack:
    """The weights of all lanes after all their batches."""
    with torch.no_grad():
        if lr.is_cuda:
            return gpu_training.train_lanes(plan.network, schedule, lr, start, shift, plan.sgd, plan.graphs)
        layers = cast("Layers", plan.network.layers)  # a plan for a CPU is of a network that has them
        return cpu_training.train_lanes(
            LayeredNetwork(layers, plan.network.inputs), schedule, lr, start, shift, plan.sgd
        )


__all__ = [
    "LEAST", "SGD", "AutogradPlan", "FastPlan", "GradientRule", "JointTraining", "Lane", "NotSupported", "Optimiser",
    "OptimiserName", "Schedule", "StepGraphs", "TrainingGraphs", "begin_round", "explain", "find_step_graphs",
    "plan_autograd", "plan_training", "supports", "train", "train_by_autograd", "train_module",
]  # fmt: skip
