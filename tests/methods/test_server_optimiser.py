"""Steps of the server's optimisers by hand, and FedAvg with them."""

import pytest

from kinfed.config import read
from kinfed.config.assembly import make_method
from kinfed.errors import ConfigError
from kinfed.methods import PRESETS
from kinfed.methods.server_optimiser import ServerOptimiser
from tests.methods.by_hand import weight
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, fit, small_net

NONE = frozenset()


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({}, 3.0),
        ({"lr": 0.5}, 2.0),
        ({"momentum": 0.5}, 3.0),  # m = Δ = 2
        # m = 0.5 · 2 = 1, and v starts at τ² = 1
        ({"name": "adagrad", "momentum": 0.5, "tau": 1.0}, 1.309017),  # v = 1 + 4; 1 + 1 / (√5 + 1)
        ({"name": "adam", "momentum": 0.5, "beta2": 0.75, "tau": 1.0}, 1.430501),  # v = 0.75 + 0.25 · 4 = 1.75
        ({"name": "yogi", "momentum": 0.5, "beta2": 0.75, "tau": 1.0}, 1.414214),  # v = 1 + 0.25 · 4 = 2
        ({"name": "yogi", "momentum": 0.5, "beta2": 0.75, "tau": 4.0}, 1.127017),  # v = 16 - 0.25 · 4 = 15
    ],
)
def test_a_step_by_hand(settings, value):
    optimiser = ServerOptimiser(**settings)
    moved, _ = optimiser.step(weight(1.0), weight(3.0), optimiser.init(weight(1.0)), NONE)
    assert float(moved["w"]) == pytest.approx(value, abs=1e-6)


def test_momentum_goes_on_over_rounds():
    optimiser = ServerOptimiser(momentum=0.9)
    first, moments = optimiser.step(weight(1.0), weight(3.0), optimiser.init(weight(1.0)), NONE)
    second, moments = optimiser.step(first, weight(4.0), moments, NONE)
    assert float(second["w"]) == pytest.approx(5.8)  # m = 0.9 · 2 + 1
    assert float(moments.first["w"]) == pytest.approx(2.8)


def test_statistics_take_the_mean_itself():
    optimiser = ServerOptimiser(lr=0.1)
    moved, _ = optimiser.step(weight(1.0), weight(3.0), optimiser.init(weight(1.0)), frozenset({"w"}))
    assert float(moved["w"]) == 3


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavg_ft", "ditto"])
def test_half_a_step_goes_half_of_the_way(name):
    half, _ = fit(make(name, server=ServerOptimiser(lr=0.5)), population=population(), rounds=1)
    full, _ = fit(make(name), population=population(), rounds=1)
    first = small_net().init()
    assert_close(half.params, {n: (w + first[n]) / 2 for n, w in full.params.items()})


def test_the_default_is_the_mean_with_the_same_bits():
    plain, _ = fit(make("fedavg"), population=population(), rounds=2)
    named, _ = fit(make("fedavg", server=ServerOptimiser("sgd", 1.0)), population=population(), rounds=2)
    assert_same_bits(plain.params, named.params)
    assert not plain.moments.first and not plain.moments.second


def test_moments_survive_a_checkpoint(tmp_path):
    from kinfed.experiment import Experiment

    method = make("fedavg", server=ServerOptimiser("yogi", 0.1, 0.9))
    whole = Experiment(method, population(), rounds=3)
    whole.run()
    Experiment(method, population(), rounds=2, checkpoint=tmp_path / "c", checkpoint_every=1).run()
    resumed = Experiment(method, population(), rounds=3, checkpoint=tmp_path / "c", checkpoint_every=1)
    resumed.run(resume=True)
    assert_same_bits(resumed.state.params, whole.state.params)
    assert_same_bits(resumed.state.moments.second, whole.state.moments.second)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi"])
def test_presets_are_fedavg_with_an_optimiser(name):
    method = make_method(read({"method": name}), small_net())
    assert type(method).__name__ == "FedAvg" and method.server.momentum == 0.9
    assert method.server.name == {"fedavgm": "sgd", "fedadam": "adam", "fedyogi": "yogi"}[name]
    assert PRESETS[name].method == "fedavg"


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"lr": 0.0}, "lr must be"), ({"name": "lion"}, "name must be one of"), ({"momentum": 1.0}, "must be below 1")],
)
def test_settings_out_of_range_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        ServerOptimiser(**settings)
