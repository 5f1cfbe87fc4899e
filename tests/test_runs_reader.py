"""Run folders as reports read them, and runs that differ in nothing but the seed."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kinfed.api import load_run
from kinfed.checkpoint import FORMAT
from kinfed.errors import CheckpointError
from kinfed.report.series import gather
from kinfed.runs.reader import Run, read_runs
from kinfed.runs.writer import HEADER
from tests.report.folders import MadeUp, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    write_run(place / "flt-0", MadeUp("flt"))
    write_run(place / "flt-1", MadeUp("flt", seed=1))
    write_run(place / "fesem", MadeUp("fesem", reclusters=True))
    write_run(place / "fedavg", MadeUp("fedavg"), has_clusters=False)
    return place


def test_the_last_evaluated_round_is_what_clients_are_shown_by(folder: Path):
    run = Run(folder / "flt-0")
    assert len(run.clients) == 12 and set(run.clients["round"]) == {4}
    assert run.scores[0] == pytest.approx(0.9) and run.scores[11] == pytest.approx(0.9 - 0.09)
    assert run.roles == ["trains"] * 12
    assert run.true_clusters is not None and run.true_clusters.tolist() == [0, 1, 2] * 4


def test_clusters_are_read_whenever_they_changed(folder: Path):
    assert [round for round, _ in Run(folder / "flt-0").clusters] == [1]
    changes = Run(folder / "fesem").clusters
    assert [round for round, _ in changes] == [1, 2, 3, 4]
    assert changes[0][1].tolist()[:4] == [0, 2, 2, 0]  # client 1 is astray in round 1, and client 11
    assert Run(folder / "fedavg").clusters == [] and Run(folder / "fedavg").found is None


def test_labels_are_counted_by_client(folder: Path):
    held = Run(folder / "flt-0").labels
    assert held is not None and np.array_equal(held[:4], 10 * np.eye(3, dtype=int)[[0, 1, 2, 0]])


def test_runs_of_one_config_and_several_seeds_are_one_series(folder: Path):
    series = gather([folder])
    assert {one.name: one.seeds for one in series} == {"FedAvg": [0], "FLT": [0, 1], "FeSEM": [0]}
    assert [one.name for one in series] == ["FedAvg", "FLT", "FeSEM"]  # as the config compares them, others last


def test_runs_of_another_config_are_named_by_what_differs(folder: Path, tmp_path: Path):
    other = write_run(tmp_path / "longer", MadeUp("flt", rounds=6))
    names = [one.name for one in gather([folder / "flt-0", folder / "flt-1", other])]
    assert names == ["FLT (rounds=4)", "FLT (rounds=6)"]


def test_a_run_given_twice_counts_once(folder: Path):
    assert len(read_runs([folder, folder / "flt-0"])) == 4


def test_a_run_that_has_not_ended_is_read_as_far_as_it_is(tmp_path: Path):
    run = Run(write_run(tmp_path / "stopped", MadeUp("flt"), has_ended=False))
    assert not run.has_ended
    assert run.summary["accuracy"] == pytest.approx(0.9 - 0.01 * (0 + 0 + 1 + 2 + 3 + 4 + 5 + 5 + 6 + 7 + 8 + 9) / 12)
    assert run.arrays("tree") is None and run.labels is None


def test_a_folder_without_a_run_says_so(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"no run at .+nowhere"):
        read_runs([tmp_path / "nowhere"])
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.toml").write_text(HEADER.format(FORMAT) + 'method = "flt"\n')
    (tmp_path / "new" / "rounds.csv").write_text("round,accuracy\n")
    with pytest.raises(CheckpointError, match="no evaluated round yet"):
        read_runs([tmp_path / "new"])


def test_a_run_without_test_samples_says_why_it_has_no_scores(tmp_path: Path):
    run = write_run(tmp_path / "run", MadeUp("flt"))
    lines = (run / "rounds.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    blank = [",".join([row[0], *[""] * (len(row) - 3), *row[-2:]]) for row in rows]
    (run / "rounds.csv").write_text("\n".join([lines[0], *blank]) + "\n")
    with pytest.raises(CheckpointError, match="has no scores: no training client has test samples"):
        read_runs([run])


@pytest.mark.parametrize(
    "name", ["summary.json", "clients.csv", "clusters.csv", "timing.csv", "rounds.csv", "config.toml"]
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str):
    run = write_run(tmp_path / "run", MadeUp("flt"))
    damaged = {"summary.json": "{", "config.toml": HEADER.format(FORMAT) + "seed = 0\n", "clients.csv": ""}
    head = (run / name).read_text().splitlines()[0]
    wrong = ",".join("x" * len(head.split(",")))
    (run / name).write_text(damaged.get(name, f"{head}\n{wrong}\n"))
    with pytest.raises(CheckpointError, match=name):
        read_runs([run])


def replace_row(text: str, cell: str) -> str:
    """The table with all cells of its first row replaced."""
    head, row, *rest = text.splitlines()
    return "\n".join([head, ",".join([cell] * len(row.split(","))), *rest, ""])


def replace_last(text: str, column: str, cell: str) -> str:
    """The table with one cell of its last row replaced."""
    head, *rows, last = text.splitlines()
    cells = dict(zip(head.split(","), last.split(","), strict=True)) | {column: cell}
    return "\n".join([head, *rows, ",".join(cells.values()), ""])


FORGERIES = {
    "a number that no float holds": (
        "summary.json",
        lambda text: text.replace("{", '{"bytes_up": 1' + "0" * 400 + ", ", 1),
    ),
    "bytes that are text": ("summary.json", lambda text: json.dumps(json.loads(text) | {"bytes_up": "many"})),
    "half a character": ("summary.json", lambda text: json.dumps(json.loads(text) | {"diagnosis": "\ud800"})),
    "negative bytes of a summary": ("summary.json", lambda text: json.dumps(json.loads(text) | {"bytes_down": -5})),
    "endless bytes of a summary": ("summary.json", lambda text: json.dumps(json.loads(text) | {"bytes_up": math.inf})),
    "bytes that fall": ("rounds.csv", lambda text: replace_last(text, "bytes_up", "1")),
    "negative bytes of a round": ("rounds.csv", lambda text: replace_last(text, "bytes_down", "-1")),
    "negative bytes of a task": ("ledger.csv", lambda text: replace_last(text, "bytes_down", "-5")),
    "endless bytes of a task": ("ledger.csv", lambda text: replace_last(text, "bytes_up", "inf")),
    "a task without bytes": ("ledger.csv", lambda text: replace_last(text, "bytes_up", "")),
    "a task in half a round": ("ledger.csv", lambda text: replace_last(text, "round", "1.5")),
    "a task of fewer clients than none": ("ledger.csv", lambda text: replace_last(text, "clients", "-1")),
    "negative bytes of a client": ("ledger_clients.csv", lambda text: replace_last(text, "bytes_up", "-5")),
    "an endless client": ("ledger_clients.csv", lambda text: replace_last(text, "client", "inf")),
    "a negative time": ("timing.csv", lambda text: replace_last(text, "seconds", "-3")),
    "an endless time": ("timing.csv", lambda text: replace_last(text, "clients", "inf")),
    "a time of a round in disorder": ("timing.csv", lambda text: replace_last(text, "round", "1")),
    "negative test samples": ("clients.csv", lambda text: replace_last(text, "test_samples", "-1")),
    "negative samples of a label": ("labels.csv", lambda text: replace_last(text, "samples", "-1")),
    "an endless score": ("rounds.csv", lambda text: replace_last(text, "variance", "inf")),
    "more than all samples": ("rounds.csv", lambda text: replace_last(text, "accuracy", "7")),
    "a negative share": ("rounds.csv", lambda text: replace_last(text, "purity", "-1")),
    "an endless loss": ("clients.csv", lambda text: replace_last(text, "loss", "-inf")),
    "a client's negative accuracy": ("clients.csv", lambda text: replace_last(text, "accuracy", "-7")),
    "a negative cluster": ("clients.csv", lambda text: replace_last(text, "true_cluster", "-7")),
    "a client without a cluster": ("clients.csv", lambda text: replace_last(text, "client", "99")),
    "a cluster of a client that is not": ("clusters.csv", lambda text: replace_last(text, "client", "99")),
    "a time of a round that was not": ("timing.csv", lambda text: replace_last(text, "round", "99")),
    "a task of a round that was not": ("ledger.csv", lambda text: replace_last(text, "round", "99")),
    "an endless round": ("rounds.csv", lambda text: replace_row(text, "inf")),
    "rounds in disorder": ("rounds.csv", lambda text: replace_row(text, "9999")),
    "a client in another round": ("clusters.csv", lambda text: replace_row(text, "1000")),
    "a column twice": ("clusters.csv", lambda text: text.replace("client", "round", 1)),
    "a score of a round that was not": ("clients.csv", lambda text: replace_row(text, "7777")),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_table_whose_numbers_cannot_be_is_named(tmp_path: Path, kind: str):
    name, forge = FORGERIES[kind]
    run = write_run(tmp_path / "run", MadeUp("flt"))
    text = (run / name).read_text()
    if kind == "a number that no float holds":
        text = json.dumps({key: value for key, value in json.loads(text).items() if key != "bytes_up"})
    (run / name).write_text(forge(text))
    with pytest.raises(CheckpointError, match=name):
        [found.history for found in read_runs([run])]
    with pytest.raises(CheckpointError, match=name):
        print(load_run(run).run.history)


def test_scores_that_are_ahead_of_the_rounds_of_a_run_that_goes_on_wait(tmp_path: Path):
    run = write_run(tmp_path / "run", MadeUp("flt"))
    rounds = read_runs([run])[0].history.rounds.tolist()
    (run / "summary.json").unlink()
    *lines, _ = (run / "rounds.csv").read_text().splitlines()
    (run / "rounds.csv").write_text("\n".join([*lines, ""]))
    assert read_runs([run])[0].history.rounds.tolist() == rounds[:-1]


def test_a_finished_run_without_its_rounds_does_not_ask_to_wait(tmp_path: Path):
    run = write_run(tmp_path / "run", MadeUp("flt"))
    (run / "rounds.csv").unlink()
    with pytest.raises(CheckpointError, match="is lost"):
        read_runs([run])
