"""The seam: what the fast path supports, and what it says of the rest."""

import torch
from torch import nn

from kinfed.client import FAST_PATH
from kinfed.fastpath import SGD, FastPlan, NotSupported, explain, plan_training, supports
from kinfed.models import Model, make_autoencoder
from kinfed.training import LabelledGradient, LocalTraining, MetaGradient, ShiftedGradient
from tests.models.test_model import batch_norm_net
from tests.problems import small_net
from tests.test_client import client_of

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


def test_how_a_network_trains_is_explained():
    assert explain(batch_norm_net()).startswith("autograd, a block in one vmap")
    assert explain(small_net()).startswith("fast path")
