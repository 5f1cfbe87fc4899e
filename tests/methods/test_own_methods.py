"""What a method of one's own is told that loses weights of the model, or its state."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from kinfed.client import Client, Reply, client_task
from kinfed.errors import ConfigError, ModelError
from kinfed.experiment import Evaluation, Experiment
from kinfed.federation import Federation, Replies
from kinfed.methods.one_model import OneModel, OneModelState
from kinfed.models import Model
from kinfed.params import Params, each_leaf
from kinfed.training import LocalTraining
from tests.problems import ENGINES, small_net, tiny_population

FIRST = next(iter(small_net().init()))


def take_mean(state: OneModelState, replies: Replies) -> object:
    return OneModelState(each_leaf(lambda w: w.mean(0), replies.stack("params")))


@dataclass(frozen=True)
class Own(OneModel):
    model: Model
    local: LocalTraining = LocalTraining()
    change: Callable[[Params], Params] = field(default=lambda params: params)
    make: Callable[[OneModelState, Replies], object] = take_mean

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        return Reply({"params": self.change(self.local(client, params, self.model.gradient)[0])})

    def absorb(self, state: OneModelState, replies: Replies, fed: Federation) -> OneModelState:
        return self.make(state, replies)  # type: ignore[return-value]


def leave_out(params: Params) -> Params:
    return {name: w for name, w in params.items() if name != FIRST}


def rename(params: Params) -> Params:
    return {f"net.{name}": w for name, w in params.items()}


def turn(params: Params) -> Params:
    return params | {FIRST: params[FIRST].flatten(0)[None]}


def fill_in(params: Params) -> Params:
    return params | {"more": torch.zeros(1)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (leave_out, r"lacks '{first}'"),
        (rename, r"lacks '{first}'.*has 'net\.{first}'"),
        (turn, r"'{first}' has shape \[1, \d+\] in place of"),
        (fill_in, "has 'more', which the network does not know"),
    ],
)
@pytest.mark.parametrize("every", [1, 2])
def test_a_model_that_is_not_whole_is_refused_before_it_is_used(engine, change, says, every):
    """The weights of the template would fill the gaps."""
    method = Own(small_net(), change=change)
    experiment = Experiment.over(
        engine(method, tiny_population()), rounds=2, evaluation=Evaluation(every=every, metrics="main")
    )
    with pytest.raises(ModelError, match=says.format(first=FIRST.replace(".", r"\."))):
        experiment.run()
    assert not experiment.history


def test_a_method_that_adds_the_weights_that_clients_do_not_send_goes_on():
    method = Own(
        small_net(),
        change=leave_out,
        make=lambda state, replies: OneModelState(state.params | take_mean(state, replies).params),
    )
    assert Experiment.over(ENGINES[1](method, tiny_population()), rounds=2).run()["accuracy"] > 0


class Caching(nn.Module):
    """Keeps what it made in its first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.full((64,), 0.5))
        return self.head(self.scale * x.flatten(1))


@dataclass(frozen=True)
class Frozen(Model):
    """Leaves out what its clients never train."""

    def init(self, seed: int | None = None) -> Params:
        return leave_out(super().init(seed))


@pytest.mark.filterwarnings("ignore:.*clients")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", [Model(Caching, classes=3), Frozen(small_net().build, classes=3)])
def test_a_network_that_keeps_weights_of_its_own_goes_on(engine, model):
    fed = engine(Own(model), tiny_population())
    assert Experiment.over(fed, rounds=2, evaluation=Evaluation(metrics="main")).run()["accuracy"] > 0


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda state, replies: None, "gave None"),
        (lambda state, replies: {"params": state.params}, "gave a dict"),
        (lambda state, replies: replies, "gave a Replies"),
    ],
)
def test_a_state_of_another_kind_is_refused_in_one_line_that_names_the_method(make, got):
    fed = ENGINES[1](Own(small_net(), make=make), tiny_population())
    with pytest.raises(ConfigError, match=rf"Own\.round.*absorb.*{got}, wanted the new state, a OneModelState"):
        Experiment.over(fed, rounds=1).run()


def test_a_first_state_of_another_kind_is_refused(monkeypatch):
    def init(self, fed: Federation) -> OneModelState:
        return None  # type: ignore[return-value]

    monkeypatch.setattr(Own, "init", init)
    with pytest.raises(ConfigError, match=r"Own\.init gave None, wanted the new state, a OneModelState"):
        Experiment.over(ENGINES[1](Own(small_net()), tiny_population()), rounds=1).run()
