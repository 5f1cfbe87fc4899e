"""A network tried on made-up rows: does it keep them apart, so that padding beside a row changes nothing?"""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from kinfed.params import Params

Answer = Callable[[Params, Tensor], Tensor]  # weights and rows -> the module's output
MIXES = "the network mixes the rows of a batch, and padding would enter its answers"
MOVES = "the network's buffers move in training, which side by side they would not"


def flaw_of(module: nn.Module, answer: Answer, shape: torch.Size, dtype: torch.dtype) -> str:
    """Why rows of this shape cannot have padding beside them; empty when they can.

    A module that cannot take the made-up rows is not found fault with.
    """
    weights, buffers = _awake(module), _buffers(module)
    outer, moved = list[Tensor](), buffers
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for x in _batches(shape, dtype):
                torch.default_generator.manual_seed(0)  # what is dropped by chance is the same each time
                moved = _buffers(module)
                outer.append(answer(weights | moved, x)[::2])
    except (RuntimeError, ValueError, IndexError):
        return ""
    if not torch.allclose(outer[0], outer[1], rtol=1e-4, atol=1e-6, equal_nan=True):
        return MIXES
    return "" if all(torch.equal(b, moved[name]) for name, b in buffers.items()) else MOVES


def _batches(shape: torch.Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same row thrice, then again with another in the middle; whole numbers, which may name words, are 0 and 1."""
    is_mark = (torch.arange(prod(shape)) % 3 == 0).view(shape)
    most = 255 if dtype == torch.uint8 else 1
    light, dark = (most / 2, most / 4) if dtype == torch.uint8 or dtype.is_floating_point else (1, 0)
    row, other = torch.where(is_mark, light, dark).to(dtype), torch.where(is_mark, 0, most).to(dtype)
    return torch.stack([row, row, row]), torch.stack([row, other, row])


def _awake(module: nn.Module) -> Params:
    """Its parameters; those that begin at zero, which would hide what lies before them, do not."""
    return {name: w.detach() if w.any() else w.detach() + 0.1 for name, w in module.named_parameters()}


def _buffers(module: nn.Module) -> Params:
    return {name: b.clone() for name, b in module.named_buffers() if b.is_floating_point()}
