"""Names, dtypes and shapes of replies, which the server knows from dry runs of tasks on dummy samples."""

from typing import TypeVar

import torch
from torch import Tensor

from kinfed.client import Client, HasMemory, Samples
from kinfed.engines.flower.messages import TensorSpecs, pack, to_specs
from kinfed.engines.sequential import ask, copy_method
from kinfed.method import Method
from kinfed.models import Model
from kinfed.params import NOTHING, Params, from_flat, to_flat

State = TypeVar("State")
DUMMY_SAMPLES = 32  # enough for every method's signatures, few enough to be quick


def predict_specs(method: Method[State], task: str, offered: Params, like: Tensor) -> TensorSpecs:
    """Names, dtypes and shapes of what a client sends, found by running the task on dummy samples."""
    initial = to_flat(method.initial_memory() if isinstance(method, HasMemory) else NOTHING)
    memory = from_flat({name: t.to(like.device) for name, t in initial.items()})
    samples = make_dummy_samples(like, method.model)
    zero = torch.zeros((), dtype=torch.long, device=like.device)
    reply = ask(copy_method(method), task, Client(samples, samples, zero, zero, zero, memory), from_flat(offered))
    return to_specs(pack(to_flat(reply.send)))


def make_dummy_samples(like: Tensor, model: Model) -> Samples:
    """Samples of the same shape and dtype as these, all different, with targets that the model's task can have."""
    count, shape = DUMMY_SAMPLES, like.shape[1:]
    position = torch.arange(count, device=like.device)
    values = torch.arange(count * shape.numel(), device=like.device).view(count, *shape) * 37 % 251
    x = values.to(like.dtype) if like.dtype == torch.uint8 else (values / 251).to(like.dtype)
    params = {name: t.to(like.device) for name, t in model.init().items()}
    y = model.task.make_targets(model.logits(params, x))
    return Samples(x, y, position, torch.tensor(count, device=like.device), exact=True, width=count)
