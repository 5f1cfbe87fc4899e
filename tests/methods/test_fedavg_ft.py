from dataclasses import replace

import pytest
import torch

from kinfed.client_tasks import evaluate
from kinfed.data import Role
from kinfed.data.population import NO_SAMPLES
from kinfed.engines import Sequential
from kinfed.experiment import Evaluation, Experiment
from kinfed.methods import METHODS, FedAvg, FedAvgFT
from kinfed.training import LocalTraining
from tests.methods.by_hand import QUADRATIC, client_with, weight
from tests.methods.registry import make, population
from tests.models.test_model import batch_norm_net
from tests.problems import ENGINES, assert_same_bits


def test_a_client_tunes_the_served_model_by_hand():
    # w1 = 0.3; v2 = 0.5 * -3 + (0.3 - 3) = -4.2, w2 = 0.72
    method = FedAvgFT(QUADRATIC, LocalTraining(9, 2, 0.1, momentum=0.5, adapt_epochs=2))
    assert float(method.personalise(client_with(2, 4), {"params": weight(0.0)})["w"]) == pytest.approx(0.72)


@pytest.mark.parametrize("padded", [0, 2])
def test_without_labels_the_model_is_used_as_it_is(padded):
    method = FedAvgFT(QUADRATIC, LocalTraining(2, 1, 0.1, mu=0.5))
    assert float(method.personalise(client_with(3, 3, padded=padded, label=-1), {"params": weight(1.25)})["w"]) == 1.25


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedavg_ft", "per_fedavg"])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_without_labels_weight_decay_and_batch_statistics_leave_the_model_as_it_is(engine, name, optimiser):
    people, local = population(), LocalTraining(2, 4, 0.01, optimiser=optimiser, weight_decay=0.1)
    y = people.y.index_fill(0, people.train[2], -1)
    people = replace(people, y=y, roles=tuple(Role(labelled=i != 2) for i in range(12)))
    losses = []
    for method in (METHODS[name](batch_norm_net(), local), FedAvg(batch_norm_net(), local)):
        fed, who = engine(method, people), torch.tensor([1, 2])
        losses.append(fed.run(evaluate, who, method.offer(method.init(fed), who, fed)).send["loss"])
    tuned, served = losses
    assert tuned[1] == served[1] and tuned[0] != served[0]


def test_its_accuracy_is_fedavgs_after_adaptation_and_so_is_its_model():
    # all rows in one batch, so that the order does not matter
    local = LocalTraining(2, 31, 0.05)
    results = []
    for name in ("fedavg", "fedavg_ft"):
        method = make(name, local=local)
        experiment = Experiment(method, population(), fraction=0.5, rounds=3, evaluation=Evaluation(adapt=True))
        results.append((experiment.run(), experiment.state))
    (plain, model), (tuned, same) = results
    assert_same_bits(model.params, same.params)
    assert tuned["accuracy"] == plain["accuracy_adapted"] != plain["accuracy"]
    assert tuned["bytes_up"] == plain["bytes_up"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedavg_ft", "per_fedavg"])
def test_a_holdout_client_without_training_rows_uses_the_model_as_it_is(engine, name):
    people = population(roles=tuple(Role(holdout=i == 2) for i in range(12)))
    people = replace(people, train=tuple(NO_SAMPLES if i == 2 else rows for i, rows in enumerate(people.train)))
    method, plain = make(name), make("fedavg")
    fed, twin = engine(method, people), Sequential(plain, people)
    state, who = method.init(fed), torch.tensor([2])
    tuned, served = (f.run(evaluate, who, m.offer(state, who, f)).send for f, m in ((fed, method), (twin, plain)))
    assert torch.allclose(tuned["loss"], served["loss"])
