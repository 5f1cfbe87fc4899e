"""The sequential and the vectorised engine agree to 1e-5 on every task, every way to train, and small models drawn."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kinfed.data import Population
from kinfed.engines import Sequential, Vectorised
from kinfed.learning_tasks import Classification, LearningTask, MultiLabel, NextToken, Regression
from kinfed.methods import FedAvg
from kinfed.models import Model
from kinfed.models.inputs import Inputs
from kinfed.training import LocalTraining
from tests.problems import assert_close, fit
from tests.test_learning_tasks import LOCAL, model_of, samples_of

ROUNDS = 2
WAYS: dict[str, dict[str, object]] = {
    "weight decay": {"weight_decay": 0.1},
    "clipped gradient": {"clip_norm": 0.1},
    "step schedule": {"schedule": "step", "schedule_rounds": 1, "decay": 0.1},
    "cosine schedule": {"schedule": "cosine", "schedule_rounds": 4},
    "exponential schedule": {"decay": 0.5},
    "warm-up": {"warm_up": 3},
    "steps": {"steps": 3},
    "last batch dropped": {"drop_last": True},
    "Adam": {"optimiser": "adam", "lr": 0.01},
    "AdamW": {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.1},
}


def train_both(model: Model, local: LocalTraining, population: Population, rounds: int = ROUNDS):
    """What FedAvg trains by the sequential and by the vectorised engine."""
    return [fit(FedAvg(model, local), engine, population, rounds)[0].params for engine in (Sequential, Vectorised)]


@pytest.mark.parametrize("way", WAYS)
def test_engines_agree_on_every_way_to_train(way):
    population = samples_of(Regression())
    model, local = model_of(Regression(), 1), replace(LOCAL, **WAYS[way])
    slow, fast = train_both(model, local, population)
    assert_close(slow, fast)
    plain = fit(FedAvg(model, LOCAL), Vectorised, population, ROUNDS)[0].params
    assert any(not torch.allclose(fast[name], plain[name], atol=1e-4) for name in plain)  # the setting does something


@pytest.mark.parametrize("inputs", [Inputs(augment=("noise",), noise=0.3), Inputs(mean=(0.5,), std=(2.0,))], ids=repr)
def test_engines_agree_on_noisy_and_on_normalised_samples(inputs):
    population, plain = samples_of(Regression()), model_of(Regression(), 1)
    model = replace(plain, mean=inputs.mean, std=inputs.std) if inputs.mean else plain
    model = replace(model, build=partial(inputs.wrap, model.build)) if inputs.augment else model
    slow, fast = train_both(model, LOCAL, population)
    assert_close(slow, fast)
    assert not torch.allclose(fast["0.weight"], train_both(plain, LOCAL, population)[1]["0.weight"], atol=1e-4)


@dataclass(frozen=True)
class Network:
    """A small network: hidden layers of some width, and tokens embedded."""

    widths: tuple[int, ...]
    activation: type[nn.Module]
    outputs: int
    reads: str  # "numbers", "tokens", of which each has an output, or "window", whose next token is wanted

    def __call__(self) -> nn.Module:
        first = 6
        layers: list[nn.Module] = []
        if self.reads != "numbers":
            layers, first = [nn.Embedding(4, 3)], 3
        if self.reads == "window":
            layers, first = [*layers, nn.Flatten()], 18
        for width in self.widths:
            layers, first = [*layers, nn.Linear(first, width), self.activation()], width
        return nn.Sequential(*layers, nn.Linear(first, self.outputs))


@dataclass(frozen=True)
class Problem:
    """A task, its clients, a network, and how it is trained."""

    task: LearningTask
    sizes: tuple[int, ...]
    network: Network
    local: LocalTraining

    def population(self) -> Population:
        made = samples_of(self.task, self.sizes)
        return replace(made, y=made.y[:, -1]) if self.network.reads == "window" else made


@st.composite
def problems(draw: st.DrawFn, task: LearningTask) -> Problem:
    """A problem with a few clients of unlike sizes."""
    sizes = tuple(draw(st.lists(st.integers(1, 13), min_size=2, max_size=5)))
    widths = tuple(draw(st.lists(st.integers(1, 9), max_size=2)))
    reads = draw(st.sampled_from(("tokens", "window"))) if isinstance(task, NextToken) else "numbers"
    outputs = {NextToken: 4, Regression: 1}.get(type(task), 3)
    activation = draw(st.sampled_from((nn.ReLU, nn.Tanh, nn.Sigmoid)))
    way = draw(st.sampled_from([{}, *(way for name, way in WAYS.items() if not name.startswith("Adam"))]))
    local = LocalTraining(draw(st.integers(1, 2)), draw(st.integers(1, 8)), 0.1, draw(st.sampled_from((0.0, 0.5))))
    return Problem(task, sizes, Network(widths, activation, outputs, reads), replace(local, **way))


TASKS = (Classification(), Regression(), NextToken(), MultiLabel())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(data=st.data())
def test_engines_agree_on_small_models_and_clients_of_any_size(task, data):
    problem = data.draw(problems(task))
    model = Model(problem.network, classes=problem.network.outputs, task=task)
    slow, fast = train_both(model, problem.local, problem.population(), rounds=2)
    assert_close(slow, fast)
