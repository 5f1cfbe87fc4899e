from dataclasses import replace

import pytest
import torch
from torch import nn

from kinfed.client import AUTOGRAD
from kinfed.errors import ConfigError
from kinfed.experiment import Experiment
from kinfed.methods import PerFedAvg
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.models import Model
from kinfed.training import LocalTraining
from tests.methods.by_hand import QUADRATIC, client_with, weight
from tests.methods.registry import make, population
from tests.problems import ENGINES, assert_close, fit, small_net, tiny_population

LOCAL = LocalTraining(1, 1, 0.7, momentum=0.9, optimiser="adam")  # of which only epochs and batch size count


def trained(rows: tuple[float, ...], local=LOCAL, **settings) -> float:
    method = PerFedAvg(QUADRATIC, local, alpha=0.1, beta=0.5)
    return float(method.train(client_with(*rows, **settings), weight(0.0)).send["params"]["w"])


@pytest.mark.parametrize("padded", [0, 4])
def test_one_pair_by_hand(padded):
    # both mini-batches hold 3: the probe is 0.1 * 3, and w = 0.5 * (3 - 0.3)
    assert trained((3, 3), padded=padded) == pytest.approx(1.35)


@pytest.mark.parametrize("padded", [0, 3, 7])
def test_the_two_mini_batches_of_a_pair_are_disjoint(padded):
    client = client_with(2, 4)
    first, second = (float(batch.x[0, 0]) for batch in client.batches(1, 1))
    assert {first, second} == {2.0, 4.0}
    assert trained((2, 4), padded=padded) == pytest.approx(0.5 * (second - 0.1 * first))


@pytest.mark.parametrize("padded", [0, 3])
def test_an_odd_last_mini_batch_is_left_out(padded):
    # three equal rows make one pair and a single one
    assert trained((3, 3, 3), padded=padded) == pytest.approx(1.35)
    assert trained((3,), padded=padded) == 0


@pytest.mark.parametrize("padded", [0, 3])
@pytest.mark.parametrize("pull", [{"mu": 1.0}, {"weight_decay": 1.0}])
def test_no_proximal_term_or_weight_decay_moves_an_odd_last_mini_batch_either(padded, pull):
    # both are 0 at w = 0, where the pair is trained
    assert trained((3, 3, 3), replace(LOCAL, **pull), padded=padded) == pytest.approx(1.35)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_clients_without_a_second_mini_batch_leave_the_model_as_it_is(engine, momentum):
    local = LocalTraining(2, 40, weight_decay=0.5)  # the largest client has 31 samples
    method = PerFedAvg(small_net(), local, beta=0.5, momentum=momentum)
    state, _ = fit(method, engine, rounds=1)
    assert_close(state.params, method.model.init(), 1e-6)


@pytest.mark.parametrize("padded", [0, 3])
@pytest.mark.parametrize(("more", "ends"), [({"weight_decay": 1.0}, 1.9), ({"clip_norm": 1.0}, 2.0)])
def test_weight_decay_and_clipping_count_with_a_momentum_too(padded, more, ends):
    # from w = 1: v = -2, the probe is 1.2, its gradient -1.8, with decay -0.8, clipped -1; w = 1 + 0.5 * (1 + 0.8 or 1)
    method = PerFedAvg(QUADRATIC, replace(LOCAL, **more), alpha=0.1, beta=0.5, momentum=0.5)
    sent = method.train(client_with(3, 3, padded=padded), weight(1.0)).send
    assert float(sent["params"]["w"]) == pytest.approx(ends, abs=1e-5)


def test_epochs_go_on_from_each_other():
    # w1 = 1.35; the probe is 1.35 + 0.1 * 1.65 = 1.515, w2 = 1.35 + 0.5 * (3 - 1.515)
    assert trained((3, 3), replace(LOCAL, epochs=2)) == pytest.approx(2.0925)


