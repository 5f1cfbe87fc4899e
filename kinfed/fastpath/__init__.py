"""The fast path of local training: mini-batch SGD of a block of clients without autograd.

`plan_training` says whether it supports a training, or in words why not; `train` trains by such a plan. On a CPU the
network must be a sequence of plain layers, on a GPU one of stages, for which there are Triton kernels; these also
evaluate (`compute_logits`). Nothing else of the package is used from outside: engines own a `StepGraphs` and hand it to
their clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.func import vmap

from kinfed.client import Batch
from kinfed.errors import ModelError, SequentialOnly, shorten_refusal
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
from kinfed.fastpath.gpu_training import StepGraphs
from kinfed.fastpath.joint_training import JointTraining, begin_round, find_step_graphs
from kinfed.fastpath.kernel_evaluation import compute_each, compute_logits, has_evaluation_kernels
from kinfed.fastpath.layers import Layers
from kinfed.fastpath.optimiser import Optimiser, OptimiserName
from kinfed.fastpath.parsed_networks import ParsedNetwork, find_obstacle, parse, supports
from kinfed.fastpath.stages import SGD, Schedule
from kinfed.models import Model, Network
from kinfed.models.module_checks import NO_WEIGHTS
from kinfed.params import NOTHING, Params, Stack, lanes_first


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
    reason = find_obstacle(parsed, device, axes)
    return NotSupported(reason) if reason else FastPlan(parsed, sgd, graphs)


def explain(network: Network, x: Tensor | None = None) -> str:
    """How clients train this network in one block on a CPU, in words; ModelError where it cannot train.

    With some samples x, also where that depends on samples: what a network does with those of a batch.
    """
    if not isinstance(network, Network):
        raise ModelError(f"explain takes a kinfed.Model, got a {type(network).__name__}")
    if not network.weights:
        raise ModelError(NO_WEIGHTS)
    if x is not None:
        x = torch.as_tensor(x)
        if isinstance(network, Model):
            network.check(x)
    reason = network.refuses or (network.probe(network.template, x).flaw if x is not None else "")
    layers = parse(network).layers
    if layers is not None and not reason:
        return (
            "fast path, one client after the other" if layers.has_convolutions else "fast path, a block in one product"
        )
    plan = plan_autograd(GradientRule(network), torch.device("cpu"), Optimiser(), None)
    if not reason and x is not None and not plan.in_turn:
        reason = find_refusal(network, x[:2])
    if reason:
        return f"sequentially: {reason}"
    return f"autograd, {'one client after the other' if plan.in_turn else 'a block in one vmap'}"


def find_refusal(network: Network, x: Tensor) -> str:
    """Why a vmap over clients refuses the network; empty where it does not."""
    mask = torch.ones(len(x), dtype=torch.bool)
    batch = Batch(x, mask.long(), mask, mask.any(), key=torch.zeros((), dtype=torch.long))
    lanes = {name: w[None] for name, w in network.init().items()}
    leaves = [lanes[name].requires_grad_() for name in network.weights]
    try:
        with torch.enable_grad():  # what the backward pass does may be refused, too
            output = vmap(lambda own, params: network.training_output(params, batch._replace(x=own))[0])(x[None], lanes)
        torch.autograd.grad(output.sum(), leaves, materialize_grads=True)
    except RuntimeError as error:
        return shorten_refusal(error)
    return ""


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
    "OptimiserName", "Schedule", "StepGraphs", "TrainingGraphs", "begin_round", "compute_each", "compute_logits",
    "explain", "find_step_graphs", "has_evaluation_kernels", "plan_autograd", "plan_training", "supports", "train",
    "train_by_autograd", "train_module",
]  # fmt: skip
