"""What the pictures show, with numbers by hand."""

from pathlib import Path

import numpy as np
import pytest

from kinfed.errors import ConfigError
from kinfed.report.cluster_order import (
    BANDS,
    color_clusters,
    color_history,
    leaves,
    match_colours,
    membership_of,
    rank_by_size,
)
from kinfed.report.method_charts import plot_accuracies
from kinfed.report.run_views import labels_of, map_of, matrix_of, rescale, shrink, tree_of
from kinfed.report.series import bins, curve_of, gather, list_metrics, metric_named, spreads
from kinfed.runs.reader import Run
from tests.report.folders import MadeUp, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(place / f"flt-{seed}", MadeUp("flt", seed=seed))
    write_run(place / "fesem", MadeUp("fesem", reclusters=True))
    write_run(place / "fedavg", MadeUp("fedavg", clients=4), has_clusters=False)
    return place


def test_a_band_is_one_standard_deviation_over_seeds(folder: Path):
    curve = curve_of(gather([folder / "flt-0", folder / "flt-1"])[0], metric_named("accuracy"))
    assert curve is not None and curve.rounds.tolist() == [1, 2, 3, 4] and curve.seeds == 2
    first = 100 * (0.9 - 0.05 / 12 * 10)  # seed 0 at the end: tenths 0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9 sum up to 50
    assert curve.mean[-1] == pytest.approx(first - 0.05)  # seed 1 is 0.1 points lower
    assert curve.high[-1] - curve.mean[-1] == pytest.approx(0.1 / 2**0.5)
    assert curve.megabytes.tolist() == [0.024, 0.048, 0.072, 0.096]  # 12 clients, 1 kB each way


def test_metrics_that_no_run_has_are_not_offered(folder: Path):
    series = gather([folder])
    assert [m.name for m in list_metrics(series)] == [
        "accuracy", "worst_decile", "at_target", "variance", "loss", "ari", "clusters",
    ]  # fmt: skip
    assert curve_of(gather([folder / "fedavg"])[0], metric_named("ari")) is None
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        metric_named("acuracy")


def test_histograms_share_their_bins_and_count_all_clients(folder: Path):
    found = spreads(gather([folder]))
    assert [sum(one.counts) for one in found] == [4, 24, 12]
    assert all(np.array_equal(one.edges, found[0].edges) for one in found)
    assert found[1].worst_decile == pytest.approx((81 + 80.9) / 2)  # one client of twelve, in two seeds
    assert bins(0.0).tolist() == np.arange(0, 101, 5).tolist() and bins(99.0).tolist() == [96, 97, 98, 99, 100]


def test_scores_that_are_not_finite_have_no_bin(folder: Path):
    runs = [Run(folder / name) for name in ("flt-0", "fesem")]
    every, own = [run.scores.copy() for run in runs]
    own[:] = np.inf
    every[0] = np.inf
    vars(runs[0])["scores"], vars(runs[1])["scores"] = every, own
    found = spreads(gather(runs))
    assert [sum(one.counts) for one in found] == [11] and np.isfinite(found[0].mean)
    assert list(plot_accuracies(runs).tables) == ["bins0"]


def test_clusters_are_coloured_by_size_and_ground_truth_by_what_they_share():
    names, places = rank_by_size(np.array([7, 3, 3, 3, 7, -1, 5]))
    assert names == [3, 7, 5] and places.tolist() == [1, 0, 0, 0, 1, -1, 2]
    true = np.array([0, 1, 1, 0, 0, 2, 3])
    assert match_colours(true, places).tolist() == [1, 0, 0, 1, 1, 3, 2]  # 0 and 7 share two, 1 and 3 two, 3 and 5 one


def test_clusters_stand_together_in_the_order_of_the_dendrogram(folder: Path):
    coloring = color_clusters(Run(folder / "flt-0"))
    assert coloring.found is not None and coloring.true is not None and np.array_equal(coloring.found, coloring.true)
    assert (np.diff(coloring.found[coloring.order]) != 0).sum() == 2
    assert sorted(coloring.order.tolist()) == list(range(12))


def test_leaves_follow_the_merges():
    merges = np.array([[2, 0, 1.0, 2], [1, 3, 2.0, 2], [5, 4, 3.0, 4]])
    assert leaves(merges, 4).tolist() == [1, 3, 2, 0]


