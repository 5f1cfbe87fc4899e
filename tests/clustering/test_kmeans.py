import pytest
import torch
from sklearn.cluster import KMeans
from torch.func import vmap

from kinfed.clustering import kmeans as kmeans_module
from kinfed.clustering.kmeans import Part, cluster_again, kmeans, match_columns, rename, server_kmeans


def blobs(rows: int, seed: int = 0) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    centres = 5 * torch.randn(4, 6, generator=noise)
    return centres[torch.arange(rows) % 4] + torch.randn(rows, 6, generator=noise)


def parts(x: torch.Tensor, width: int = 16, padded: int = 0) -> list[Part]:
    size = len(x)
    x = torch.cat([x, torch.full((padded, x.shape[1]), 7.0)])
    return [Part(x[i : i + width], torch.arange(i, min(i + width, len(x))) < size) for i in range(0, len(x), width)]


def error(x: torch.Tensor, points: torch.Tensor) -> float:
    return float(torch.cdist(x, points).min(1).values.square().sum())


@pytest.mark.parametrize("seed", range(5))
def test_it_is_as_good_as_scikit_learns(seed):
    x = blobs(90, seed)
    found = kmeans(parts(x), 4, torch.tensor(seed))
    assert error(x, found.points) <= 1.02 * KMeans(4, n_init=10, random_state=0).fit(x.numpy()).inertia_


def test_shares_are_the_rows_nearest_to_each_centre():
    x = torch.tensor([[0.0], [0.1], [0.2], [9.0]])
    found = kmeans(parts(x), 2, torch.tensor(1))
    assert sorted(zip(found.points[:, 0].tolist(), found.shares.tolist(), strict=True)) == [
        (pytest.approx(0.1), 0.75),
        (pytest.approx(9.0), 0.25),
    ]


def test_padding_changes_no_bit():
    x = blobs(32)
    plain = kmeans(parts(x), 3, torch.tensor(5))
    padded = kmeans(parts(x, padded=48), 3, torch.tensor(5))
    assert torch.equal(plain.points, padded.points) and torch.equal(plain.shares, padded.shares)


def test_clients_side_by_side_get_what_they_get_alone():
    x = torch.stack([blobs(32, seed) for seed in range(3)])
    keys = torch.arange(3)

    def one(rows, key):
        return kmeans([Part(rows[:16], torch.ones(16).bool()), Part(rows[16:], torch.ones(16).bool())], 3, key)

    together = vmap(one)(x, keys)
    for i in range(3):
        torch.testing.assert_close(one(x[i], keys[i]).points, together.points[i], atol=1e-5, rtol=0)


def test_only_the_asked_number_of_centres_is_used():
    found = kmeans(parts(blobs(40)), 5, torch.tensor(2), used=torch.tensor(2))
    assert (found.shares > 0).tolist() == [True, True, False, False, False]
    assert float(found.shares.sum()) == pytest.approx(1)


def test_fewer_rows_than_centres_leave_centres_without_rows():
    found = kmeans(parts(torch.tensor([[1.0], [5.0]])), 4, torch.tensor(3))
    assert int((found.shares > 0).sum()) == 2
    assert set(found.points[found.shares > 0][:, 0].tolist()) == {1.0, 5.0}
    assert torch.isfinite(found.points).all()


def test_the_server_goes_on_until_no_point_changes_sides():
    x = torch.linspace(0, 1, 2001, dtype=torch.double)[:, None]
    labels, centres = server_kmeans(
        x, 2, torch.tensor([[0.0], [0.01]]), seed=0
    )  # the border moves slowly to the middle
    assert labels.bincount().tolist() in ([1000, 1001], [1001, 1000])
    means = torch.stack([x[labels == c].mean(0) for c in (0, 1)])
    torch.testing.assert_close(centres, means, rtol=1e-12, atol=0)


@pytest.mark.parametrize("given", [False, True])
def test_points_as_long_as_models_are_clustered_as_others_are(given, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(30, 400, generator=draw) + 0.4 * torch.randn(5, 400, generator=draw).repeat(6, 1)
    start = points[:5] if given else points[:0]
    labels, centres = server_kmeans(points, 5, start, seed=3)
    monkeypatch.setattr(kmeans_module, "WIDTH", 100)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: t if t.shape[-1] < 400 else pytest.fail("whole models are long"))
    others, means = server_kmeans(points, 5, start, seed=3)
    assert torch.equal(labels, others)
    torch.testing.assert_close(means, centres, atol=1e-5, rtol=0)


def test_a_cluster_without_members_has_its_centre_at_a_point(monkeypatch):
    monkeypatch.setattr(kmeans_module, "WIDTH", 3)
    two = torch.eye(2, 8).repeat(3, 1)
    labels, centres = server_kmeans(two, 3, two[:0], seed=0)
    assert len(labels.unique()) == 2 and (torch.cdist(centres, two).min(1).values < 1e-6).all()


def test_a_point_with_a_cluster_to_itself_joins_those_that_the_others_form_where_one_may_lie():
    """Ten points near 0 and ten near 8 of two dimensions, the last of them far away: two centres are one for it."""
    draw = torch.Generator().manual_seed(0)
    points = 0.1 * torch.randn(20, 2, generator=draw) + torch.tensor([[0.0, 0.0]] * 10 + [[8.0, 0.0]] * 10)
    points[-1] = torch.tensor([8.0, 30.0])
    start = torch.tensor([[4.0, 0.0], [8.0, 30.0]])
    before = torch.tensor([1] * 10 + [0] * 10)
    trusting = cluster_again(points, start, before, 2, seed=0)
    assert trusting.tolist() == [0] * 19 + [1]
    assert cluster_again(points, start, before, 2, seed=0, doubted=1).tolist() == before.tolist()
    honest = cluster_again(points[:-1], start, before[:-1], 2, seed=0, doubted=1)
    assert torch.equal(honest, cluster_again(points[:-1], start, before[:-1], 2, seed=0))


def test_clusters_keep_the_numbers_that_most_of_their_points_had():
    assert rename(torch.tensor([0, 0, 1, 1, 2]), torch.tensor([2, 2, 0, 2, 1]), 3).tolist() == [2, 2, 0, 0, 1]
    assert sorted(rename(torch.tensor([0, 1]), torch.tensor([-1, -1]), 3).tolist()) == [0, 1]


def test_each_row_has_a_column_of_its_own_with_the_largest_sum():
    values = torch.tensor([[9.0, 8.0, 0.0], [7.0, 1.0, 0.0]])  # 8 + 7 is more than 9 + 1
    assert match_columns(values).tolist() == [1, 0] and match_columns(-values).tolist() == [2, 1]
