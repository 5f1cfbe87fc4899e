import pytest
import torch

from kinfed.clustering.hierarchy import (
    Dendrogram,
    Hierarchy,
    best_height,
    bipartition,
    cut,
    distances,
    merges,
    nearest_cluster,
    search_height,
)
from kinfed.clustering.silhouettes import silhouette
from kinfed.errors import ConfigError
from tests.problems import same_clusters

LINE = torch.tensor([[0.0], [1.0], [4.0], [6.0]])


def heights(linkage):
    return merges(distances(LINE, LINE, "l2"), linkage)[:, 2].tolist()


def test_merge_heights_by_hand():
    # {0, 1} at 1, {4, 6} at 2, then both: nearest 3, farthest 6, mean (4 + 6 + 3 + 5) / 4, Ward √(2·2·2/4)·4.5
    assert heights("single") == pytest.approx([1, 2, 3])
    assert heights("complete") == pytest.approx([1, 2, 6])
    assert heights("average") == pytest.approx([1, 2, 4.5])
    assert heights("ward") == pytest.approx([1, 2, 2**0.5 * 4.5])


def test_a_merge_at_the_threshold_is_not_made():
    tree = merges(distances(LINE, LINE, "l2"), "single")
    assert len(cut(tree, 2.0).unique()) == 3 and len(cut(tree, 2.01).unique()) == 2
    assert len(cut(tree, float("inf")).unique()) == 1 and len(cut(tree, 0.0).unique()) == 4


def test_equal_points_are_apart_by_nothing_and_stay_apart_at_threshold_zero():
    twins = torch.rand(40, 500)[:1].repeat(40, 1)
    apart = distances(twins, twins, "l2")
    assert apart.max() == 0 and len(cut(merges(apart, "ward"), 0.0).unique()) == 40


def test_one_point_is_one_cluster():
    apart = distances(LINE[:1], LINE[:1], "l1")
    tree = merges(apart, "average")
    assert cut(tree, 1.0).tolist() == cut(tree, best_height(tree, apart, 9)).tolist() == [0]


def test_metrics_by_hand():
    a, b = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [6.0, 8.0], [-4.0, 3.0]])
    torch.testing.assert_close(distances(a, b, "l1"), torch.tensor([[7.0, 7.0, 8.0]]))
    torch.testing.assert_close(distances(a, b, "l2"), torch.tensor([[5.0, 5.0, 50**0.5]]))
    torch.testing.assert_close(distances(a, b, "cosine"), torch.tensor([[1.0, 0.0, 1.0]]))  # 0 points nowhere


@pytest.mark.parametrize("linkage", ["single", "complete", "average", "ward"])
def test_the_search_finds_blobs_and_leaves_a_cloud_whole(linkage):
    noise = torch.randn(24, 2000, generator=torch.Generator().manual_seed(0))
    blob = torch.arange(24) % 3
    points = noise + 60 * torch.eye(2000)[blob]
    for seen, wanted in ((points, blob), (noise, torch.zeros(24))):
        apart = distances(seen, seen, "l2")
        tree = merges(apart, linkage)
        assert same_clusters(cut(tree, best_height(tree, apart, 100)), wanted)


GROUPS = torch.tensor([[0.0], [3.0], [7.0], [10.0], [14.0], [17.0]])  # of silhouettes 0.52 as three, 0.48 as two


@pytest.mark.parametrize("linkage", ["single", "complete", "average", "ward"])
@pytest.mark.parametrize("far", [[100.0], [100.0, 101.0]])
def test_a_few_in_doubt_do_not_keep_the_others_together(linkage, far):
    points = torch.cat([torch.tensor(far)[:, None], GROUPS])
    apart, doubted = distances(points, points, "l2"), len(far)
    tree, alone = merges(apart, linkage), [0] * doubted
    trusting, doubting = (cut(tree, search_height(apart, linkage, 100, n)) for n in (0, doubted))
    assert same_clusters(trusting, torch.tensor([*alone, 1, 1, 1, 1, 1, 1]))
    assert same_clusters(doubting[doubted:], torch.tensor([1, 1, 2, 2, 3, 3]))
    assert not torch.isin(doubting[:doubted], doubting[doubted:]).any()


def test_the_cut_is_below_the_merge_of_the_others_clusters_however_that_rounds_among_all():
    near = [[9, 2, 1], [11, 2, 1], [8, 5, -2], [12, 1, 2]]
    far = [[6, 9, 6], [4, 7, 7], [4, 7, 4], [5, 7, 6], [4, 5, 6], [1, 7, 4], [3, 6, 7], [1, 6, 6]]
    points = torch.tensor([[-13, 1, -2], *near, *far], dtype=torch.double)
    apart = distances(points, points, "l2")
    found = cut(merges(apart, "ward"), search_height(apart, "ward", 100, doubted=2))
    assert same_clusters(found, torch.tensor([0] + [1] * 4 + [2] * 8))


