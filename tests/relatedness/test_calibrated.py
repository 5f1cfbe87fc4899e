"""Planted normal samples with variance 1, so that the noise of a client's mean is known by hand."""

import logging

import numpy as np
import pytest
import torch
from scipy.special import fdtrc
from torch import Tensor
from torch.testing import assert_close

from kinfed.config import DEMO, assemble, load_config
from kinfed.errors import ConfigError, DataError
from kinfed.relatedness import Calibrated
from kinfed.relatedness.calibrated import ALIKE, nest_clusters, observe
from kinfed.relatedness.noise_model import (
    PooledParts,
    choose_mixture,
    edge_of_noise,
    find_p_value,
    fit_coordinates,
    group_apart,
)
from kinfed.signatures import Signatures
from tests.problems import same_clusters

WIDTH, PARTS = 12, 4
LABELS = torch.arange(60) % 4
SIZES = torch.full((60,), 40)


def draw(means: Tensor, sizes: Tensor, seed: int = 0) -> Signatures:
    """Signatures of clients with these means [M, d] and numbers of samples [M]."""
    random = torch.Generator().manual_seed(seed)
    counts = torch.stack([(sizes + PARTS - 1 - part) // PARTS for part in range(PARTS)], 1).float()
    noise = torch.randn(len(means), PARTS, means.shape[1], generator=random) / counts.clamp(min=1).sqrt()[..., None]
    return Signatures((means[:, None] + noise) * (counts > 0)[..., None], counts)


def place(labels: Tensor, distance: float = 3.0) -> Tensor:
    """The mean of each client: cluster c is at `distance` along axis c."""
    return distance * torch.eye(WIDTH)[labels]


def find(known: Signatures) -> Tensor:
    return Calibrated().compare(known).clusters()


def forty(number: int) -> Tensor:
    return torch.full((number,), 40)


@pytest.fixture(scope="module")
def planted() -> Signatures:
    return draw(place(LABELS), SIZES)


@pytest.fixture(scope="module")
def clusters(planted: Signatures) -> Tensor:
    return find(planted)


def test_planted_clusters_are_found_and_logged(planted, caplog):
    with caplog.at_level(logging.INFO, "kinfed"):
        compared = Calibrated().compare(planted)
    assert same_clusters(compared.clusters(), LABELS)
    assert "4 clusters, well separated (within-cluster share of variance 0.0" in caplog.text
    assert torch.equal(compared.neighbours().matrix(), LABELS[:, None] == LABELS)


def test_clients_that_differ_by_noise_alone_are_one_cluster():
    model = Calibrated().fit(draw(place(0 * LABELS), SIZES))
    assert model.summary() == "one cluster: clients are alike" and len(model.mixture) == 1


def test_clients_along_a_line_differ_by_degrees():
    means = torch.zeros(60, WIDTH)
    means[:, 0] = torch.linspace(0, 5, 60)
    assert Calibrated().fit(draw(means, SIZES)).summary() == (
        "one cluster: clients differ by degrees (within-cluster share of variance 1.00)"
    )


def test_clients_that_differ_a_little_in_all_directions_are_not_alike():
    means = 0.1 * torch.randn(60, WIDTH, generator=torch.Generator().manual_seed(1))
    model = Calibrated().fit(draw(means, SIZES))
    assert model.kept == 0 and model.coordinates.p_value < 0.001, "no direction alone shows it"
    assert model.summary() == "one cluster: clients differ by degrees (within-cluster share of variance 1.00)"


def test_clients_that_differ_in_one_direction_of_many_are_not_alike():
    means = torch.zeros(180, 60)
    means[:, 0] = 1.6 / 40**0.5 * (1 - 2.0 * (torch.arange(180) % 2))
    model = Calibrated().fit(draw(means, forty(180)))
    assert model.kept == 1 and model.coordinates.p_value > 0.1, "all directions together do not show it"
    assert model.summary().startswith("2 clusters, well separated")


def test_clients_that_differ_by_samples_or_by_labels_alone_are_not_alike():
    alike, line = draw(place(0 * LABELS), SIZES), torch.zeros(60, WIDTH)
    line[:, 0] = torch.linspace(0, 5, 60)
    degrees = draw(line, SIZES)
    for plain, labelled, differ in ((alike, alike, False), (degrees, alike, True), (alike, degrees, True)):
        found = nest_clusters(Calibrated(), plain, labelled)
        assert (found[0].unique().tolist(), found[1]) == ([0], differ)
    assert nest_clusters(Calibrated(), alike.of(torch.arange(7)), alike.of(torch.arange(7)))[1], "too few to say"


@pytest.mark.parametrize("each, clusters", [(7, 2), (8, 4)])
def test_clusters_of_eight_clients_are_split_by_labels_and_smaller_ones_are_not(each, clusters):
    outer = torch.arange(2).repeat_interleave(each)
    plain, labelled = (draw(place(c, 9.0), forty(2 * each)) for c in (outer, 2 * outer + torch.arange(2 * each) % 2))
    assert len(nest_clusters(Calibrated(), plain, labelled)[0].unique()) == clusters


def test_the_p_value_of_differences_is_uniform_where_clients_are_alike():
    uneven = torch.arange(60) % 37 + 4
    found = [fit_coordinates(PooledParts.of(draw(place(0 * LABELS), uneven, seed))).p_value for seed in range(200)]
    assert_close(torch.tensor(found).sort().values, torch.linspace(0, 1, 200), atol=0.12, rtol=0.0)
    assert sum(p_value < ALIKE for p_value in found) <= 6, "of 200 about 2 are said to differ"


def test_the_p_value_in_one_direction_is_that_of_an_f_test():
    assert find_p_value(2.0 * 59 / 180, 1, 59, 180) == pytest.approx(fdtrc(59, 180, 2.0))
    assert find_p_value(0.0, 1, 0, 100) == 1.0, "one client"
    assert find_p_value(2.0, 12, 59, 15) == 1.0, "too few degrees of freedom to measure the noise of 12 directions"


def test_clusters_that_clients_lie_between_count_as_one():
    means = torch.zeros(100, WIDTH)
    means[:, :10] = 6 * torch.from_numpy(np.random.default_rng(13).dirichlet([0.1] * 10, 100))
    known = draw(means, torch.full((100,), 400), seed=13)
    seen = observe(fit_coordinates(pooled := PooledParts.of(known)), pooled)
    assert len(choose_mixture(seen, 50)) == 2, "a mixture of two would fit better"
    assert find(known).unique().tolist() == [0]


def test_a_number_of_clusters_that_is_asked_for_is_given(planted):
    assert len(Calibrated().compare(planted).clusters(2).unique()) == 2


def test_uneven_clients_are_weighted_by_their_own_noise():
    sizes = torch.tensor([8, 16, 64, 1024]).repeat_interleave(4).repeat(6)
    labels = torch.arange(96) % 4
    assert same_clusters(find(draw(place(labels), sizes)), labels)


def test_uneven_clusters_and_a_single_client_are_found():
    labels = torch.tensor([0] * 40 + [1] * 15 + [2] * 4 + [3])
    assert same_clusters(find(draw(place(labels), SIZES)), labels)


def test_unseen_clients_join_their_cluster_or_fit_none(planted, clusters):
    unseen = torch.arange(2000) % 8  # clusters 4 to 7 were never seen
    fit = Calibrated().fit_unseen(planted, 10 * clusters, draw(place(unseen), forty(2000), seed=1))
    known = unseen < 4
    assert float((~fit.fits[~known]).double().mean()) >= 0.95
    assert float((~fit.fits[known]).double().mean()) <= 0.05
    assert_close(fit.clusters[known], 10 * clusters[:4][unseen[known]])
    assert_close(fit.distances[known].argmin(1), fit.clusters[known])
    assert fit.distances[0].isfinite().nonzero()[:, 0].tolist() == [0, 10, 20, 30]


def test_the_p_value_of_genuine_clients_is_uniform(planted, clusters):
    fit = Calibrated().fit_unseen(planted, clusters, draw(place(torch.arange(2000) % 4), forty(2000), seed=2))
    assert abs(float((fit.p_values < 0.1).double().mean()) - 0.1) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_genuine_clients_with_far_more_samples_than_those_that_trained_fit_and_strangers_do_not(seed):
    """Means of a cluster's clients vary by 0.1, which clients of 50 samples hide in noise of 0.14."""
    random, unseen = torch.Generator().manual_seed(seed), torch.arange(400) % 8  # clusters 4 to 7 were never seen
    vary = [0.1 * torch.randn(number, WIDTH, generator=random) for number in (60, 400)]
    known = draw(place(LABELS, 2.0) + vary[0], torch.full((60,), 50), seed)
    fits = Calibrated().fit_unseen(known, LABELS, draw(place(unseen, 2.0) + vary[1], 40 * forty(400), seed + 9)).fits
    assert float((~fits[unseen < 4]).double().mean()) <= 0.05
    assert float((~fits[unseen >= 4]).double().mean()) >= 0.95


def test_a_client_of_pure_noise_fits_nowhere(planted, clusters):
    noise = 20 * torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(3))
    assert not bool(Calibrated().fit_unseen(planted, clusters, draw(noise, forty(1))).fits)


def test_unseen_clients_are_related_to_the_members_of_their_cluster(planted):
    near = Calibrated().relate_unseen(planted, draw(place(torch.tensor([2, 0])), forty(2), seed=1))
    assert torch.equal(near.matrix(), torch.tensor([[2], [0]]) == LABELS)


def test_a_lying_client_does_not_change_the_clusters_of_others(planted):
    lie = 1e12 * torch.randn(1, PARTS, WIDTH, generator=torch.Generator().manual_seed(4))
    found = find(Signatures(torch.cat([planted.centroids, lie]), torch.cat([planted.shares, planted.shares[:1]])))
    assert same_clusters(found[:60], LABELS) and bool((found[:60] != found[60]).all())


def test_clients_without_a_usable_signature_are_alone(planted):
    parts, counts = planted.centroids.clone(), planted.shares.clone()
    parts[5, 0, 0], counts[6] = torch.nan, 0
    found = find(Signatures(parts, counts))
    rest = torch.tensor([m not in (5, 6) for m in range(60)])
    assert same_clusters(found[rest], LABELS[rest]) and found[5:7].tolist() == [4, 5]


def test_no_usable_signature_is_an_error():
    with pytest.raises(DataError, match="no client sent"):
        find(Signatures(torch.full((3, PARTS, 2), torch.nan), torch.ones(3, PARTS)))


def test_the_order_of_clients_changes_nothing(planted):
    order = torch.randperm(60, generator=torch.Generator().manual_seed(5))
    one, other = (
        Calibrated().fit(planted).assign(planted),
        Calibrated().fit(planted.of(order)).assign(planted.of(order)),
    )
    assert same_clusters(one.clusters[order], other.clusters)
    assert_close(one.p_values[order], other.p_values, atol=1e-6, rtol=1e-4)


def test_the_unit_of_the_signature_changes_nothing(planted):
    assert same_clusters(find(Signatures(planted.centroids * 1000 + 7, planted.shares)), LABELS)


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_very_few_clients_are_one_cluster(clients):
    assert find(draw(place(torch.zeros(clients, dtype=torch.long)), forty(clients))).tolist() == [0] * clients


@pytest.mark.parametrize(
    "labels", [[0, 0, 1], [0, 1, 0], [0, 0, 1, 2], [0, 0, 1, 1, 2], [0, 1, 0, 1, 2, 3], [0, 0, 0, 0, 0, 0, 1]]
)
def test_few_clients_are_related_that_differ_by_no_more_than_noise(labels):
    labels = torch.tensor(labels)
    known = [draw(place(labels, 9.0), 40 + 30 * torch.arange(len(labels)), seed) for seed in range(10)]
    assert sum(same_clusters(find(clients), labels) for clients in known) >= 9, "a test at level 0.01 errs at times"


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 7])
def test_few_clients_that_all_differ_are_one_cluster_and_the_run_says_so(clients):
    model = Calibrated().fit(draw(place(torch.arange(clients), 9.0), forty(clients)))
    assert len(model.mixture) == 1
    assert model.summary() == f"one cluster: {clients} clients differ, and are too few to tell clusters from degrees"


