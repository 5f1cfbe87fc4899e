"""Checks of torch modules: can weights be drawn anew, and do samples keep apart, so that padding changes nothing?"""

import copy
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kinfed.client import Batch
from kinfed.errors import ModelError, SequentialOnly
from kinfed.models.batch_operations import BatchOperations
from kinfed.params import Params

Forward = Callable[[Params, Tensor], Tensor]  # weights and samples -> the module's output
MIXES = "the network mixes the samples of a batch, padding would enter its output"
MOVES = "the network's buffers change in training, which is not vectorised"


class Probe(NamedTuple):
    """What a module does with its samples."""

    flaw: str = ""  # why they cannot be padded; empty when they can, or when the module refuses the probes
    draws: bool = True  # it draws numbers by chance, or refuses the probes
    has_statistics: bool = True  # of its batches, or it refuses the probes


def probe_module(module: nn.Module, forward: Forward, shape: torch.Size, dtype: torch.dtype) -> Probe:
    """What the module does with samples of this shape: two batches differ in one sample, which is padding."""
    weights, buffers = _nonzero_parameters(module), _buffers(module)
    outer, moved = list[Tensor](), buffers
    mask = torch.tensor([True, False, True])
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for x in _probes(shape, dtype):
                torch.default_generator.manual_seed(0)  # what else is drawn by chance is the same each time
                moved = _buffers(module)
                batch = Batch(x, mask.long(), mask, mask.any()) if module.training else None
                with BatchOperations(batch, moved) as operations:
                    outer.append(forward(weights | moved, x)[::2])
    except SequentialOnly as reason:
        return Probe(str(reason))
    except (RuntimeError, ValueError, IndexError):
        return Probe()
    used = operations.used
    facts = Probe("", "draw" in used, "batch statistics" in used)
    if not torch.allclose(outer[0], outer[1], rtol=1e-4, atol=1e-6, equal_nan=True):
        return facts._replace(flaw=MIXES)
    return facts if all(torch.equal(b, moved[name]) for name, b in buffers.items()) else facts._replace(flaw=MOVES)


def _probes(shape: torch.Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A sample thrice, then again with another in the middle; integers, which may be token ids, are 0 and 1."""
    is_mark = (torch.arange(prod(shape)) % 3 == 0).view(shape)
    most = 255 if dtype == torch.uint8 else 1
    light, dark = (most / 2, most / 4) if dtype == torch.uint8 or dtype.is_floating_point else (1, 0)
    sample, other = torch.where(is_mark, light, dark).to(dtype), torch.where(is_mark, 0, most).to(dtype)
    return torch.stack([sample, sample, sample]), torch.stack([sample, other, sample])


def _nonzero_parameters(module: nn.Module) -> Params:
    """Its parameters; those that begin at zero, which would hide what lies before them, do not."""
    return {name: w.detach() if w.any() else w.detach() + 0.1 for name, w in module.named_parameters()}


def _buffers(module: nn.Module) -> Params:
    return {name: b.clone() for name, b in module.named_buffers() if b.is_floating_point()}


def from_module(module: nn.Module) -> Callable[[], nn.Module]:
    """A builder from a module that is already there: copies of it with newly drawn weights."""
    refuse_computed(module)
    stubborn = [
        name
        for name, part in module.named_modules()
        if any(True for _ in part.parameters(recurse=False)) and not hasattr(part, "reset_parameters")
    ]
    if stubborn:
        raise ModelError(
            f"cannot draw new weights for {', '.join(stubborn)}: no reset_parameters(); "
            "hand in a function that builds the module instead"
        )

    def build() -> nn.Module:
        fresh = copy.deepcopy(module)
        for part in fresh.modules():
            draw = getattr(part, "reset_parameters", None)
            if callable(draw):
                draw()
        return fresh

    return build


def refuse_computed(module: nn.Module) -> None:
    """Raises where a part holds a tensor that was computed from weights: it can neither be copied nor follow them."""
    held = ((f"{name}.{key}".strip("."), t) for name, part in module.named_modules() for key, t in vars(part).items())
    computed = [name for name, t in held if isinstance(t, Tensor) and not t.is_leaf]
    if computed:
        raise ModelError(
            f"{', '.join(computed)} was computed from weights when the network was built and would not follow them; "
            "compute it in forward, and use torch.nn.utils.parametrizations.weight_norm for nn.utils.weight_norm"
        )


def weights_of(module: nn.Module) -> Params:
    """All parameters and floating buffers of a module."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: t.detach().clone() for name, t in named if t.is_floating_point()}