@pytest.mark.parametrize("padded", [0, 3])
@pytest.mark.parametrize("rows", [(3, 3), (3, 3, 3)])
def test_one_momentum_for_both_steps_by_hand(rows, padded):
    # v = -3, the probe is 0.1 * 3; then v = 0.5 * -3 - 2.7 = -4.2, and w = 0.5 * 4.2; an odd last one changes nothing
    method = PerFedAvg(QUADRATIC, LOCAL, alpha=0.1, beta=0.5, momentum=0.5)
    sent = method.train(client_with(*rows, padded=padded), weight(0.0)).send
    assert float(sent["params"]["w"]) == pytest.approx(2.1)


@pytest.mark.parametrize("kind", ["dense", "batch norm"])
def test_one_momentum_for_both_steps_trains_in_blocks_as_alone(kind):
    norm = Model(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)), classes=3)
    local = LocalTraining(3, 5, mu=0.1, weight_decay=0.1, decay=0.9)
    method = PerFedAvg(norm if kind == "batch norm" else small_net(), local, alpha=0.05, beta=0.03, momentum=0.5)
    uneven = tiny_population((3, 14, 20, 31, 6))  # one has no second mini-batch, others miss it now and then
    (alone, _), (block, fed) = (fit(method, engine, uneven, 3, fraction=1.0) for engine in ENGINES)
    assert any(AUTOGRAD in reads for reads in fed.reads.values()) and not fed.fallbacks
    assert_close(alone.params, block.params, 1e-5)


def test_a_client_may_use_the_model_that_it_trained_last():
    method = PerFedAvg(QUADRATIC, LOCAL, alpha=0.1, beta=0.5, uses="last")
    before = client_with(3, 3, own=weight(0.0), has_trained=torch.tensor(False))
    assert float(method.personalise(before, {"params": weight(7.0)})["w"]) == 7.0  # as served
    kept = method.train(before, weight(0.0)).keep
    after = client_with(3, 3, **kept)
    assert float(method.personalise(after, {"params": weight(7.0)})["w"]) == pytest.approx(1.35)
    assert PerFedAvg(QUADRATIC, LOCAL).initial_memory() == {}


def test_a_client_adapts_the_model_by_hand():
    # two steps of 0.1: 0.3, then + 0.27
    method = PerFedAvg(QUADRATIC, LOCAL, alpha=0.1)
    assert float(method.personalise(client_with(3, 3), {"params": weight(0.0)})["w"]) == pytest.approx(0.57)
    twice = replace(method, adapt_epochs=2)
    assert float(twice.personalise(client_with(3, padded=2), {"params": weight(0.0)})["w"]) == pytest.approx(0.57)
    assert float(replace(method, adapt_epochs=0).personalise(client_with(3), {"params": weight(0.0)})["w"]) == 0
    one_step = replace(method, adapt_steps=1)  # the paper's
    assert float(one_step.personalise(client_with(3, 3), {"params": weight(0.0)})["w"]) == pytest.approx(0.3)


@pytest.mark.parametrize("padded", [0, 2])
def test_without_labels_the_model_is_used_as_it_is(padded):
    method = PerFedAvg(QUADRATIC, LOCAL, alpha=0.1)
    assert float(method.personalise(client_with(3, 3, padded=padded, label=-1), {"params": weight(1.25)})["w"]) == 1.25


def test_it_costs_what_fedavg_costs():
    _, fed = fit(make("per_fedavg"), population=population(), rounds=3, fraction=0.5)
    assert method_bytes(fed.ledger) == 4 * fedavg_parameters(6, small_net().parameters(), 3)


def test_impossible_rates_are_refused():
    with pytest.raises(ConfigError, match="alpha must be a number above 0"):
        make("per_fedavg", alpha=0)


def test_a_model_is_better_after_adaptation():
    def accuracy(epochs: int) -> float:
        method = make("per_fedavg", adapt_epochs=epochs)
        return Experiment(method, population(), rounds=1).run()["accuracy"]

    assert accuracy(3) > accuracy(0) + 0.1


def test_batch_norm_survives_a_missing_second_mini_batch():
    model = Model(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)), classes=3)
    state, fed = fit(PerFedAvg(model, LocalTraining(2, 5)), population=tiny_population((3, 14, 20)), rounds=2)
    assert not fed.rejected and state.params["1.running_var"].min() > 0
