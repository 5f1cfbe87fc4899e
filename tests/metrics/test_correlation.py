"""REPA's correlation, by hand."""

import numpy as np
import pytest
import torch
from torch import tensor

from kinfed.data import Augment, Dataset, LabelSwap, Rotation, build_population, load
from kinfed.data.partitions import IID
from kinfed.metrics import bootstrap_error, divergences, drift_similarity, pearson
from kinfed.metrics.dry_runs import correlation, pairs_of

CPU = torch.device("cpu")


def test_each_pair_counts_once():
    assert pairs_of(tensor([[1, 2, 3], [9, 1, 4], [9, 9, 1]])).tolist() == [2, 3, 4]


def test_pearson_by_hand():
    # deviations -1 0 1 and -1 1 0: their product sums to 1, their squares to 2 and 2
    assert pearson(tensor([1.0, 2, 3]), tensor([0.0, 2, 1])) == pytest.approx(1 / 2)
    assert pearson(tensor([1.0, 2, 3]), tensor([-2.0, -4, -6])) == pytest.approx(-1)
    assert pearson(tensor([1.0, 2]), tensor([5.0, 5])) is None and pearson(tensor([1.0]), tensor([2.0])) is None


def test_the_bootstrap_error_is_the_deviation_of_resampled_correlations_over_ten():
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(200, generator=generator).double()
    b = a + torch.randn(200, generator=generator).double()
    true = pearson(a, b)
    # Pearson's own spread is (1 - r²)/√n; a tenth of it after 100 resamples
    assert bootstrap_error(a, b, seed=0) == pytest.approx((1 - true**2) / 200**0.5 / 10, rel=0.3)
    assert bootstrap_error(a, b, seed=0) == bootstrap_error(a, b, seed=0)
    assert bootstrap_error(a, 2 * a, seed=0) == pytest.approx(0, abs=1e-9)


def test_a_similarity_that_is_the_same_for_all_has_no_correlation():
    seen = tensor([[1, 0.2, 0.1], [0.2, 1, 0.4], [0.1, 0.4, 1]])
    assert correlation("labels", seen, torch.ones(3, 3), seed=0) == {}
    assert correlation("labels", seen, seen, seed=0)["correlation_labels"] == pytest.approx(1)


def test_divergence_is_one_bit_for_those_who_share_nothing_and_none_for_equals():
    one, other, half = [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]
    found = divergences(tensor([[one, one], [other, one], [half, half]], dtype=torch.double))
    # of a and b the entropy of their mean less the mean of their entropies: one and half meet at (3/4, 1/4)
    quarter = -(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25)) - (0 + 1) / 2
    assert found.diagonal().tolist() == [0, 0, 0]
    assert found[0, 1] == pytest.approx((1 + 0) / 2)
    assert found[0, 2] == pytest.approx(quarter) and found[1, 2] == pytest.approx(quarter)
    assert torch.equal(found, found.T)


@pytest.mark.on_demand
def test_clients_with_the_same_view_look_the_same_and_others_do_not():
    population = build_population(load("digits"), IID(6), 0, shift=Rotation((0, 90, 180)))
    similarity = drift_similarity(population, CPU)
    same = population.true_clusters[:, None] == population.true_clusters
    assert (similarity[same] == 1).all() and (similarity[~same] < 0.99).all() and (similarity >= 0).all()
    assert drift_similarity(population, CPU) is similarity  # once for each population
    again = build_population(load("digits"), IID(6), 0, shift=Rotation((0, 90, 180)))
    assert torch.equal(drift_similarity(again, CPU), similarity)


@pytest.mark.on_demand
def test_pipelines_of_their_own_make_all_clients_look_different():
    population = build_population(load("digits"), IID(4), 0, shift=Augment(count=3))
    similarity = drift_similarity(population, CPU)
    assert similarity.diagonal().tolist() == [1] * 4 and (pairs_of(similarity) < 1).all()


def test_there_is_no_drift_where_images_look_the_same():
    plain = build_population(load("digits"), IID(4), 0)
    swapped = build_population(load("digits"), IID(4), 0, shift=LabelSwap(((0, 1), (2, 3))))
    assert drift_similarity(plain, CPU) is None and drift_similarity(swapped, CPU) is None


def test_images_of_any_size_have_an_auto_encoder():
    x, y = np.zeros((40, 1, 6, 6), np.uint8), np.arange(40) % 4
    x[:, 0, 0] = 200
    population = build_population(Dataset("odd", x, y, x, y, 4), IID(4), 0, shift=Rotation((0, 90)))
    similarity = drift_similarity(population, CPU)
    assert similarity is not None and float(similarity[0, 3]) < float(similarity[0, 0])
