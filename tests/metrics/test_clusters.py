"""FLIS' clustering error and REPA's uniformity, by hand."""

from dataclasses import replace

import pytest
import torch
from torch import tensor

from kinfed.data import Change, Role
from kinfed.engines import Vectorised
from kinfed.methods import FedAvg
from kinfed.metrics import (
    Found,
    belong_together,
    clustering_error,
    cosines,
    uniformity,
    uniformity_of_chance,
    uniformity_of_labels,
)
from tests.methods.registry import make, population
from tests.problems import small_net, tiny_population


def test_a_method_that_has_placed_nobody_yet_has_no_clusters_and_no_quality():
    method = make("flis_dc")
    fed = Vectorised(method, population())
    found = Found.by(method, method.init(fed), fed)
    assert found.metrics() == {"clusters": 0.0} and found.references(seed=0) == {}


def test_relatives_say_more_than_clusters():
    found = Found(
        clusters=tensor([0, 0, 0, -1]),
        heard=tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]).bool(),
        whose=tensor([0, 1, 2, 3]),
        members=tensor([0, 1, 2]),
        labels=tensor([[4, 0], [4, 0], [0, 4]]),
    )
    # by labels 0 and 1 belong together; there is 1 too many around 1, and around 2
    assert found.metrics()["clustering_error"] == pytest.approx(2 / 3)
    by_clusters = replace(found, heard=None)
    assert by_clusters.metrics()["clustering_error"] == pytest.approx((1 + 1 + 2) / 3)
    assert by_clusters.metrics()["uniformity"] == pytest.approx(1 / 3)


def test_labels_are_counted_as_they_are_now_and_missing_ones_are_not():
    before = tiny_population((4, 5, 3))
    y = before.y.clone()
    y[before.train[2]] = -1
    change = Change(2, tensor([0]), (before.test[0][:2],), (before.test[0][2:],))
    people = tiny_population((4, 5, 3), roles=(Role(), Role(), Role(labelled=False)), changes=(change,))
    people.y.copy_(y)
    fed = Vectorised(FedAvg(small_net()), people)
    assert fed.labels_held.tolist() == [[2, 1, 1], [2, 2, 1], [0, 0, 0]]  # labels go 0, 1, 2, 0, 1, ...
    fed.begin(2)
    assert fed.labels_held[0].tolist() == [0, 1, 1]  # the rows after the first four: 1, 2


def test_two_belong_together_if_half_of_the_firsts_labels_are_shared():
    # 0 has labels 0 1 2, 1 has 2 3, 2 has 3: two of the three labels of 0 are wanted, one of 1's two, 2's only one
    counts = tensor([[5, 1, 2, 0], [0, 0, 9, 9], [0, 0, 0, 4]])
    assert belong_together(counts).tolist() == [[True, False, False], [True, True, True], [False, True, True]]


def test_the_clustering_error_counts_both_kinds_of_mistakes_of_others():
    truth = tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]).bool()
    # everybody in one cluster but 3: wrong about 0: 2 is too many; 1: 2 too many; 2: 0, 1 too many, 3 missing; 3: 2
    clusters = tensor([0, 0, 0, 1])
    error, accuracy = clustering_error(clusters[:, None] == clusters, truth)
    assert error == pytest.approx((1 + 1 + 3 + 1) / 4)
    assert accuracy == pytest.approx(((3 + 3 + 1 + 3) / 4) / 4)  # oneself is a hit
    assert clustering_error(truth, truth) == (0.0, 1.0)


def test_the_clustering_error_takes_a_graph_that_goes_one_way():
    truth, graph = torch.eye(2).bool(), tensor([[1, 1], [0, 1]]).bool()
    assert clustering_error(graph, truth) == (0.5, 0.75)


def test_cosines_by_hand():
    alike = cosines(tensor([[3, 4], [4, 3], [0, 2], [0, 0]]))
    assert alike[0, 1] == pytest.approx(24 / 25) and alike[0, 2] == pytest.approx(4 / 5)
    assert alike[3].tolist() == [0, 0, 0, 0]


def test_uniformity_is_the_mean_over_clusters_of_the_mean_over_pairs():
    counts = tensor([[3, 4], [4, 3], [5, 0], [0, 2], [5, 12], [1, 1]])
    clusters = tensor([7, 7, 7, 2, 2, 4])  # the last is alone and does not count
    assert uniformity(counts, clusters) == pytest.approx(((24 / 25 + 3 / 5 + 4 / 5) / 3 + 12 / 13) / 2)
    assert uniformity(counts, clusters) == pytest.approx(
        (cosines(counts)[:3, :3].triu(1).sum() / 3 + cosines(counts)[3, 4]).item() / 2
    )


def test_clusters_of_one_have_no_uniformity():
    assert uniformity(torch.eye(3).double(), tensor([0, 1, 2])) is None
    assert uniformity_of_chance(torch.eye(3).double(), tensor([0, 1, 2]), seed=0) is None


def test_chance_keeps_the_sizes_and_tends_to_the_mean_over_all_pairs():
    counts = tensor([[9, 0], [9, 0], [0, 9], [0, 9]])
    clusters = tensor([0, 0, 1, 1])
    # of the three ways to pair four clients one is perfect, and two are all wrong
    chance = uniformity_of_chance(counts, clusters, seed=0, draws=3000)
    assert chance == pytest.approx(1 / 3, abs=0.03)
    assert chance == uniformity_of_chance(counts, clusters, seed=0, draws=3000)
    everyone = tensor([0, 0, 0, 0])
    assert uniformity_of_chance(counts, everyone, seed=1) == pytest.approx(2 / 6)


def test_clustering_the_labels_is_the_best_there_is_and_sizes_do_not_matter():
    counts = tensor([[900, 0], [3, 0], [0, 2], [0, 700]])
    assert uniformity_of_labels(counts, tensor([0, 1, 0, 1])) == pytest.approx(1.0)
    assert uniformity(counts, tensor([0, 1, 0, 1])) == pytest.approx(0.0)


def test_what_was_found_is_measured_again_only_when_something_changed():
    found = Found(tensor([0, 0, 1]), None, None, tensor([0, 1, 2]), tensor([[4, 0], [4, 0], [0, 4]]), tensor([0, 0, 1]))
    assert found.is_like(replace(found, clusters=found.clusters.clone()))
    for change in ({"clusters": tensor([0, 1, 1])}, {"planted": None}, {"heard": torch.eye(3).bool()}):
        assert not found.is_like(replace(found, **change)) and not replace(found, **change).is_like(found)
