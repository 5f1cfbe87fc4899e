"""Evaluation of networks: how many samples at once, and of how many clients of a vmap side by side.

On a CPU, samples are evaluated in parts whose activations its caches hold; more at once is slower. So are clients side
by side whose activations are large, which leave the caches while convolutions become grouped ones; and attention and
recurrent layers, which a vmap takes written out alone. Such clients take turns. Which way a client goes depends on its
network and its samples, not on who else is in its block: the same bits.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor

from kinfed.models.batch_operations import BatchOperations
from kinfed.models.module_checks import Probe
from kinfed.params import Params, lanes_first, select

Evaluate = Callable[[Params, Tensor], Tensor]  # weights and samples -> what a network makes of each
LARGEST = 2**24  # bytes of a network's largest activation that a CPU computes at once
SIDE_BY_SIDE = 2**18  # the same of a client in a vmap
FEW = 8  # samples of which nobody asks how large their activations are
VMAP = torch._C._functorch.TransformType.Vmap


def evaluate_in_parts(evaluate: Evaluate, probe: Callable[[Tensor], Probe], params: Params, x: Tensor) -> Tensor:
    """What `evaluate` gives for samples x: on a CPU, unless a gradient follows, of as many at once as caches hold."""
    levels = find_transforms()
    if x.device.type != "cpu" or levels - {VMAP} or needs_gradient(x, *params.values()):
        return evaluate(params, x)
    if not levels and len(x) <= FEW:
        return evaluate(params, x)
    facts = probe(x)
    each = max(1, facts.largest)
    if not levels:
        return _join_parts(evaluate, each, params, x)
    if len(x) * each <= SIDE_BY_SIDE and not facts.is_written_out:
        return evaluate(params, x)
    apply = cast("Callable[..., Tensor]", _InTurn.apply)
    return apply(evaluate, each, tuple(params), x, *params.values())


class _InTurn(torch.autograd.Function):
    """What a network makes of samples, as one operation without a gradient: of the clients of a vmap one by one."""

    @staticmethod
    def forward(evaluate: Evaluate, each: int, names: tuple[str, ...], x: Tensor, *weights: Tensor) -> Tensor:
        return _join_parts(evaluate, each, dict(zip(names, weights, strict=True)), x)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(
        info: object, dims: tuple[int | None, ...], evaluate: Evaluate, each: int, names: tuple[str, ...], *lane: Tensor
    ) -> tuple[Tensor, int]:
        x, *weights = lanes_first(info, lane, dims[3:])
        params = dict(zip(names, weights, strict=True))
        return torch.stack([_join_parts(evaluate, each, select(params, i), x[i]) for i in range(len(x))]), 0


def _join_parts(evaluate: Evaluate, each: int, params: Params, x: Tensor) -> Tensor:
    """What `evaluate` gives for samples x, part by part; the largest activation has so many bytes for each sample."""
    parts = x.split(max(1, LARGEST // each))
    return evaluate(params, x) if len(parts) < 2 else torch.cat([evaluate(params, part) for part in parts])


def find_transforms() -> set[object]:
    """The transforms of torch.func that this is inside of."""
    return {level.key() for level in torch._C._functorch.get_interpreter_stack() or ()}


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether autograd keeps what a gradient by these needs."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def in_evaluation() -> "BatchOperations | nullcontext[None]":
    """Inside of a vmap, operations that it can take; elsewhere torch's own."""
    return BatchOperations() if find_transforms() else nullcontext()
