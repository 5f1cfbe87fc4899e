import pytest
import torch
from torch import nn

from kinfed.engines import Sequential, Vectorised
from kinfed.federation import Replies
from kinfed.methods import FedNova
from kinfed.methods.one_model import OneModelState
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.models import Model
from kinfed.training import LocalTraining
from tests.methods.by_hand import QUADRATIC, client_with, weight
from tests.methods.registry import make, population
from tests.problems import fit, small_net, tiny_population


@pytest.mark.parametrize(
    ("settings", "end", "effective", "steps"),
    [
        ({"momentum": 0.0}, 0.57, 2, 2),  # 0.3, then + 0.1 * 2.7
        ({"momentum": 0.5}, 0.72, 2.5, 2.5),  # v2 = -1.5 - 2.7
        ({"momentum": 0.0, "mu": 2.0}, 0.51, 1.8, 2),  # a = 0.8 * 1 + 1, but τ enters τ_eff
    ],
)
def test_what_a_client_sends_by_hand(settings, end, effective, steps):
    nova = FedNova(QUADRATIC, LocalTraining(2, 2, 0.1, **settings))
    sent = nova.train(client_with(2, 4), weight(0.0)).send
    assert float(sent["direction"]["w"]) == pytest.approx(-end / effective)
    assert float(sent["steps"]) == pytest.approx(steps)


def test_what_the_server_makes_of_it_by_hand():
    # τ_eff = (2 * 10 + 4 * 30) / 40 = 3.5, mean direction (1 * 10 + 2 * 30) / 40 = 1.75, 10 - 3.5 * 1.75
    nova = FedNova(QUADRATIC, LocalTraining())
    fed = Sequential(make("fednova"), tiny_population((10, 30)))
    replies = Replies(
        torch.arange(2), {"direction": {"w": torch.tensor([1.0, 2.0])}, "steps": torch.tensor([2.0, 4.0])}
    )
    assert float(nova.absorb(OneModelState(weight(10.0)), replies, fed).params["w"]) == pytest.approx(3.875)


def test_it_costs_one_number_more_than_fedavg():
    _, fed = fit(make("fednova"), population=population(), rounds=3, fraction=0.5)
    assert method_bytes(fed.ledger) == 4 * (fedavg_parameters(6, small_net().parameters(), 3) + 6 * 3)


def test_batch_norm_statistics_are_averaged_as_they_are():
    model = Model(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)), classes=3)
    people, cohort = tiny_population((10, 30)), torch.arange(2)
    nova, plain = FedNova(model, LocalTraining()), make("fedavg", local=LocalTraining())
    fed = Vectorised(nova, people)
    state = nova.init(fed)
    after = nova.round(state, 0, fed)
    twin = Sequential(type(plain)(model, LocalTraining()), people)
    trained = twin.run(plain.train, cohort, nova.offer(state, cohort, twin)).stack("params")
    mean = trained["1.running_var"][0] / 4 + 3 * trained["1.running_var"][1] / 4
    torch.testing.assert_close(after.params["1.running_var"], mean)
    assert not torch.allclose(after.params["2.weight"], trained["2.weight"][0] / 4 + 3 * trained["2.weight"][1] / 4)


def test_a_fixed_number_of_steps_is_within_its_range():
    method = FedNova(small_net(), LocalTraining(1, 5, 0.01, steps=40))
    _, fed = fit(method, Vectorised, tiny_population(), 2)
    assert not fed.rejected
