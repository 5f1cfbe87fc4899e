"""FLT's scenarios on real images; skipped clearly where the files are not."""

from functools import cache

import pytest
import torch

from kinfed.data import build_population, load
from kinfed.data.partitions import DisjointClasses, SharedClass
from kinfed.engines import Vectorised
from kinfed.experiment import Evaluation, Experiment
from kinfed.methods import FLT
from kinfed.metrics import agreement
from kinfed.models import make_model
from kinfed.signatures import PartMeans, Pretraining
from kinfed.training import LocalTraining
from tests.problems import real_data

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real data")]


@cache
def method(samples: int) -> FLT:
    """One epoch of pre-training on some samples is enough to tell digits apart."""
    root = str(real_data("mnist", "fashion_mnist"))
    pretraining = Pretraining("fashion_mnist", root, epochs=1, samples=samples, least_steps=60)
    signature = PartMeans(pretraining=pretraining)
    return FLT(make_model("mlp_200", (1, 28, 28), 10), LocalTraining(1, 10, 0.01), signature)


def clients(partition, **settings):
    return build_population(load("mnist", real_data("mnist", "fashion_mnist")), partition, seed=0, **settings)


def assert_found(flt: FLT, state: object, planted: torch.Tensor) -> None:
    found = agreement(flt.cluster_assignment(state), planted)
    assert found["clusters"] == 5 and found["ari"] == 1.0
    assert torch.equal(flt.neighbours(state).matrix(), planted[:, None] == planted)


@pytest.mark.on_demand
def test_scenario_1_clusters_are_found_and_ten_rounds_give_95_per_cent():
    flt, population = method(20_000), clients(DisjointClasses(100, 5))
    experiment = Experiment(flt, population, fraction=0.2, rounds=10, evaluation=Evaluation(every=10))
    summary = experiment.run()
    assert_found(flt, experiment.state, population.true_clusters)
    assert summary["accuracy"] > 0.95 and summary["variance"] < 10


@pytest.mark.on_demand
def test_scenario_2_clusters_that_share_a_label_are_found():
    flt, population = method(4_000), clients(SharedClass(100, 5), train_samples=200)
    assert_found(flt, flt.init(Vectorised(flt, population)), population.true_clusters)
