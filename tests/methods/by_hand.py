"""One client and a quadratic loss, for numbers that can be derived by hand."""

from types import SimpleNamespace

import torch

from kinfed.client import Client, Samples
from kinfed.models import Gradient
from kinfed.params import Params


def pull_to_mean(params: Params, batch) -> Gradient:
    """The gradient of ½(w - mean x)²."""
    mean = (batch.x[:, 0] * batch.mask).sum() / batch.mask.sum().clamp(min=1)
    return Gradient({"w": (params["w"] - mean) * batch.mask.any()})


QUADRATIC = SimpleNamespace(gradient=pull_to_mean, buffers=frozenset(), weights=("w",))


def client_with(*x: float, padded: int = 0, label: int = 0, at_round: int = 0, **memory) -> Client:
    """A client with these rows, in a pool that ends with others' rows."""
    pool = torch.tensor([*x, *(99.0,) * padded])[:, None]
    rows = Samples(
        pool,
        torch.full((len(pool),), label),
        torch.arange(len(pool)),
        torch.tensor(len(x)),
        exact=not padded,
    )
    return Client(rows, rows, torch.tensor(1), torch.tensor(at_round), torch.tensor(0), memory)


def weight(value: float) -> Params:
    return {"w": torch.tensor(value)}
