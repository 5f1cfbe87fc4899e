import pytest
import torch
from torch import Tensor

from kinfed.clustering.hierarchy import distances
from kinfed.clustering.kmeans import server_kmeans
from kinfed.clustering.silhouettes import CLEAR, WORTH, find_large, fit_to_most, silhouette
from tests.problems import same_clusters


def test_the_smallest_clusters_have_at_most_the_doubted_together():
    clusters = torch.tensor([4, 0, 0, 0, 7, 7, 2, 2, 2, 2])  # of 1, 3, 2 and 4 points
    left = {doubted: find_large(clusters, doubted).tolist() for doubted in (0, 1, 2, 3, 5)}
    assert left[0] == list(range(10))
    assert left[1] == left[2] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert left[3] == left[5] == [1, 2, 3, 6, 7, 8, 9]


def choose(points: Tensor, clusters: int, doubted: int) -> tuple[list[int], Tensor]:
    """Which points k-means is fitted to, and the clusters that it finds then."""

    def fit(some: Tensor) -> Tensor:
        return server_kmeans(points[some], clusters, points[:0], seed=0)[0]

    def measure(some: Tensor) -> Tensor:
        return distances(points[some], points[some], "l2")

    some, found = fit_to_most(len(points), doubted, fit, measure)
    return some.tolist(), found


THREE = torch.tensor([[0.0], [1.0], [10.0], [11.0], [20.0], [21.0]])


@pytest.mark.parametrize("far", [[90.0], [90.0, 91.0]])
def test_a_few_in_doubt_take_no_cluster_from_the_others(far):
    points = torch.cat([torch.tensor(far)[:, None], THREE])
    some, found = choose(points, clusters=3, doubted=len(far))
    assert some == list(range(len(far), len(points)))
    assert same_clusters(found, torch.tensor([0, 0, 1, 1, 2, 2]))
    everybody = list(range(len(points)))
    assert choose(points, clusters=3, doubted=len(far) - 1)[0] == choose(points, clusters=3, doubted=0)[0] == everybody


def test_a_small_cluster_of_its_own_kind_is_kept():
    cloud = torch.randn(18, 500, generator=torch.Generator().manual_seed(0))
    points = torch.cat([cloud[:2].roll(1, 1) + 5, cloud])
    some, found = choose(points, clusters=2, doubted=2)
    assert some == list(range(20))
    assert same_clusters(found, torch.tensor([0] * 2 + [1] * 18))


def test_a_small_cluster_is_kept_unless_the_others_have_clusters_about_as_clear():
    cloud = torch.randn(18, 12, generator=torch.Generator().manual_seed(0))
    points = torch.cat([cloud[:2] / 10 + 40, cloud])
    halves = server_kmeans(cloud, 2, cloud[:0], seed=0)[0]
    assert WORTH < silhouette(distances(cloud, cloud, "l2"), halves) < CLEAR
    some, found = choose(points, clusters=2, doubted=2)
    assert some == list(range(20))
    assert same_clusters(found, torch.tensor([0] * 2 + [1] * 18))


LINE = torch.arange(9.0)[:, None]


def test_another_few_alone_are_no_clusters_of_the_others():
    points = torch.cat([torch.tensor([[300.0], [40.0]]), LINE])
    some, found = choose(points, clusters=2, doubted=1)
    assert some == list(range(11))
    assert same_clusters(found, torch.tensor([1] + [0] * 10))


def test_a_few_alone_stay_so_where_the_others_have_clear_clusters_already():
    points = torch.cat([torch.tensor([[100.0]]), LINE[:3], LINE[:3] + 20])
    some, found = choose(points, clusters=3, doubted=1)
    assert some == list(range(7))
    assert same_clusters(found, torch.tensor([0, 1, 1, 1, 2, 2, 2]))
