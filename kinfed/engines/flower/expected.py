"""What a reply must look like: the server answers the task itself once, as a client with made-up rows would."""

from typing import TypeVar

import torch
from torch import Tensor

from kinfed.client import Client, HasMemory, Samples
from kinfed.engines.flower.packing import Form, form_of, pack
from kinfed.engines.sequential import ask, copy_method
from kinfed.method import Method
from kinfed.params import NOTHING, Params, from_flat, to_flat

State = TypeVar("State")
ROWS = 32  # enough for every method's descriptions, few enough to be quick


def expected_form(method: Method[State], task: str, offered: Params, like: Tensor, classes: int) -> Form:
    """Names, dtypes and shapes of what a client sends; replies are stacked, so all clients' are the same."""
    initial = method.initial_memory() if isinstance(method, HasMemory) else NOTHING
    memory = from_flat({name: t.to(like.device) for name, t in to_flat(initial).items()})
    rows = made_up(like, classes)
    zero = torch.zeros((), dtype=torch.long, device=like.device)
    reply = ask(copy_method(method), task, Client(rows, rows, zero, zero, zero, memory), from_flat(offered))
    return form_of(pack(to_flat(reply.send)))


def made_up(like: Tensor, classes: int) -> Samples:
    """Samples of the same kind as these, all different, with all labels."""
    position = torch.arange(ROWS, device=like.device)
    shape = like.shape[1:]
    values = torch.arange(ROWS * shape.numel(), device=like.device).view(ROWS, *shape) * 37 % 251
    x = values.to(like.dtype) if like.dtype == torch.uint8 else (values / 251).to(like.dtype)
    return Samples(x, position % classes, position, torch.tensor(ROWS, device=like.device), exact=True, width=ROWS)
