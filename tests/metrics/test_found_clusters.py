"""What a method found, measured: by hand, and through the methods."""

from dataclasses import replace

import pytest
import torch
from torch import tensor

from kinfed.data import Change, Role
from kinfed.engines import Vectorised
from kinfed.methods import FedAvg
from kinfed.metrics import FoundClusters
from tests.methods.registry import make, population
from tests.problems import small_net, tiny_population


def test_a_method_that_has_assigned_nobody_yet_has_no_clusters_and_no_quality():
    method = make("flis_dc")
    fed = Vectorised(method, population())
    found = FoundClusters.by(method, method.init(fed), fed)
    assert found.metrics() == {"clusters": 0.0} and found.references(seed=0) == {}


def test_neighbours_say_more_than_clusters():
    found = FoundClusters(
        clusters=tensor([0, 0, 0, -1]),
        neighbours=tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]).bool(),
        whose=tensor([0, 1, 2, 3]),
        members=tensor([0, 1, 2]),
        labels=tensor([[4, 0], [4, 0], [0, 4]]),
    )
    # by labels 0 and 1 belong together; there is 1 too many around 1, and around 2
    assert found.metrics()["clustering_error"] == pytest.approx(2 / 3)
    by_clusters = replace(found, neighbours=None)
    assert by_clusters.metrics()["clustering_error"] == pytest.approx((1 + 1 + 2) / 3)
    assert by_clusters.metrics()["uniformity"] == pytest.approx(1 / 3)


def test_labels_are_counted_as_they_are_now_and_missing_ones_are_not():
    before = tiny_population((4, 5, 3))
    y = before.y.clone()
    y[before.train[2]] = -1
    change = Change(2, tensor([0]), (before.test[0][:2],), (before.test[0][2:],))
    federation_population = tiny_population((4, 5, 3), roles=(Role(), Role(), Role(labelled=False)), changes=(change,))
    federation_population.y.copy_(y)
    fed = Vectorised(FedAvg(small_net()), federation_population)
    assert fed.labels_held.tolist() == [[2, 1, 1], [2, 2, 1], [0, 0, 0]]  # labels go 0, 1, 2, 0, 1, ...
    fed.begin(2)
    assert fed.labels_held[0].tolist() == [0, 1, 1]  # the samples after the first four: 1, 2


def test_what_was_found_is_measured_again_only_when_something_changed():
    found = FoundClusters(
        tensor([0, 0, 1]), None, None, tensor([0, 1, 2]), tensor([[4, 0], [4, 0], [0, 4]]), tensor([0, 0, 1])
    )
    assert found.is_like(replace(found, clusters=found.clusters.clone()))
    for change in ({"clusters": tensor([0, 1, 1])}, {"true_clusters": None}, {"neighbours": torch.eye(3).bool()}):
        assert not found.is_like(replace(found, **change)) and not replace(found, **change).is_like(found)
