"""Agreement with ground truth, FLIS' clustering error and REPA's uniformity, by hand."""

import math

import pytest
import torch
from torch import tensor

from kinfed.metrics import (
    agreement,
    belong_together,
    clustering_error,
    cosines,
    pair_quality,
    uniformity,
    uniformity_of_chance,
    uniformity_of_labels,
)


def test_cluster_agreement_ignores_names_and_the_unplaced():
    true = torch.tensor([0, 0, 1, 1, 1])
    perfect = agreement(torch.tensor([7, 7, 3, 3, -1]), true)
    assert perfect == pytest.approx({"ari": 1.0, "nmi": 1.0, "purity": 1.0, "clusters": 2.0})
    assert agreement(torch.zeros(5), true)["ari"] == 0.0


def test_nobody_divided_is_full_agreement():
    assert agreement(torch.zeros(3), torch.zeros(3)) == {"ari": 1.0, "nmi": 1.0, "purity": 1.0, "clusters": 1.0}


def test_pair_quality_by_hand():
    related = torch.eye(4).bool()
    related[0, 1] = related[1, 0] = related[1, 2] = related[2, 1] = True
    precision, recall = pair_quality(related, torch.tensor([0, 0, 1, 1]))
    assert (precision, recall) == (0.5, 0.5)


def test_agreement_by_hand():
    # cluster 0 holds ground-truth 0, 0, 1 (2 right), cluster 1 holds 1, 1 (2 right)
    said = agreement(tensor([0, 0, 0, 1, 1]), tensor([0, 0, 1, 1, 1]))
    assert said["purity"] == pytest.approx(4 / 5) and said["clusters"] == 2
    # pairs together in both 1 + 1, in ours 3 + 1, in the ground truth 1 + 3, of 10: (2 - 1.6)/(4 - 1.6)
    assert said["ari"] == pytest.approx(1 / 6, abs=1e-12)
    shared = 0.4 * math.log(0.4 / (0.6 * 0.4)) + 0.2 * math.log(0.2 / 0.36) + 0.4 * math.log(0.4 / (0.4 * 0.6))
    entropy = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))  # of both
    assert said["nmi"] == pytest.approx(shared / entropy, abs=1e-12)


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
