"""FedDrift by hand: who merges, what of, who may take which model; and a concept that splits off and comes back."""

import numpy as np
import pytest
import torch

from kinfed.data import LabelSwapDrift
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.experiment import Experiment
from kinfed.federation import Offer
from kinfed.methods import FedDrift
from kinfed.methods.cluster_merging import merge_named, name_alike
from kinfed.methods.cluster_models import ClusterModels
from kinfed.methods.feddrift import FedDriftState
from kinfed.training import LocalTraining
from tests.methods.planted import net
from tests.problems import same_clusters, small_net, tiny_population

ACCURACY = torch.tensor([[0.9, 0.85, 0.2], [0.8, 0.95, 0.3], [0.1, 0.2, 0.9]])  # of model i on the clients of j


@pytest.mark.parametrize(("most", "names"), [(0.1, [0, 1, 2]), (0.2, [0, 0, 2]), (0.75, [0, 0, 2]), (0.85, [0, 0, 0])])
def test_models_merge_by_complete_linkage_of_what_they_lose_on_each_other(most, names):
    # 0 and 1 lose 0.05 and 0.15: 0.15 apart; 0 and 2 lose 0.7 and 0.8; 1 and 2 lose 0.65 and 0.7: complete is 0.8
    assert name_alike(3, torch.arange(3), ACCURACY, most).tolist() == names


def test_models_that_are_not_compared_stay_and_one_alone_has_nobody_to_merge_with():
    assert name_alike(4, torch.tensor([1, 3]), ACCURACY[:2, :2], 0.2).tolist() == [0, 1, 2, 1]
    assert name_alike(3, torch.tensor([1]), ACCURACY[:1, :1], 0.2).tolist() == [0, 1, 2]


def serving(*assignment: int) -> ClusterModels:
    models = {"w": torch.tensor([[0.0], [8.0], [1.0]])}
    return ClusterModels(models, torch.tensor([-1] * len(assignment)), torch.zeros(3, len(assignment)), {}).serve(
        torch.tensor(assignment), models
    )


def test_a_merged_model_is_the_mean_by_use():
    served, uses = merge_named(serving(0, 1, 2, -1), torch.tensor([0, 0, 2]), torch.tensor([30.0, 10.0, 5.0]))
    assert served.models["w"].flatten().tolist() == [2.0, 1.0]  # (30 · 0 + 10 · 8) / 40
    assert served.assignment.tolist() == [0, 0, 1, -1] and uses.tolist() == [40.0, 5.0]


def test_a_client_takes_the_best_model_that_is_not_isolated_and_keeps_its_own_where_that_is_as_good():
    method = FedDrift(small_net(), isolation=2)
    state = FedDriftState(serving(1, 0, 2), *torch.zeros(2, 3), torch.zeros(3), torch.tensor([-2, -2, 3]))
    quality = torch.tensor([[0.5, 0.5, 0.9], [0.2, 0.6, 0.9], [0.1, 0.2, 0.9]])
    clients = torch.arange(3)
    assert method.choose(state, clients, quality, step=4).tolist() == [1, 1, 2], "model 2 is client 2's alone"
    assert method.choose(state, clients, quality, step=5).tolist() == [2, 2, 2]


def drifting(change_rounds, concepts):
    people = tiny_population((24,) * 8, classes=4, clusters=1)
    swap = LabelSwapDrift(change_rounds=change_rounds, concepts=concepts, pairs=((0, 1),))
    return swap(people, np.random.default_rng(0))


TRAINING = LocalTraining(epochs=15, batch_size=8, lr=0.1)


def test_a_concept_splits_off_merges_and_is_known_when_it_comes_back():
    people = drifting((4, 8), ((0, 0), (0, 1), (1, 0)))
    method = FedDrift(net(), TRAINING, delta=0.2, step_rounds=2)
    experiment = Experiment.over(Vectorised(method, people), rounds=12)
    numbers = []

    class Watch:
        def on_start(self, rounds, done): ...

        def on_round(self, result):
            numbers.append(len(result.clusters.unique()))

        def on_end(self, summary): ...

    experiment.observers = (Watch(),)
    summary = experiment.run()
    assert numbers[:4] == [1] * 4 and numbers[4] == 1 + 4, "each client that drifted is alone for a step"
    assert numbers[5] == 2, "then they merge"
    assert same_clusters(experiment.state.served.assignment, experiment.fed.true_clusters)
    assert len(experiment.state.born) == 2, "both concepts were known when clients went over: no new model"
    assert summary["drift_delay"] == 0 and summary["ari"] == 1


def test_accuracies_are_compared_from_the_beginning_of_one_step_to_that_of_the_next():
    method = FedDrift(net(), TRAINING, delta=0.2, step_rounds=1)
    fed = Vectorised(method, drifting((9,), ((0, 0), (0, 1))))
    first = method.round(method.init(fed), 0, fed)
    found = fed.run(method.assess, fed.clients, Offer(shared={"models": first.served.models}))["quality"][:, 0]
    second = method.round(first, 1, fed)
    assert first.before.mean() < 0.5 < found.mean(), "before training, and after it"
    assert torch.equal(second.before, found)


def test_no_more_models_are_made_than_may_be():
    method = FedDrift(net(), TRAINING, delta=0.2, step_rounds=2, max_clusters=3)
    experiment = Experiment.over(Vectorised(method, drifting((4,), ((0, 0), (0, 1)))), rounds=5)
    experiment.run()
    assert len(experiment.state.born) == 3


@pytest.mark.parametrize("settings", [{"delta": 0.0}, {"step_rounds": 0}, {"isolation": 0}, {"first": "all"}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        FedDrift(small_net(), **settings)
