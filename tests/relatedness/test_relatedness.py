import pytest
import torch

from kinfed.errors import ConfigError
from kinfed.metrics import agreement
from kinfed.relatedness import Relatedness, nearest_clusters
from kinfed.relatedness.clusterer import share_neighbours
from kinfed.relatedness.embeddings import fit_kernel
from kinfed.signatures import Signatures
from tests.problems import same_clusters

CLASSES = 12 * torch.randn(8, 16, generator=torch.Generator().manual_seed(3))


def clients(held: list[list[int]], each: int = 6, k: int = 4, seed: int = 0) -> tuple[Signatures, torch.Tensor]:
    """Clients of groups that hold these classes; k centroids fall on their classes at random, on each at least once."""
    draw = torch.Generator().manual_seed(seed)
    points, shares = [], []
    for classes in held:
        for _ in range(each):
            more = torch.randint(len(classes), (k - len(classes),), generator=draw)
            place = torch.cat([torch.arange(len(classes)), more])
            points.append(CLASSES[torch.tensor(classes)[place]] + torch.randn(k, 16, generator=draw))
            times = torch.bincount(place, minlength=len(classes))[place]
            shares.append(1 / (len(classes) * times))
    clusters = torch.arange(len(held)).repeat_interleave(each)
    return Signatures(torch.stack(points), torch.stack(shares)), clusters


PLANTED = [[0, 1], [2, 3], [4, 5]]


def test_the_kernel_finds_planted_clusters_however_kmeans_splits_their_classes():
    known, planted = clients(PLANTED)
    rule = Relatedness()
    distances = rule.distances(known)
    assert same_clusters(rule.clusters(distances), planted)
    assert torch.equal(rule.related(distances), planted[:, None] == planted)


def test_the_kernel_keeps_clusters_with_a_shared_class_apart():
    known, planted = clients([[0, 1, 2], [2, 3, 4], [4, 5, 0]])
    rule = Relatedness()
    assert same_clusters(rule.clusters(rule.distances(known)), planted)


def test_the_kernel_sees_one_cluster_where_all_hold_the_same():
    known, _ = clients([[0, 1, 2]], each=30)
    rule = Relatedness()
    distances = rule.distances(known)
    assert rule.clusters(distances).unique().tolist() == [0]
    assert rule.related(distances).all()


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-3, 1e6])
def test_equal_clients_are_at_no_distance(value):
    known = Signatures(torch.full((5, 3, 4), value), torch.full((5, 3), 1 / 3))
    known.centroids[-1] *= 1 + 1.2e-7  # a last bit, as some CPUs give other rows of one product
    assert Relatedness().distances(known).max() < 0.1  # related below 0.25


def test_most_equal_centroids_leave_the_others_apart():
    known = Signatures(torch.ones(12, 3, 4), torch.full((12, 3), 1 / 3))
    known.centroids[9:] += 1e-3
    rule = Relatedness()
    assert rule.clusters(rule.distances(known)).tolist() == [0] * 9 + [1] * 3


def test_a_centroid_without_rows_changes_nothing():
    known, _ = clients(PLANTED)
    padded = Signatures(
        torch.cat([known.centroids, torch.full((18, 1, 16), 50.0)], 1), torch.cat([known.shares, torch.zeros(18, 1)], 1)
    )
    torch.testing.assert_close(fit_kernel(known, 0.4, 1).means(known), fit_kernel(padded, 0.4, 1).means(padded))


def test_strangers_are_near_their_own():
    known, planted = clients(PLANTED)
    unseen, truth = clients(PLANTED, each=2, seed=9)
    rule = Relatedness()
    near = rule.distances(known, unseen) < rule.near
    assert torch.equal(near, truth[:, None] == planted)
    assert torch.equal(nearest_clusters(known, planted, unseen), truth)


def test_one_wrong_edge_does_not_survive():
    labels = torch.tensor([0] * 5 + [1] * 5)
    near = labels[:, None] == labels
    near[0, 9] = near[9, 0] = True
    assert torch.equal(share_neighbours(near, 0.5), labels[:, None] == labels)


@pytest.mark.xdist_group("umap")  # which takes long to compile: once
@pytest.mark.parametrize("distance", ["matching", "transport"])
def test_umap_and_set_distances_find_planted_clusters_when_k_is_right(distance):
    known, planted = clients(PLANTED, each=10, k=2)
    rule = Relatedness(distance=distance)
    assert agreement(rule.clusters(rule.distances(known)), planted)["ari"] > 0.9


@pytest.mark.xdist_group("umap")  # which takes long to compile: once
def test_strangers_are_placed_in_the_plane_that_umap_made_of_the_known():
    known, planted = clients(PLANTED, each=10, k=2)
    unseen, truth = clients(PLANTED, each=2, k=2, seed=9)
    nearest = Relatedness(distance="matching").distances(known, unseen).argmin(1)
    assert torch.equal(planted[nearest], truth)


def test_the_number_of_clusters_can_be_given():
    known, _ = clients(PLANTED)
    rule = Relatedness()
    distances = rule.distances(known)
    assert len(rule.clusters(distances, clusters=3).unique()) == 3
    assert len(rule.clusters(distances, clusters=1).unique()) == 1


@pytest.mark.parametrize(
    "wrong", [{"distance": "maching"}, {"threshold": -1.0}, {"neighbours": 1}, {"kernel_width": 0.0}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        Relatedness(**wrong)


@pytest.mark.parametrize("distance", ["kernel", "matching"])
def test_a_number_of_clusters_is_cut_by_distances_where_nobody_is_related(distance):
    # three pairs on a line; the graph has no edge, so that Ward's linkage of its rows would split by position
    place = torch.tensor([0.0, 9.0, 0.2, 5.0, 9.2, 5.2])
    distances, planted = (place[:, None] - place).abs(), torch.tensor([0, 2, 0, 1, 2, 1])
    rule = Relatedness(distance=distance, threshold=0.1)
    assert torch.equal(rule.related(distances), torch.eye(6, dtype=torch.bool))
    assert same_clusters(rule.clusters(distances, 3), planted)
    assert same_clusters(rule.clusters(distances, 2), (planted > 0).long())  # those at 5 and 9 are nearest