@pytest.mark.parametrize("far", [5.0, 18.0, 40.0, 100.0])
def test_a_cut_that_hangs_on_nobody_in_doubt_stays_as_it_is(far):
    points = torch.cat([torch.tensor([[far]]), GROUPS + 40 * torch.tensor([[0.0], [0], [0], [1], [1], [1]])])
    apart = distances(points, points, "l2")
    tree = merges(apart, "ward")
    trusting, doubting = (cut(tree, search_height(apart, "ward", 100, n)) for n in (0, 1))
    assert same_clusters(doubting, trusting)


def test_who_is_alone_among_others_without_clusters_stays_alone():
    noise = torch.randn(12, 2000, generator=torch.Generator().manual_seed(0))
    points = torch.cat([noise, 3 * noise[:1].roll(1, 1)])
    apart = distances(points, points, "l2")
    height = search_height(apart, "ward", 100, doubted=2)
    assert height == search_height(apart, "ward", 100)
    assert same_clusters(cut(merges(apart, "ward"), height), torch.tensor([0] * 12 + [1]))


def test_the_linkage_decides_where_a_stranger_goes():
    # the stranger 3 is 2 and 3 from {0, 1}, but 1.5 and 9 from {4.5, 12}
    points, clusters = torch.tensor([[0.0], [1.0], [4.5], [12.0]]), torch.tensor([5, 5, 7, 7])
    stranger = torch.tensor([[3.0]])
    goes = {
        way: int(nearest_cluster(stranger, points, clusters, "l2", way)) for way in ("single", "complete", "average")
    }
    assert goes == {"single": 7, "complete": 5, "average": 5}
    assert int(nearest_cluster(stranger, points, clusters, "l2", "ward")) == 5  # the means are 0.5 and 8.25


def test_wards_distance_of_a_stranger_is_the_height_at_which_it_would_merge():
    points, clusters = torch.tensor([[0.0]] + 9 * [[10.0]]), torch.tensor([0] + 9 * [1])
    found = nearest_cluster(torch.tensor([[5.5], [6.0]]), points, clusters, "l2", "ward")
    assert found.tolist() == [0, 1]  # √(2n/(n+1)) times the distance to the mean: x = √(18/10) · (10 - x) at 5.73


def test_a_bipartition_separates_opposite_directions():
    points = torch.tensor([[1.0, 0.1], [-2.0, 0.0], [3.0, 0.0], [-1.0, 0.2]])
    second, alike = bipartition(points)
    assert same_clusters(second, torch.tensor([0, 1, 0, 1]))
    assert float(alike) == pytest.approx(float(1 - distances(points[[0, 2]], points[[1, 3]], "cosine").min()))


def test_a_quantile_of_the_merge_heights_is_a_threshold():
    points = torch.tensor([[0.0], [1.0], [10.0], [12.0], [50.0]])  # merges of single linkage at 1, 2, 9, 38
    parts = {
        q: Hierarchy("l2", "single", quantile=q).merge(torch.arange(5), points).clusters()
        for q in (0.0, 0.5, 0.75, 1.0)
    }
    assert [len(found.unique()) for found in parts.values()] == [5, 3, 2, 1]
    with pytest.raises(ConfigError, match="quantile"):
        Hierarchy(threshold=1.0, quantile=0.5)


def test_a_dendrogram_gives_the_clusters_below_its_cut():
    tree = Dendrogram.of(torch.tensor([4, 5, 7, 9]), distances(LINE, LINE, "l2"), "single", 2.01)
    assert same_clusters(tree.clusters(), cut(merges(distances(LINE, LINE, "l2"), "single"), 2.01))
    assert tree.merges.shape == (3, 4) and int(tree.merges[-1, 3]) == 4
    assert len(Dendrogram.none(LINE.device).members) == 0


def test_a_silhouette_by_hand_takes_the_mean_of_both_directions():
    apart = torch.full((4, 4), 4.0).fill_diagonal_(0)
    apart[0, 1], apart[1, 0] = 0.5, 1.5
    apart[2, 3] = apart[3, 2] = 1.0
    assert silhouette(apart, torch.tensor([0, 0, 1, 1])) == pytest.approx((4 - 1) / 4)
    assert silhouette(apart, torch.zeros(4)) == silhouette(apart, torch.arange(4)) == 0
