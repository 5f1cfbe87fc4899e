"""What the report says of runs before a reader trusts them, and when targets are reached."""

from pathlib import Path

import numpy as np
import pytest

from kinfed.config import load_config
from kinfed.report import diagnosis, run_views
from kinfed.report.diagnosis import find_all, find_losers, have_same_clients, overlap_of
from kinfed.report.report_tables import choose_targets, targets_table
from kinfed.report.series import gather
from kinfed.runs import write_config
from kinfed.runs.reader import Run
from tests.report.folders import MadeUp, write_run


def lower_scores(run: Path, clients: set[int], to: float) -> None:
    """Rewrites the last accuracies of these clients, each of 1000 test samples."""
    header, *lines = (run / "clients.csv").read_text().splitlines()
    names = header.split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines]
    for row in rows:
        row["test_samples"] = "1000"
        if int(row["client"]) in clients and row["round"] == rows[-1]["round"]:
            row["accuracy"] = str(to)
    (run / "clients.csv").write_text("\n".join([header, *(",".join(row.values()) for row in rows), ""]))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    write_run(place / "fedavg", MadeUp("fedavg"), has_clusters=False)
    write_run(place / "flt", MadeUp("flt"))
    lower_scores(place / "fedavg", set(), 0.0)
    lower_scores(place / "flt", {3, 7}, 0.5)
    return place


def test_clients_that_lose_by_being_clustered_are_named_and_chance_is_not(both: Path, tmp_path: Path):
    flt, fedavg = Run(both / "flt"), Run(both / "fedavg")
    losers = find_losers(flt, fedavg)
    # at the end client 3 of 12 has 0.9 less two points (tenth 2), client 7 less five
    assert [client for client, _ in losers] == [3, 7] and [gap for _, gap in losers] == pytest.approx([38, 35])
    assert find_losers(fedavg, flt) == []
    said = "lose by being clustered, in points against FedAvg"
    found = next(finding for finding in find_all(gather([both])) if said in finding.says)
    assert found.kind == "warning" and found.methods == "FLT" and found.says.endswith("3 (−38), 7 (−35)")


def test_a_gap_of_a_few_samples_is_chance(tmp_path: Path):
    write_run(tmp_path / "fedavg", MadeUp("fedavg"), has_clusters=False)
    write_run(tmp_path / "flt", MadeUp("flt", shift=-0.1))  # one of ten test samples
    assert find_losers(Run(tmp_path / "flt"), Run(tmp_path / "fedavg")) == []
    assert any(found.kind == "good" and "no client loses" in found.says for found in find_all(gather([tmp_path])))


@pytest.mark.parametrize("changed", ["shift=label_swap", "change.round=3", "drift=label_swap", "partition.clients=20"])
def test_clients_are_compared_with_themselves_alone(changed: str, both: Path, tmp_path: Path):
    flt, fedavg = Run(both / "flt"), Run(write_run(tmp_path / "fedavg", MadeUp("fedavg"), has_clusters=False))
    assert have_same_clients(flt, fedavg)
    write_config(tmp_path / "fedavg", load_config(None, ["method=fedavg", "rounds=4", changed]))
    assert not have_same_clients(flt, Run(tmp_path / "fedavg"))


def test_clusters_are_fragile_where_unrelated_pairs_are_as_near_as_related_ones(tmp_path: Path):
    run = write_run(tmp_path / "flt", MadeUp("flt"))
    assert overlap_of(Run(run)) == 0  # clusters lie ten apart
    (run / "tree.npz").unlink()
    points = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)  # the same for all clusters
    np.savez(run / "signatures.npz", clients=np.arange(12), points=points)
    share = overlap_of(Run(run))
    assert share is not None and share > 0.3
    assert any("clusters are fragile: unrelated pairs" in found.says for found in find_all(gather([run])))


def test_of_many_clients_no_matrix_of_pairs_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = Run(write_run(tmp_path / "flt", MadeUp("flt")))
    monkeypatch.setattr(run_views, "ALL_PAIRS", 11)  # there are twelve
    for module in (run_views, diagnosis):
        monkeypatch.setattr(module, "find_related", lambda _: pytest.fail("a matrix was made"))
    assert overlap_of(run) is None and run_views.distances_of(run) is None


def test_clusters_that_change_until_the_end_are_fragile(tmp_path: Path):
    write_run(tmp_path / "fesem", MadeUp("fesem", reclusters=True, rounds=6))
    found = next(found for found in find_all(gather([tmp_path])) if "still change" in found.says)
    # clients 6 and 5: of twelve, client 5 strays in round 5 and client 6 in round 6
    assert found.methods == "FeSEM (2 clients in round 6)"


def test_a_curve_that_rises_is_not_at_its_end(tmp_path: Path):
    write_run(tmp_path / "fedavg", MadeUp("fedavg", rounds=10), has_clusters=False)
    found = next(found for found in find_all(gather([tmp_path])) if "still improving" in found.says)
    assert found.methods == "FedAvg (+17.2 points)"  # a tenth of 85.83 points a round, over two rounds


def test_rounds_and_bytes_to_targets(tmp_path: Path):
    write_run(tmp_path / "fedavg", MadeUp("fedavg", shift=-0.2), has_clusters=False)
    write_run(tmp_path / "flt", MadeUp("flt"))
    series = gather([tmp_path])
    assert choose_targets(series) == [0.7, 0.8, 0.85]  # FLT ends at 85.8 %, FedAvg at 65.8 %
    header, rows = targets_table(series)
    assert header[:3] == ["method", "70 %: round", "70 %: MB"]
    assert [cell.shown for cell in rows[0]] == ["FedAvg", "–", "–", "–", "–", "–", "–"]
    assert [cell.shown for cell in rows[1]] == ["FLT", "4", "0.1", "4", "0.1", "4", "0.1"]
