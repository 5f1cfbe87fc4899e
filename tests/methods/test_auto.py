"""Auto: what is found, what clients report of held-out samples, and what follows from it."""

import pytest
import torch

from kinfed.client import Samples
from kinfed.data import build_population, load
from kinfed.data.partitions import IID
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.experiment import Experiment
from kinfed.methods import Auto, FedAvg
from kinfed.methods.held_out import Evidence
from kinfed.models import make_model
from kinfed.params import interpolate
from tests.methods.registry import LOCAL, make, population
from tests.problems import small_net


def evidence_of(*hits: tuple[float, float]) -> Evidence:
    """Of one model: what five candidates classified rightly, in replies of three equal clients."""
    reply = torch.tensor(hits, dtype=torch.float)[None].expand(3, -1, -1)
    return Evidence.none(1, torch.device("cpu")).add(reply, torch.zeros(3, dtype=torch.long))


def test_every_third_sample_is_held_out_and_padding_stays_last():
    samples = Samples(torch.zeros(9, 1), torch.zeros(9), torch.arange(8), torch.tensor(7))
    rest, held = samples.hold_out(3)
    assert rest.index.tolist() == [0, 1, 3, 4, 6, 7] and int(rest.size) == 5, "7 is padding"
    assert held.index.tolist() == [2, 5] and int(held.size) == 2


def test_a_candidate_must_gain_both_ways():
    assert evidence_of((5, 1), (6, 1), (7, 2), (7, 0.5), (6, 2)).choose().tolist() == [2]
    assert evidence_of((5, 1), (9, 0.9), (9, 1), (4, 2), (5, 3)).choose().tolist() == [0]


def test_a_gain_within_chance_is_none():
    hits = torch.tensor([[[5.0, 1.0], [9.0, 2.0]], [[5.0, 1.0], [2.0, 0.5]]])
    hits = torch.cat([hits, hits[:, :1].expand(-1, 3, -1)], 1)
    found = Evidence.none(1, torch.device("cpu")).add(hits, torch.zeros(2, dtype=torch.long))
    assert found.gain[0, 1].tolist() == [1.0, 0.5] and found.square[0, 1].tolist() == [25.0, 1.25]
    assert found.choose().tolist() == [0] and found.loses(1).tolist() == [False]


def test_a_model_loses_beyond_two_standard_errors():
    assert evidence_of((5, 1), (1, 1), (5, 1), (5, 1), (5, 1)).loses(1).tolist() == [False], "12 of √48 = 6.93"
    many = Evidence(torch.tensor([[[0.0, 0.0], [-20.0, 0.0]]]), torch.tensor([[[0.0, 0.0], [80.0, 0.0]]]))
    assert many.loses(1).tolist() == [True], "20 is more than 2 · √80 = 17.9"


def test_models_are_interpolated():
    half = interpolate({"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}, 0.25)
    assert half["w"].tolist() == [1.5]


@pytest.mark.parametrize(
    "rounds, clusters, plan", [(50, 5, [10, 25]), (50, 1, [0, 25]), (50, 0, [0, 0]), (4, 2, [2, 2])]
)
def test_rounds_are_planned(rounds, clusters, plan):
    assert Auto(small_net(), LOCAL).make_plan(rounds, clusters).tolist() == plan


def test_planted_clusters_get_models_of_their_own_and_the_run_says_so():
    experiment = Experiment.over(Vectorised(make("auto"), population()), rounds=8)
    summary = experiment.run()
    assert summary["ari"] == 1 and summary["clusters"] == 2
    assert experiment.method.diagnosis(experiment.state).startswith("2 clusters, well separated, 2 with a model")


def test_clients_that_are_alike_get_fedavg_to_the_bit():
    alike, model = build_population(load("digits"), IID(20), 0), make_model("mlp_200", (1, 8, 8), 10)
    auto, fedavg = (Experiment(kind(model), alike, rounds=2, fraction=0.2) for kind in (Auto, FedAvg))
    auto.run(), fedavg.run()
    assert auto.method.diagnosis(auto.state) == "One cluster: clients are alike, one model."
    for name, weight in fedavg.state.params.items():
        assert torch.equal(auto.state.served.models[name][0], weight)


@pytest.mark.parametrize("wrong", [{"hold_out": 1}, {"compare": 0.6}, {"judge": 1.5}, {"compare": -0.1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"hold_out|compare"):
        Auto(small_net(), LOCAL, **wrong)
