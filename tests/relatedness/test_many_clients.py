"""Many clients: what is found without looking at all pairs is what all pairs say."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from benchmarks.scaling import planted
from kinfed.errors import ConfigError
from kinfed.relatedness import Relatedness
from kinfed.relatedness.clusterer import neighbours_of_points, share_neighbours
from kinfed.relatedness.set_distances import DISTANCES, candidates, farthest, near_sets, pair_distances, set_distances
from kinfed.signatures import Signatures
from tests.problems import same_clusters

KERNEL = Relatedness()
MANY = replace(KERNEL, all_pairs=1)


def with_loners(clients: int, loners: int, noise: float, seed: int) -> Signatures:
    """Clients of planted groups, some of which hold nothing that another one holds."""
    known, _ = planted(clients, seed, noise)
    points = known.centroids.clone()
    points[:loners] = 3 * torch.randn(points[:loners].shape, generator=torch.Generator().manual_seed(seed))
    return Signatures(points, known.shares)


@pytest.mark.parametrize(
    "clients, loners, noise, seed", [(1500, 30, 1.0, 1), pytest.param(2500, 100, 1.5, 2, marks=pytest.mark.on_demand)]
)
def test_the_kernel_finds_the_same_clusters_and_neighbours(clients, loners, noise, seed, monkeypatch):
    monkeypatch.setattr("kinfed.relatedness.clusterer.MICRO_CLUSTERS", 300)  # far fewer than clients
    known = with_loners(clients, loners, noise, seed)
    few, many = KERNEL.compare(known), MANY.compare(known)
    assert same_clusters(few.clusters(), many.clusters())
    assert torch.equal(few.neighbours().matrix(), many.neighbours().matrix())
    assert len(many.neighbours().rows) >= 50


@pytest.mark.on_demand
def test_the_number_of_clusters_can_be_given_for_many_clients_too():
    known = with_loners(1200, 20, 1.0, 3)
    few, many = KERNEL.compare(known), MANY.compare(known)
    assert same_clusters(few.clusters(clusters=12), many.clusters(clusters=12))
    with pytest.raises(ConfigError, match=r"1201 clusters .* only 1200 clients"):
        many.clusters(clusters=1201)


def scattered(number: int, seed: int) -> Tensor:
    """Points of four groups that touch each other."""
    draw = torch.Generator().manual_seed(seed)
    middles = torch.tensor([[0.0, 0.0], [0.4, 0.0], [0.0, 0.4], [2.0, 2.0]])
    return (middles[torch.arange(number) % 4] + 0.08 * torch.randn(number, 2, generator=draw)).double()


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.9])
def test_the_neighbours_of_points_are_those_of_the_matrix_also_where_clusters_touch(overlap):
    points = scattered(1300, seed=5)
    near = torch.cdist(points, points) < 0.25
    wanted = share_neighbours(near, overlap)
    assert not torch.equal(wanted, near)
    assert torch.equal(neighbours_of_points(points, 0.25, overlap).matrix(), wanted)


def test_one_cluster_is_one_set_of_neighbours():
    found = neighbours_of_points(torch.zeros(3000, 0).double(), 0.25, 0.5)
    assert found.rows.shape == (1, 3000) and found.rows.all()


def sets(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Clients of up to four points each, some of them with fewer."""
    draw = torch.Generator().manual_seed(seed)
    points = 12 * torch.rand(number, 4, 2, generator=draw)
    points[1::2] = points[::2] + 0.5 * torch.randn(points[::2].shape, generator=draw)  # every second has a twin
    shares = torch.full((number, 4), 0.25)
    shares[::5] = torch.tensor([0.5, 0.5, 0.0, 0.0])
    return points, shares


@pytest.mark.on_demand
@pytest.mark.parametrize("kind", DISTANCES)
def test_near_sets_are_those_of_the_matrix(kind):
    points, shares = sets(300, seed=1)
    near = set_distances(kind, points, shares, points, shares) < 1.0
    wanted = near | near.T | torch.eye(300, dtype=torch.bool)
    assert int(wanted.sum()) > 320
    assert torch.equal(near_sets(kind, points, shares, 1.0).neighbours().matrix(), wanted)


@pytest.mark.parametrize("kind", DISTANCES)
def test_distances_of_pairs_are_those_of_the_matrix(kind):
    points, shares = sets(20, seed=2)
    pairs = torch.tensor([[0, 1], [5, 3], [7, 7], [19, 10]])
    whole = set_distances(kind, points, shares, points, shares)
    torch.testing.assert_close(pair_distances(kind, points, shares, pairs), whole[pairs[:, 0], pairs[:, 1]])


def test_candidates_are_few_and_miss_nobody():
    points, shares = sets(300, seed=3)
    found = torch.cat(list(candidates(10 * points, shares, farthest("min", 1.0, 4))))
    least = set_distances("min", 10 * points, shares, 10 * points, shares)
    wanted = {tuple(pair) for pair in (least < 1.0).triu(1).nonzero().tolist()}
    assert wanted <= {tuple(pair) for pair in found.tolist()}
    assert len(found) < 0.2 * 300 * 299 / 2


def test_a_matching_can_be_near_though_no_two_points_are_nearer_than_the_threshold():
    # four matched points, each 1.9 apart: √(4 · 1.9²) / 4 = 0.95, and 1.9 is below √4 · 1
    points = torch.tensor([[0.0, 0.0], [20.0, 0.0], [40.0, 0.0], [60.0, 0.0]]).repeat(2, 1, 1)
    points[1, :, 1] = 1.9
    graph = near_sets("matching", points, torch.full((2, 4), 0.25), 1.0)
    assert graph.neighbours().matrix().all()


@pytest.mark.xdist_group("umap")  # which takes long to compile: once
@pytest.mark.parametrize("distance", ["matching", "min"])
def test_umap_and_set_distances_give_the_same_graph_either_way(distance):
    known, _ = planted(150, seed=4)
    rule = Relatedness(distance=distance)
    few, many = rule.compare(known), replace(rule, all_pairs=1).compare(known)
    assert torch.equal(few.neighbours().matrix(), many.neighbours().matrix())
    assert same_clusters(few.clusters(), many.clusters())


def test_a_stranger_is_near_the_same_known_clients_either_way():
    known, _ = planted(200, seed=0)
    unseen, _ = planted(30, seed=0)
    wanted = KERNEL.distances(known, unseen) < KERNEL.near
    assert torch.equal(KERNEL.relate_unseen(known, unseen).matrix(), wanted)


def test_clusters_where_nothing_is_planted_are_about_as_many():
    points = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)).double() * 0.2
    from kinfed.clustering.hierarchy import average_linkage
    from kinfed.clustering.micro_clusters import average_clusters

    exact, from_lumps = average_linkage(torch.cdist(points, points), 0.25), average_clusters(points, 0.25, 400)
    assert abs(len(from_lumps.unique()) / len(exact.unique()) - 1) < 0.25
    assert adjusted_rand_score(exact, from_lumps) > 0.3


@pytest.mark.parametrize("wrong", [{"overlap": 0.0}, {"overlap": 1.1}, {"all_pairs": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match="overlap in"):
        Relatedness(**wrong)
