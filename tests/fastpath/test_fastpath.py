"""The seam: what the fast path supports, and what it says of the rest."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from kinfed.client import FAST_PATH
from kinfed.engines import Vectorised
from kinfed.errors import ModelError
from kinfed.fastpath import SGD, FastPlan, NotSupported, explain, plan_training, supports
from kinfed.methods import FedAvg
from kinfed.models import Model, make_autoencoder
from kinfed.training import LabelledGradient, LocalTraining, MetaGradient, ShiftedGradient
from tests.models.test_model import batch_norm_net
from tests.problems import fit, small_net, tiny_population
from tests.test_client import client_of
from tests.zoo import Called

CPU = torch.device("cpu")


def test_a_sequence_of_plain_layers_is_supported_on_a_cpu():
    plan = plan_training(small_net(), CPU, SGD(0.9, 0.1))
    assert isinstance(plan, FastPlan) and plan.sgd == SGD(0.9, 0.1) and plan.batches_a_step == 1
    assert supports(small_net(), CPU)


def test_what_is_not_supported_is_said_in_words():
    tanh = Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Tanh()), classes=3)
    for plan, why in (
        (plan_training(None, CPU, SGD()), "the gradient is not that of a network's loss"),
        (plan_training(tanh, CPU, SGD()), "the network is not a sequence of plain layers"),
        (plan_training(make_autoencoder("conv_ae", (1, 8, 8)), CPU, SGD()), "not a sequence of plain layers"),
        (plan_training(small_net(), CPU, SGD(inner_lr=0.1)), "look-ahead steps are for GPUs"),
    ):
        assert isinstance(plan, NotSupported) and not plan and why in plan.reason


def test_local_training_asks_its_gradient_rule_for_the_network():
    model, client, local = small_net(), client_of(3, 4), LocalTraining(1, 2)
    start = model.init()
    shifted = ShiftedGradient(model.gradient, start)
    for rule in (model.gradient, LabelledGradient(model.gradient), shifted):
        assert isinstance(local.plan(client, start, rule), FastPlan)
    for rule in (lambda params, batch: model.gradient(params, batch), MetaGradient(model.gradient, 0.1, 1)):
        assert isinstance(local.plan(client, start, rule), NotSupported)
    assert isinstance(LocalTraining(optimiser="adam").plan(client, start, model.gradient), NotSupported)
    assert isinstance(local.plan(client, {"1.weight": start["1.weight"]}, model.gradient), NotSupported)
    assert isinstance(local.plan(client_of(3, 3, exact=True), start, model.gradient), NotSupported)
    assert FAST_PATH not in client.execution.reads


class Counts(nn.Module):
    """Changes a buffer of its own in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1.0
        return x


def linear_by(wrap, **options):
    return lambda: nn.Sequential(nn.Flatten(), wrap(nn.Linear(64, 4), **options), nn.ReLU(), nn.Linear(4, 3))


PARAMETRISED = {
    "spectral_norm": linear_by(parametrizations.spectral_norm),
    "spectral_norm of one output": lambda: nn.Sequential(
        nn.Flatten(), parametrizations.spectral_norm(nn.Linear(64, 1)), nn.Linear(1, 3)
    ),
    "spectral_norm by a hook": linear_by(nn.utils.spectral_norm),
    "weight_norm": linear_by(parametrizations.weight_norm),
    "orthogonal": linear_by(parametrizations.orthogonal),
    "orthogonal by cayley": linear_by(parametrizations.orthogonal, orthogonal_map="cayley"),
    "orthogonal by householder": linear_by(parametrizations.orthogonal, orthogonal_map="householder"),
    "a buffer of its own": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), Counts()),
}


@pytest.mark.parametrize("name", PARAMETRISED)
def test_how_a_parametrised_network_trains_is_what_training_says(name):
    model, population = Model(PARAMETRISED[name], classes=3), tiny_population((4, 5, 6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(FedAvg(model, LocalTraining(1, 2)), Vectorised, population, rounds=1)
    told = [str(warning.message) for warning in caught if "sequentially" in str(warning.message)]
    is_sequential = "spectral" in name or "buffer" in name
    assert bool(told) == is_sequential
    said = explain(model, population.x[:2])
    assert said.startswith("sequentially: the network's buffers change" if is_sequential else "autograd, a block")
    if "buffer" not in name:  # what the samples do not decide needs none
        assert explain(model) == said


def test_how_a_network_trains_is_explained():
    assert explain(batch_norm_net()).startswith("autograd, a block in one vmap")
    assert explain(small_net()).startswith("fast path")


def branch(net, x):
    return net.head(x.flatten(1)) if x.sum() > 0 else -net.head(x.flatten(1))


def run_again(net, x):
    return checkpoint(net.head, x.flatten(1), use_reentrant=False)


class Doubled(torch.autograd.Function):
    """A function whose gradient is its own, without `setup_context`."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def double(net, x):
    return Doubled.apply(net.head(x.flatten(1)))


@pytest.mark.filterwarnings("ignore:.*clients run .eval")
@pytest.mark.parametrize(
    ("forward", "why"),
    [(branch, "deciding by values"), (run_again, "checkpoint), are"), (double, "without setup_context")],
)
def test_a_network_that_no_block_can_train_is_said_to_train_as_training_says(forward, why):
    model, population = Model(lambda: Called(forward, head=nn.Linear(64, 3)), classes=3), tiny_population((4, 5, 6))
    with pytest.warns(UserWarning, match="clients train sequentially") as caught:
        fit(FedAvg(model, LocalTraining(1, 2)), Vectorised, population, rounds=1)
    told = next(str(w.message) for w in caught if "train sequentially" in str(w.message))
    assert explain(model, population.x[:5]) == f"sequentially: {told.removesuffix(': clients train sequentially')}"
    assert why in told


UNTRAINED = {
    "no weights": (lambda: nn.Flatten(), "no weights to train"),
    "frozen": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).requires_grad_(False), "no weights to train"),
    "empty": (nn.Sequential, "no weights to train"),
    "no module": (lambda: None, "returns a NoneType, wanted a torch module"),
    "other samples": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(63, 3)), "does not take samples of shape"),
    "script": (lambda: torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 3))), "is TorchScript"),
    "pair": (lambda: Called(lambda net, x: (net.head(x.flatten(1)), x), head=nn.Linear(64, 3)), "returns a tuple"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is")
@pytest.mark.parametrize("name", UNTRAINED)
def test_of_a_network_that_cannot_train_it_is_said_why(name):
    build, reason = UNTRAINED[name]
    population, model = tiny_population((4, 5)), Model(build, classes=3)
    with pytest.raises(ModelError, match=reason):
        explain(model, population.x[:2].numpy())
    with pytest.raises(ModelError, match=reason):
        fit(FedAvg(model, LocalTraining(1, 2)), Vectorised, population, rounds=1)


def test_what_is_no_network_is_not_explained():
    with pytest.raises(ModelError, match=r"takes a kinfed\.Model, got a Linear"):
        explain(nn.Linear(2, 2))