def test_brackets_have_the_colour_of_their_cluster_below_the_cut(folder: Path):
    run = Run(folder / "flt-0")
    coloring = color_clusters(run)
    assert coloring.found is not None
    tree = tree_of(run, coloring.found)
    assert tree is not None and tree.cut == 8.0 and len(tree.heights) == 11
    assert (tree.colours >= 0).sum() == 9 and ((tree.heights < 8) == (tree.colours >= 0)).all()
    assert (tree.left < tree.right).all() and (tree.low_left <= tree.heights).all()
    assert (np.diff(tree.clusters) != 0).sum() == 2  # three clusters, each in one piece


def test_a_matrix_is_shrunk_to_shares_of_related_pairs():
    rows, whose = np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], dtype=bool), np.array([0, 0, 1, 1, 1])
    own = shrink(rows, whose, np.arange(5), np.array([0, 2, 5]))
    assert own.tolist() == [[1, 0], [0, 1]]
    mixed = shrink(rows, whose, np.array([0, 2, 1, 3, 4]), np.array([0, 2, 5]))
    assert np.allclose(mixed, [[2 / 4, 3 / 6], [3 / 6, 5 / 9]])  # {0, 2} and {1, 3, 4}: pairs within a cluster


def test_reordering_turns_the_matrix_into_blocks(folder: Path):
    run = Run(folder / "flt-0")
    matrix = matrix_of(run, color_clusters(run).order)
    assert matrix is not None
    assert matrix.before[0].tolist() == [1, 0, 0] * 4
    assert matrix.after.tolist() == np.kron(np.eye(3), np.ones((4, 4))).tolist()
    assert matrix_of(Run(folder / "fedavg"), np.arange(4)) is None


def test_few_clients_are_mapped_by_principal_directions_and_spread_from_left_to_right(folder: Path):
    few = map_of(Run(folder / "flt-0"))
    assert few is not None and few.projection == "PCA"
    assert np.ptp(few.points, axis=0).max() == pytest.approx(1)
    apart = np.linalg.norm(few.points[:, None] - few.points, axis=2)
    together = (few.clients[:, None] % 3) == (few.clients % 3)
    assert apart[together].max() < apart[~together].min()
    assert map_of(Run(folder / "fedavg")) is None
    upright = rescale(np.array([[0.0, 0.0], [0.0, 4.0], [1.0, 2.0], [1.0, 2.0]]))
    assert np.ptp(upright[:, 0]) == pytest.approx(1) and np.ptp(upright[:, 1]) == pytest.approx(0.25)


@pytest.mark.slow
@pytest.mark.xdist_group("umap")  # which takes long to compile: once
def test_clusters_lie_apart_on_umaps_map(tmp_path: Path):
    seen = map_of(Run(write_run(tmp_path / "many", MadeUp("flt", clients=60))))
    assert seen is not None and seen.projection == "UMAP"
    apart = np.linalg.norm(seen.points[:, None] - seen.points, axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (seen.clients[apart.argmin(1)] % 3 == seen.clients % 3).all()


def test_label_shares_are_those_of_the_clients_in_a_column(folder: Path):
    run = Run(folder / "flt-0")
    labels = labels_of(run, color_clusters(run).order)
    assert labels is not None and labels.shares.shape == (3, 12)
    assert labels.shares.sum(0).tolist() == [1] * 12
    assert labels.shares.argmax(0).tolist() == (labels.order % 3).tolist()


def test_bands_keep_their_colour(folder: Path):
    bands = membership_of(Run(folder / "fesem"))
    assert bands is not None and bands.rounds.tolist() == [1, 2, 3, 4] and bands.changes == 3
    assert membership_of(Run(folder / "flt-0")) is None and membership_of(Run(folder / "fedavg")) is None


def test_clusters_have_the_colour_they_end_with():
    first, last = np.array([4, 4, 4, 9, 9]), np.array([7, 2, 2, 2, -1])
    assert color_history([first, last]).tolist() == [[0, 0, 0, 1, 1], [1, 0, 0, 0, -1]]  # 4 and 2 share two clients


def test_small_clusters_share_a_band(tmp_path: Path):
    run = Run(write_run(tmp_path / "run", MadeUp("fesem", clients=201, clusters=67, reclusters=True, rounds=2)))
    bands = membership_of(run)
    assert bands is not None and bands.clusters.max() == BANDS == 48
    sizes = np.sort(np.unique(run.clusters[-1][1], return_counts=True)[1])[::-1]
    assert (bands.clusters[-1] == BANDS).sum() == sizes[48:].sum() > 0