def test_of_few_clients_one_chance_pair_is_no_cluster_among_others_that_all_differ():
    assert len(find(draw(place(torch.tensor([0, 0, 1, 2, 3]), 9.0), forty(5))).unique()) == 1


def test_few_clients_stand_apart_by_the_nearest_of_two_groups_and_the_farthest_of_one():
    points = torch.tensor([[0.0], [1.0], [3.0], [4.0]])  # squared distances 1 within groups, 4 between the nearest
    sizes = torch.full((4,), 2.0)
    found = group_apart(points, sizes, 4.0)
    assert found is not None and same_clusters(found, torch.tensor([0, 0, 1, 1]))
    assert group_apart(points, sizes, 4.1) is None
    assert group_apart(points[:3], sizes[:3], 1.0) is None, "one client is no group"
    heavy = group_apart(points, torch.tensor([2.0, 2.0, 2.0, 20.0]), 4.0)  # the same distance of more samples: 1.8
    assert heavy is None


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2]])
def test_few_clients_that_all_differ_are_clusters_where_these_differ_far_more(labels):
    labels = torch.tensor(labels)
    own = 0.5 * torch.randn(len(labels), WIDTH, generator=torch.Generator().manual_seed(5))  # ten times the noise
    assert same_clusters(find(draw(place(labels, 9.0) + own, forty(len(labels)))), labels)


