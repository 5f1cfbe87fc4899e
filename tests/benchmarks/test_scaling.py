import pytest

from benchmarks.scaling import STEPS, measure, plot, table_row


def test_planted_clusters_are_measured():
    found = measure(400, seed=0, noise=1.0, number=50, distance="kernel")
    assert found["found"] == 50 and found["ari"] == found["precision"] == found["recall"] == 1
    assert table_row(found).startswith("| 400 |") and table_row(found).endswith("| 50 | 1.000 | 50 | 1.000 | 1.000 |")


def test_the_picture_is_small(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"clients": clients, **dict.fromkeys(STEPS, clients / 1000)} for clients in (1000.0, 10_000.0)]
    plot(rows, tmp_path / "plot.png")
    assert 1000 < (tmp_path / "plot.png").stat().st_size < 60_000
