import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform

from kinfed.clustering.micro_clusters import cut_at, cut_into, link
from tests.problems import same_clusters


def points(number: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(number, 3))


@pytest.mark.parametrize("method", ["average", "ward"])
@pytest.mark.parametrize("seed", range(3))
def test_points_that_stand_for_one_are_linked_as_scipy_links_them(method, seed):
    apart = pdist(points(60, seed))
    ours = link(torch.from_numpy(squareform(apart)), torch.ones(60), method)
    theirs = linkage(apart, method)
    np.testing.assert_allclose(ours[:, 2], theirs[:, 2])
    np.testing.assert_array_equal(ours[:, 3], theirs[:, 3])
    assert same_clusters(cut_into(ours, 7), torch.from_numpy(fcluster(theirs, 7, "maxclust")))


@pytest.mark.parametrize("method", ["average", "ward"])
def test_a_point_that_stands_for_many_is_linked_like_so_many_equal_ones(method):
    some, counts = points(25, seed=4), np.arange(25) % 4 + 1
    everyone = np.repeat(some, counts, axis=0)
    theirs = linkage(pdist(everyone), method)
    apart = squareform(pdist(some))
    if method == "ward":
        apart = apart * np.sqrt(2 * counts[:, None] * counts / (counts[:, None] + counts))
    ours = link(torch.from_numpy(apart), torch.from_numpy(counts), method)
    height = float(theirs[-6, 2]) * 1.0001
    whole = cut_at(ours, height)[torch.arange(25).repeat_interleave(torch.from_numpy(counts))]
    assert same_clusters(whole, torch.from_numpy(fcluster(theirs, height, "distance")))
    assert len(whole.unique()) == 6


def test_one_point_is_one_cluster():
    assert cut_at(link(torch.zeros(1, 1), torch.ones(1), "average"), 1.0).tolist() == [0]
