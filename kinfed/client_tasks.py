"""Client tasks that every method has: evaluation, and the update that a served model would get."""

from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kinfed.capabilities import SendsNetworks
from kinfed.client import Client, Range, Reply, Samples, Task, client_task, mark_of
from kinfed.errors import ConfigError
from kinfed.method import Method
from kinfed.models import Model, hits
from kinfed.params import Params, Value, subtract

State = TypeVar("State")
SCORES = {
    "correct": Range(0, lambda facts: facts.test),
    "samples": Range(lambda facts: facts.test, lambda facts: facts.test),
    "loss": Range(0, torch.finfo().max),
}


@client_task(ranges=SCORES)
def evaluate(method: Method[object], client: Client, **offer: Value) -> Reply:
    """Client task: how its model does on its test samples."""
    return Reply(score(method.model, method.personalise(client, offer), client.test))


@client_task(ranges=SCORES)
def evaluate_adapted(method: Method[object], client: Client, **offer: Value) -> Reply:
    """Client task: the same after some epochs of local training."""
    adapted, _ = method.local.for_adaptation()(client, method.personalise(client, offer), method.model.gradient)
    return Reply(score(method.model, adapted, client.test))


@client_task(key="differ_from_served")  # its first name: another key would draw other batches, and change results
def compute_update(method: Method[object], client: Client, **offer: Value) -> Reply:
    """Client task: Δw, what local training changes in the model it uses."""
    return train_update(method, client, method.personalise(client, offer))


def train_update(method: Method[State], client: Client, params: Params) -> Reply:
    """Client: Δw, what local training changes in this model."""
    trained, _ = method.local(client, params, method.model.gradient)
    return Reply({"update": subtract(trained, params)})


COMMON: dict[str, Task] = {
    "evaluate": evaluate,
    "evaluate_adapted": evaluate_adapted,
    "compute_update": compute_update,
}


def find_task(method: object, name: str) -> Task:
    """The task of this name: the method's own, or one that every method has."""
    own: Task | None = getattr(method, name, None)
    if own is not None and mark_of(own):
        return own
    if name in COMMON:
        return partial(COMMON[name], method)
    raise ConfigError(f"'{name}' is no client task of {type(method).__name__}, nor one that every method has")


def networks_of(method: Method[State], shape: tuple[int, ...]) -> tuple[Params, ...]:
    """The networks whose weights clients may be sent: the model, unless the method has others."""
    return method.networks(shape) if isinstance(method, SendsNetworks) else (method.model.init(),)


def is_sequential(task: Task) -> bool:
    """Whether engines run this task client by client."""
    mark = mark_of(task)
    return mark is not None and mark.sequential


def score(model: Model, params: Params, samples: Samples) -> dict[str, Tensor]:
    """Samples classified rightly, samples in all, and the summed loss (the largest number if it is not finite)."""
    correct, loss = torch.zeros_like(samples.size), torch.zeros((), device=samples.size.device)
    for batch in samples.in_order():
        logits = model.logits(params, batch.x)
        correct = correct + hits(logits, batch).sum()
        loss = loss + (cross_entropy(logits, batch.y.clamp(min=0), reduction="none") * batch.mask).sum()
    finite = torch.nan_to_num(loss, nan=torch.finfo().max)
    return {"correct": correct, "samples": samples.size.clone(), "loss": finite}
