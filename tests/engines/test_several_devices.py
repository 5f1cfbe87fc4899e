"""A cohort on several devices, of which a CPU may be several; on GPUs see test_gpu.py."""

from dataclasses import replace

import pytest
import torch

from kinfed.data.population import Change
from kinfed.engines import EngineSettings, SeveralDevices, Vectorised, choose_device, make_federation
from kinfed.engines.several_devices import deal
from kinfed.errors import ConfigError
from kinfed.methods import IFCA, FedAvg, Scaffold
from kinfed.models import make_model
from kinfed.training import LocalTraining
from tests.problems import assert_same_bits, fit, tiny_population

MODEL = make_model("mlp_200", (1, 8, 8), 3)
LOCAL = LocalTraining(1, 5, 0.05)


def test_the_longest_are_dealt_first_and_nobody_twice():
    assert [hand.tolist() for hand in deal(torch.tensor([1, 9, 5, 7, 3]), 2)] == [[0, 1, 4], [2, 3]]
    assert [hand.tolist() for hand in deal(torch.tensor([4, 4]), 3)] == [[0], [1]]


@pytest.mark.parametrize(
    "method",
    [FedAvg(MODEL, LOCAL), Scaffold(MODEL, LOCAL), IFCA(MODEL, LOCAL, clusters=2)],
    ids=["one model", "clients remember", "several models"],
)
def test_two_devices_change_no_bit(method):
    population = tiny_population((12, 3, 20, 7, 11, 5, 9))
    one, _ = fit(method, Vectorised, population, 3, seed=1, fraction=0.8)
    two, fed = fit(method, SeveralDevices, population, 3, seed=1, fraction=0.8, devices=("cpu", "cpu"))
    name = "models" if hasattr(one, "models") else "params"
    assert_same_bits(getattr(one, name), getattr(two, name))
    assert fed.others[0].reads  # the second device had its part


def test_samples_that_change_change_on_all_devices():
    population = tiny_population()
    ids = torch.arange(2)
    change = Change(2, ids, (population.train[2], population.train[3]), (population.test[2], population.test[3]))
    population = replace(population, changes=(change,))
    method = FedAvg(MODEL, LOCAL)
    one, _ = fit(method, Vectorised, population, 4)
    two, _ = fit(method, SeveralDevices, population, 4, devices=("cpu", "cpu", "cpu"))
    assert_same_bits(one.params, two.params)


def test_a_config_names_several_devices():
    method, population = FedAvg(MODEL, LOCAL), tiny_population()
    fed = make_federation(method, population, EngineSettings(device="cpu, cpu"))
    assert isinstance(fed, SeveralDevices) and len(fed.others) == 1
    with pytest.raises(ConfigError, match="engine 'sequential' computes on one device, got 'cpu,cpu'"):
        make_federation(method, population, EngineSettings("sequential", device="cpu,cpu"))
    with pytest.raises(ConfigError, match="wanted cpu, cuda or auto, got 'gpu'"):
        choose_device("cpu,gpu")
