"""Clusters at the knee, and one point that joins two of them or makes the knee small."""

import pytest
import torch

from kinfed.clustering.knee_linkage import count_joined, find_knee, link_others, link_within_knee, part_joined
from tests.problems import same_clusters

GRID = torch.tensor([[x, y] for x in (0.0, 1.0) for y in (0.0, 1.0, 2.0)])
TWO, PARTS = torch.cat([GRID, GRID + torch.tensor([3.0, 0.0])]), torch.arange(2).repeat_interleave(6)  # 2 apart
FAR = torch.tensor([[1.0, 3.5]])  # 1.5 from the nearest: the knee is 1 with it, too


@pytest.mark.parametrize("where", [[2.0, 0.0], [2.0, 1.0], [2.0, 2.0], [1.9, 1.0]])
def test_one_point_between_two_clusters_joins_them_only_where_nobody_is_in_doubt(where):
    points = torch.cat([TWO, FAR, torch.tensor([where])])
    assert same_clusters(link_within_knee(TWO), PARTS)
    assert len(link_within_knee(points, 1.2)[:12].unique()) == 1
    assert same_clusters(link_within_knee(points, 1.2, doubted=1)[:12], PARTS)


def test_one_point_near_another_does_not_make_the_radius_one_that_links_no_others():
    points = torch.cat([TWO, torch.tensor([[0.0, 0.3]])])  # nearest distances: 0.3, twice, then 0.7 and 1
    assert len(link_within_knee(points)[:12].unique()) > 2
    assert same_clusters(link_within_knee(points, doubted=1)[:12], PARTS)


def test_who_joins_two_parts_stays_with_the_one_that_is_nearest():
    line = torch.tensor([[0.0], [1.0], [1.9], [3.0], [4.0]])
    apart = torch.cdist(line, line)
    near = apart <= 1.2
    assert [count_joined(near[i], link_others(near, i), i) for i in range(5)] == [0, 1, 2, 1, 0]
    assert part_joined(apart, 1.2, 1)[2].tolist() == [False, True, True, False, False]
    assert torch.equal(part_joined(apart, 1.2, 0), near)
    assert torch.equal(part_joined(apart, 1.2, 3), part_joined(apart, 1.2, 1))  # nobody else joins two of each


def test_clusters_stay_where_none_are_clearer():
    assert torch.equal(link_within_knee(TWO, doubted=2), link_within_knee(TWO))
    assert len(link_within_knee(torch.ones(5, 2), doubted=1).unique()) == 1
    assert find_knee(torch.zeros(3, 3), torch.zeros(3, dtype=torch.bool)) == 0
