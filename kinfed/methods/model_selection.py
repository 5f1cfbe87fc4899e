"""Model selection: which of several models fits a client's samples best."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import torch
from torch import Tensor

from kinfed.client import Client
from kinfed.client_tasks import score
from kinfed.errors import ConfigError
from kinfed.models import Model
from kinfed.params import NOTHING, Params, Stack, count, each_leaf, select

State = TypeVar("State")
ATTEMPTS = 100  # to draw first models
SelectOn = Literal["train_loss", "test_accuracy"]  # the second looks at test samples: only to compare with such papers


def select_model(
    client: Client, model: Model, models: Stack, select_on: SelectOn, body: Mapping[str, Tensor] = NOTHING
) -> Tensor:
    """Client: the model with the least loss on its training samples, or with the most hits on its test samples.

    The models may be some layers, and `body` the others; ties go to the first.
    """
    own = client.test if select_on == "test_accuracy" else client.train
    scores = [score(model, {**body, **select(models, m)}, own) for m in range(count(models))]
    if select_on == "test_accuracy":
        return torch.stack([s["correct"] for s in scores]).argmax()
    return torch.stack([s["loss"] for s in scores]).argmin()


def model_at(models: Stack, choice: Tensor) -> Params:
    """One model of a stack; the choice may be a client task's."""
    return each_leaf(lambda w: w.index_select(0, choice[None])[0], models)


def redraw(draw: Callable[[int], State], share: Callable[[State], float], least: float) -> State:
    """The first of some drawn states in which each model is selected by this share of the clients at least."""
    for attempt in range(ATTEMPTS):
        state = draw(attempt)
        if not least or share(state) >= least:
            return state
    raise ConfigError(f"in {ATTEMPTS} draws of first models there was always one that fewer than {least:g} selected")
