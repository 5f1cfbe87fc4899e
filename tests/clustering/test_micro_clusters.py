import pytest
import torch

from kinfed.clustering.hierarchy import average_linkage
from kinfed.clustering.micro_clusters import MicroClusters, average_clusters, condense, radius_neighbours
from tests.problems import same_clusters


def clusters_of_points(number: int, clusters: int, dimensions: int, loners: int, seed: int) -> torch.Tensor:
    """Points around middles that are 0.6 apart, 0.15 from each other, and loners anywhere."""
    draw = torch.Generator().manual_seed(seed)
    middles = torch.randn(clusters, dimensions, generator=draw).double()
    middles *= 0.6 / 2**0.5 / middles.norm(dim=1, keepdim=True)
    noise = torch.randn(number, dimensions, generator=draw).double() * 0.15 / (2 * dimensions) ** 0.5
    points = middles[torch.arange(number) % clusters] + noise
    points[:loners] = torch.randn(loners, dimensions, generator=draw).double() * 2 / dimensions**0.5
    return points


@pytest.mark.parametrize("clusters, dimensions, loners, seed", [(10, 9, 0, 0), (30, 29, 60, 1), (20, 40, 100, 2)])
def test_clusters_from_micro_clusters_are_those_of_all_points(clusters, dimensions, loners, seed):
    points = clusters_of_points(1800, clusters, dimensions, loners, seed)
    micro_clusters, _ = condense(points, 0.25, 300)
    assert len(micro_clusters) == 300
    exact = average_linkage(torch.cdist(points, points), 0.25)
    assert same_clusters(average_clusters(points, 0.25, 300), exact)
    assert len(exact.unique()) >= clusters + loners // 2


def test_points_that_cannot_be_merged_stay_by_themselves():
    points = 10 * torch.arange(50).double()[:, None]
    assert average_clusters(points, 0.25, 20).unique().tolist() == list(range(50))


def test_equal_points_are_one_micro_cluster():
    assert average_clusters(torch.zeros(40, 0).double(), 0.25, 5).unique().tolist() == [0]
    assert average_clusters(torch.ones(40, 2).double(), 0.25, 5).unique().tolist() == [0]


def test_a_micro_cluster_knows_the_mean_square_of_its_points():
    # by hand: 0 and 2 have mean 1 and mean square 1; with 4 the mean is 2 and the squares are 4, 0, 4
    single = MicroClusters(torch.tensor([[0.0], [2.0], [4.0]]), torch.zeros(3), torch.ones(3))
    two = single.merge(torch.tensor([0, 0, 1]), 2)
    assert two.means.tolist() == [[1.0], [4.0]] and two.spread.tolist() == [1.0, 0.0] and two.counts.tolist() == [2, 1]
    # squared ways from 0 and 2 to 4 are 16 and 4
    assert float(two.distances(torch.tensor([0]), torch.tensor([1]))) == pytest.approx(10**0.5)
    one = two.merge(torch.tensor([0, 0]), 1)
    assert float(one.means) == pytest.approx(2) and float(one.spread) == pytest.approx(8 / 3)


@pytest.mark.parametrize("loners", [0, 200])
def test_all_within_the_radius_are_met_and_most_others_are_not(loners):
    points = clusters_of_points(4000, 10, 9, loners, seed=3)
    near, met = torch.cdist(points, points) < 0.25, torch.zeros(4000, 4000, dtype=torch.bool)
    seen = torch.zeros(4000, dtype=torch.long)
    for some, others in radius_neighbours(points, 0.25):
        met[some[:, None], others] = True
        seen[some] += 1
        assert (others.diff() > 0).all()
    assert (seen == 1).all()
    assert not (near & ~met).any()
    assert met.double().mean() < 0.3