@pytest.mark.parametrize("clients", [4, 5, 6, 7])
def test_few_clients_of_the_demo_are_told_apart_though_each_has_other_writers(clients):
    settings = [f"partition.clients={clients}", "partition.clusters=2"]
    for seed in range(4):
        experiment = assemble(load_config(DEMO, ["method=flt", "rounds=1", f"seed={seed}", *settings]))
        assert same_clusters(experiment.method.init(experiment.fed).clusters, experiment.fed.true_clusters), seed


def test_clients_of_one_sample_are_one_cluster():
    assert find(draw(place(LABELS, 0.0), torch.ones(60, dtype=torch.long))).tolist() == [0] * 60


def test_identical_signatures_are_one_cluster():
    assert find(Signatures(torch.ones(10, PARTS, WIDTH), torch.full((10, PARTS), 5.0))).tolist() == [0] * 10


def test_noise_is_measured_between_parts():
    pooled = PooledParts.of(Signatures(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[4.0, 4.0]])))
    assert pooled.means.tolist() == [[2.0]] and pooled.sizes.tolist() == [8.0]
    assert pooled.noise.flatten().tolist() == [-2.0, 2.0]  # √4 · (1 - 2)
    assert pooled.freedom.tolist() == [1.0]


def test_a_client_of_few_samples_has_fewer_parts_to_measure_noise_between():
    counts = torch.tensor([[2.0, 2.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert PooledParts.of(Signatures(torch.ones(4, 3, 1), counts)).freedom.tolist() == [2.0, 1.0, 0.0, 0.0]


def test_clients_of_one_sample_measure_no_noise_and_do_not_lower_that_of_others():
    parts = torch.tensor([[[1.0], [3.0]], [[5.0], [0.0]], [[6.0], [0.0]]])
    pooled = PooledParts.of(Signatures(parts, torch.tensor([[4.0, 4.0], [1.0, 0.0], [1.0, 0.0]])))
    assert pooled.limit_noise().flatten(1).tolist() == [[-2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


def test_the_edge_is_that_of_marchenko_and_pastur_where_clients_are_many():
    assert edge_of_noise(250_000, 1_000_000, 1e15) == pytest.approx((1 + 0.5) ** 2, rel=1e-3)


def test_noise_in_coordinates_is_one_per_sample(planted):
    pooled = PooledParts.of(planted)
    coordinates = fit_coordinates(pooled)
    rows = (pooled.noise @ coordinates.basis).flatten(0, 1)
    assert coordinates.kept == 3  # four clusters span three directions
    assert_close(rows.mT @ rows / (3 * 60), torch.eye(WIDTH, dtype=torch.double))


def test_few_parts_measure_the_noise_of_few_directions():
    four = PooledParts.of(draw(place(LABELS[:4]), forty(4)))  # 4 · 3 degrees of freedom, two for each direction
    assert fit_coordinates(four).basis.shape == (WIDTH, 6)


@pytest.mark.parametrize("settings", [{"level": 1.0}, {"level": -0.1}, {"most_clusters": 0}, {"most_clusters": 41}])
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Calibrated(**settings)


def test_the_probability_of_a_cluster_is_right_as_often_as_it_says():
    """Two clusters at a distance of two standard deviations of a client's mean: by hand, one in six errs."""
    labels, many = torch.arange(400) % 2, torch.arange(2000) % 2
    step = torch.zeros(WIDTH)
    step[0] = 2 / 40**0.5
    known, unseen = draw(labels[:, None] * step, forty(400)), draw(many[:, None] * step, forty(2000), seed=1)
    fit = Calibrated().fit_unseen(known, labels, unseen)
    right = (fit.clusters == many).double()
    assert abs(float(right.mean()) - 0.84) < 0.04
    assert abs(float(right.mean() - fit.probabilities.mean())) < 0.03
    sure = fit.probabilities > 0.9
    assert float(right[sure].mean()) > 0.9 > float(right[~sure].mean())


def test_a_client_of_a_separate_cluster_is_sure(planted, clusters):
    assert float(Calibrated().fit_unseen(planted, clusters, planted).probabilities.min()) > 0.999
