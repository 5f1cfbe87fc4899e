"""A mixture of networks of one kind as a network of its own: what a client uses that belongs to several components."""

from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from kinfed.models.model import Model
from kinfed.models.module_copies import copy_module
from kinfed.params import Params, Stack, count, select


class MixtureModule(nn.Module):
    """Networks whose predictions are mixed by shares; these are a buffer, which no gradient moves."""

    shares: Tensor

    def __init__(self, model: Model, number: int) -> None:
        super().__init__()
        self.components = nn.ModuleList(copy_module(model.build()) for _ in range(number))
        self.task = model.task
        self.register_buffer("shares", torch.full((number,), 1 / number))

    def forward(self, x: Tensor) -> Tensor:
        """The output whose prediction is that of all components, mixed."""
        return self.task.mix_outputs(torch.stack([part(x) for part in self.components]), self.shares)


@lru_cache(maxsize=64)  # a network keeps copies of its module
def make_mixture(model: Model, number: int) -> Model:
    """The mixture of so many networks of this kind; its inputs and its task are theirs."""
    build = partial(MixtureModule, model, number)
    return Model(build, model.seed, model.mean, model.std, classes=model.classes, task=model.task)


def mix_models(models: Stack, shares: Tensor) -> Params:
    """The weights of the mixture of these models [K] with these shares [K]."""
    parts = {m: select(models, m) for m in range(count(models))}
    return {f"components.{m}.{name}": w for m, part in parts.items() for name, w in part.items()} | {"shares": shares}
