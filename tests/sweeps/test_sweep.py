"""Sweeps end to end on tiny runs: selection, resuming, refusals, failures."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import kinfed
from kinfed.cli import app
from kinfed.cli.options import split_numbers
from kinfed.comparison import COLUMNS, Outcome
from kinfed.config import load_config, make_population
from kinfed.errors import ConfigError
from kinfed.sweeps.outcome_files import find_collapsed, points_table
from kinfed.sweeps.sweep_folder import Sweep, read_definition

TINY = ("method=fedavg", "partition.clients=5", "fraction=1.0", "rounds=1", "data.test_samples=20", "model=linear")
GRID = (*TINY, "training.lr=0.0001,0.1")
BROKEN = """
from kinfed.models.networks import linear
def broken(shape, classes):
    network = linear(shape, classes)
    network.forward = lambda x: x.flatten(1)[:, :classes] @ explode(x)
    return network
def explode(x):
    if len(x) > 2:
        raise RuntimeError("the network burns")
    import torch
    return torch.eye(10)
"""


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sweep(*words: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *words])


def table(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_selection_samples_are_training_samples_and_test_samples_are_left_out():
    config = load_config(None, ["partition.clients=6", "roles.unlabelled=0.2", "roles.late=0.2", "change.round=3"])
    whole = make_population(config)
    part = make_population(replace(config, data=replace(config.data, selection=0.25)))
    for client in range(6):
        if not whole.role(client).labelled:
            assert len(part.test[client]) == 0 and torch.equal(part.train[client], whole.train[client])
            continue
        held = torch.cat([part.train[client], part.test[client]]).sort().values
        assert torch.equal(held, whole.train[client].sort().values)
        assert len(part.test[client]) == pytest.approx(0.25 * len(held), abs=1)
    for before, after in zip(whole.changes, part.changes, strict=True):
        tested = {int(sample) for own in after.test for sample in own}
        assert tested and not tested & {int(sample) for own in before.test for sample in own}


def test_a_sweep_selects_on_validation_samples_and_tests_the_best(monkeypatch: pytest.MonkeyPatch):
    result = sweep(*GRID, "--seeds", "0-1", "--out", "s")
    assert result.exit_code == 0, result.output
    assert "2 points, 4 runs, 0 of them done before" in result.output
    assert "selected on validation samples: lr=0.1 (" in result.output and "; on test samples " in result.output
    rows = table("s/sweep.csv")
    assert [row["is_selected"] for row in rows] == ["false", "true"]
    assert rows[0]["accuracy_percent_test"] == "" and float(rows[1]["accuracy_percent_test"]) > 0
    runs = table("s/runs.csv")
    assert [run["scored_on"] for run in runs] == ["validation"] * 4 + ["test"] * 2
    assert load_config("s/best.toml").training.lr == 0.1 and load_config("s/best.toml").data.selection == 0
    assert "<svg" in Path("s/sweep.svg").read_text() and "training.lr" in Path("s/sweep.svg").read_text()
    assert sorted(path.name for path in Path("s/test").iterdir()) == ["training.lr=0.1-seed0", "training.lr=0.1-seed1"]

    stamps = {path: path.stat().st_mtime_ns for path in Path("s").glob("*/*/summary.json")}
    more = sweep(*GRID[:-1], "training.lr=0.0001,0.1,0.01", "--seeds", "0-1", "--out", "s")
    assert more.exit_code == 0 and "3 points, 6 runs, 4 of them done before" in more.output
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, "runs that ended are kept"

    read, of = [], Outcome.of
    monkeypatch.setattr(Outcome, "of", lambda run, *rest: read.append(run.path) or of(run, *rest))
    found = Sweep(Path("s"), read_definition(Path("s")))
    assert len(found.selected) == 1 and points_table(found)[1][-1] == "yes"
    assert len(read) == len(set(read)) == 6, "each run is read once"
    assert len(table("s/sweep.csv")) == 3

    other = sweep(*GRID, "rounds=2", "--seeds", "0-1", "--out", "s")
    assert other.exit_code == 2
    assert "the sweep at s has another config: rounds was 1, is 2. Set them back, or choose another" in other.stderr
    assert CliRunner().invoke(app, ["resume", "s", "-q"]).exit_code == 0


def test_a_seed_that_collapsed_on_test_samples_is_pointed_out():
    def ended(*accuracies: float) -> SimpleNamespace:
        return SimpleNamespace(outcomes=[Outcome("fedavg", i, {"accuracy": a}, 1.0) for i, a in enumerate(accuracies)])

    of = SimpleNamespace(column=COLUMNS[0])
    (said,) = find_collapsed(of, ended(0.9, 0.9), ended(0.46, 0.44))
    assert said.startswith("seed 1 has 44 on test samples, 90 on validation samples: its training may have diverged")
    error = SimpleNamespace(column=replace(COLUMNS[0], lower_is_better=True))
    assert len(find_collapsed(error, ended(0.1, 0.1), ended(0.3, 0.15))) == 1


def test_a_failed_run_is_kept_apart_and_reported_at_the_end(monkeypatch):
    Path("networks_of_sweeps.py").write_text(BROKEN)
    words = [word for word in TINY if not word.startswith("model")]
    result = sweep(*words, "model=linear,networks_of_sweeps:broken", "--out", "s")
    assert result.exit_code == 2
    assert "selected on validation samples: model=linear" in result.output
    (row,) = table("s/failed.csv")
    assert "the network burns" in row["error"] and row["part"] == "runs"
    assert "1 run failed, listed in s/failed.csv" in result.stderr.replace("\\", "/")


def test_what_a_run_needs_is_checked_before_the_first_one():
    for words, message in [
        ((*GRID, "training.epochs=1,0"), "epochs"),
        ((*GRID, "trackers=nobody"), "unknown tracker 'nobody'"),
        ((*TINY, "method=flt_enc1,fedavg", "--data-dir", "nowhere"), "dataset 'emnist_balanced' is not at"),
        ((*TINY, "method=flis_hc,fedavg", "data.public=0.0"), "takes samples that the server owns"),
    ]:
        result = sweep(*words, "--out", "s")
        assert result.exit_code == 2 and message in result.stderr, result.output
        assert not Path("s").exists()
    result = CliRunner().invoke(app, ["compare", *TINY, "--methods", "fedavg,flt_enc1", "--data-dir", "nowhere"])
    assert result.exit_code == 2 and "dataset 'emnist_balanced' is not at" in result.stderr
    assert not Path("runs").exists()


def test_seeds_may_be_a_range():
    assert split_numbers("0-2,7") == [0, 1, 2, 7] and split_numbers(None) is None
    with pytest.raises(ConfigError, match="as in 0,1,2 or 0-4"):
        split_numbers("0-x")


def test_runs_and_sweeps_are_resumed_where_the_data_lie_elsewhere():
    images, labels = np.zeros((200, 28, 28), np.uint8), np.arange(200) % 10
    Path("there").mkdir()
    np.savez("mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    words = (*TINY, "data.name=mnist", "data.public=0", "--data-dir", ".", "-q", "--out")
    assert sweep("training.lr=0.01,0.1", *words, "s").exit_code == 0
    assert CliRunner().invoke(app, ["run", *words, "r"]).exit_code == 0
    for run in Path("s/test").iterdir():
        shutil.rmtree(run)  # as if it had been stopped before
    Path("mnist.npz").rename("there/mnist.npz")
    for folder, more in (("s", ()), ("r", ("--rounds", "2"))):
        refused = CliRunner().invoke(app, ["resume", folder, *more])
        assert refused.exit_code == 2 and "mnist.npz" in refused.output + refused.stderr
        resumed = CliRunner().invoke(app, ["resume", folder, *more, "--data-dir", "there", "-q"])
        assert resumed.exit_code == 0, resumed.output
    assert len(list(Path("s/test").glob("*/summary.json"))) == 1
    assert json.loads(Path("r/summary.json").read_text())["rounds"] == 2
    refused = CliRunner().invoke(app, ["resume", "s", "--rounds", "9"])
    assert refused.exit_code == 2 and "--rounds: the runs of a sweep keep theirs" in refused.stderr


def test_wrong_jobs_are_refused_before_a_folder_is_made():
    for jobs in ("0", "4x", "two"):
        result = sweep(*GRID, "--jobs", jobs)
        assert (
            result.exit_code == 2 and f"--jobs: wanted how many runs at once, at least 1, got {jobs}" in result.output
        )
        with pytest.raises(ConfigError, match="--jobs: wanted how many"):
            kinfed.sweep("fedavg", {"training.lr": [0.0001, 0.1]}, quiet=True, jobs=jobs)
    assert not Path("runs").exists()


def test_python_sweeps_too():
    found = kinfed.sweep(
        "fedavg", {"training.lr": [0.0001, 0.1]}, out="s", quiet=True, rounds=1, fraction=1.0, model="linear",
        partition={"clients": 5},
    )  # fmt: skip
    assert found.best.training.lr == 0.1 and len(found.tested[0].runs) == 1


@pytest.mark.slow
def test_runs_beside_each_other_give_the_same_tables():
    words = (*TINY, "--methods", "fedavg,local", "-q", "--out")
    for jobs, out in (("1", "a"), ("2", "b")):
        assert CliRunner().invoke(app, ["compare", *words, out, "--jobs", jobs]).exit_code == 0
    for name in ("fedavg-seed0", "local-seed0"):
        assert Path("a", name, "summary.json").read_bytes() == Path("b", name, "summary.json").read_bytes()
