"""Metrics end to end: from settings to the tables of a run and of a comparison."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from kinfed import api
from kinfed.comparison import COLUMNS, Outcome, as_csv, comparison_table
from kinfed.config import Config, load_config
from kinfed.errors import ConfigError
from kinfed.experiment import Experiment
from kinfed.runs.reader import Run
from kinfed.signatures import Pretraining

TINY = ["partition.clients=10", "fraction=0.5", "rounds=2", "training.lr=0.05", "data.public=0.1"]
FLT = ["method=flt_kernel", "methods.flt_kernel.signature.tuning=none", "methods.flt_kernel.signature.latent=16"]
FLHC = ["method=flhc", "methods.flhc.rounds_before=1"]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short training of the encoder that looks at drift."""
    monkeypatch.setattr("kinfed.metrics.dry_runs.ENCODER", Pretraining(epochs=1, least_steps=20))


def config(*settings: str) -> Config:
    return load_config(None, [*TINY, *settings])


def run(folder: Path, *settings: str) -> Path:
    return api.run(config(*settings), out=folder, quiet=True).path


def summary(folder: Path) -> dict[str, float]:
    return json.loads((folder / "summary.json").read_text())


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def related(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FLT with look-alikes, which change no other number."""
    return run(tmp_path_factory.mktemp("flt") / "run", *FLT, "roles.look_alikes=3", "evaluation.every=1")


def test_robustness_can_be_read_off_the_tables(related: Path):
    folder = related
    people = table(folder, "clients")[-40:]
    assert [row["role"] for row in people] == ["trains"] * 10 + [f"look-alike of {i}" for i in range(10) for _ in "123"]
    assert all(row["accuracy"] == "" and row["true_cluster"] == "-1" for row in people[10:])
    cluster = [row["cluster"] for row in people]
    assert [row["cluster"] for row in table(folder, "clusters")[-40:]] == cluster
    inside = {name: [] for name in set(cluster[:10])}
    for alike, row in enumerate(people[10:]):
        inside[cluster[alike // 3]].append(row["cluster"] == cluster[alike // 3])
    shares = [sum(hits) / len(hits) for hits in inside.values()]
    assert summary(folder)["robustness"] == pytest.approx(sum(shares) / len(shares))
    assert summary(folder)["robustness"] > 0.6  # disjoint labels are easily told apart
    assert "robustness_se" in summary(folder)


def test_look_alikes_change_no_other_number(tmp_path: Path):
    plain, more = run(tmp_path / "a", *FLHC), run(tmp_path / "b", *FLHC, "roles.look_alikes=2")
    for before, after in zip(table(plain, "rounds"), table(more, "rounds"), strict=True):
        assert {k: float(v) for k, v in before.items() if v} == pytest.approx(
            {k: float(v) for k, v in after.items() if v}, abs=1e-6
        )
    assert summary(more).keys() - summary(plain).keys() == {"robustness", "robustness_se"}


def test_clusters_are_measured_by_labels(related: Path):
    end, rounds = summary(related), table(related, "rounds")
    assert end["uniformity_random"] < end["uniformity"] <= end["uniformity_labels"] == pytest.approx(1, abs=0.05)
    for name in ("clustering_error", "clustering_accuracy"):
        assert end[f"{name}_mean"] == pytest.approx(sum(float(row[name]) for row in rounds) / len(rounds))
    assert end["ari"] < 1 or end["clustering_error"] == 0


def test_correlations_with_labels_and_with_drift_are_measured(tmp_path: Path):
    skewed = ("partition.name=dirichlet", "partition.clients=10", "evaluation.correlation=true", "method=fedavg")
    folder = run(tmp_path / "labels", *skewed)
    rounds = table(folder, "rounds")
    assert all(float(row["correlation_labels"]) > 0.3 and row["correlation_drift"] == "" for row in rounds)
    assert all(0 < float(row["correlation_labels_se"]) < 0.1 for row in rounds)
    turned = run(tmp_path / "drift", *skewed, "shift.name=rotation", "shift.per=client")
    for row in table(turned, "rounds"):
        assert float(row["correlation_labels"]) and -1 < float(row["correlation_drift"]) < 1
    assert int(rounds[-1]["bytes_down"]) == int(table(turned, "rounds")[-1]["bytes_down"])
    assert {row["task"] for row in table(folder, "ledger")} == {"train", "evaluate"}, "it costs a method nothing"


def test_unseen_clients_are_scored_as_served_and_after_adaptation(tmp_path: Path):
    settings = ("method=fedavg", "roles.holdout=0.2", "roles.unlabelled=0.1", "roles.late=0.2")
    adapt = ("evaluation.adapt=true", "training.adapt_epochs=5")
    folder = run(tmp_path / "unseen", *settings, *adapt)
    people = [row for row in table(folder, "clients") if row["round"] == "2"]
    unseen = [row for row in people if row["role"] != "trains"]
    assert sorted(row["role"] for row in unseen) == ["holdout"] * 2 + ["too late"] * 2 + ["unlabelled"]
    able = [row for row in unseen if row["role"] != "unlabelled"]
    end = summary(folder)
    assert end["accuracy_unseen_adapted"] == pytest.approx(sum(float(r["accuracy_adapted"]) for r in able) / 4)
    assert end["accuracy_unseen"] == pytest.approx(sum(float(r["accuracy"]) for r in unseen) / 5)
    rows = sum(int(r["test_samples"]) for r in unseen)
    weighted = sum(float(r["accuracy"]) * int(r["test_samples"]) for r in unseen) / rows
    assert end["accuracy_holdout"] == pytest.approx(weighted)
    assert end["accuracy_unseen_adapted"] > end["accuracy_unseen"]  # two digits each are quickly learnt
    assert all(r["accuracy_adapted"] == "" for r in unseen if r["role"] == "unlabelled")
    assert "accuracy_unseen_adapted" not in summary(run(tmp_path / "served", *settings))


@pytest.mark.parametrize(
    ("join_round", "role", "training"), [(1, "late", 10), (2, "too late", 5), (None, "too late", 5)]
)
def test_clients_that_come_after_training_are_no_training_clients(tmp_path: Path, join_round, role: str, training: int):
    joins = () if join_round is None else (f"roles.join_round={join_round}",)
    found = Run(run(tmp_path / "late", "method=local", "roles.late=0.5", *joins))
    assert sorted(found.roles) == [role] * 5 + ["trains"] * 5
    assert len(found.training_scores) == training
    assert found.training_scores.mean() == pytest.approx(found.summary["accuracy"])
    assert np.nanmean(Outcome.of(found).scores) == pytest.approx(found.summary["accuracy"])


WHOLE = (*FLHC, "rounds=3", "checkpoint_every=2", "roles.look_alikes=2", "roles.holdout=0.2", "shift.name=augment",
         "evaluation.correlation=true", "evaluation.adapt=true")  # fmt: skip


def test_a_run_with_all_metrics_resumes_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = run(tmp_path / "whole", *WHOLE)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "_close", killed)  # in the last round, after the checkpoint of the second
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "half", *WHOLE)
    api.resume(tmp_path / "half", quiet=True)
    for name in ("rounds.csv", "clients.csv", "clusters.csv", "ledger.csv", "summary.json"):
        assert (tmp_path / "half" / name).read_bytes() == (whole / name).read_bytes(), name
    (whole / "summary.json").rename(tmp_path / "summary.json")  # as if killed after the last checkpoint
    api.resume(whole, quiet=True)
    assert (whole / "summary.json").read_bytes() == (tmp_path / "summary.json").read_bytes()


def test_a_longer_run_measures_its_end_anew(tmp_path: Path):
    settings = (*FLHC, "roles.look_alikes=2")
    short, long = run(tmp_path / "short", *settings), run(tmp_path / "long", *settings, "rounds=3")
    api.resume(short, rounds=3, quiet=True)
    for name in ("rounds.csv", "summary.json"):
        assert (short / name).read_bytes() == (long / name).read_bytes(), name


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("roles.look_alikes=-1", "look_alikes must be at least 0, got -1"),
        ("roles.look_alike_scale=[0.5, 0.2]", "two shares 0 < low <= high"),
        ("roles.look_alike_scale=0.5", "roles.look_alike_scale: wanted a list, got 0.5"),
        ("roles.look_alike=3", "did you mean 'roles.look_alikes'?"),
        ("evaluation.correlation=1", "evaluation.correlation: wanted true or false, got 1"),
    ],
)
def test_bad_settings_are_told(setting: str, told: str):
    with pytest.raises(ConfigError) as caught:
        config(setting)
    assert told in str(caught.value)


def outcome(**numbers: float) -> Outcome:
    plain = {"accuracy": 0.5, "variance": 1.0, "worst_decile": 0.1, "at_target": 0.0, "bytes_down": 0, "bytes_up": 0}
    return Outcome("flt", 0, plain | numbers, 1.0)


def test_the_comparison_shows_what_was_measured_and_no_empty_columns():
    always = [column.title for column in COLUMNS if column.always]
    assert comparison_table([outcome()])[0] == ["method", *always]
    shown = comparison_table([outcome(), outcome(robustness=0.9, accuracy_unseen_adapted=0.25)])
    assert set(shown[0]) - {"method", *always} == {"robustness", "unseen adapted %"}
    assert "25.00" in shown[1] and "0.90" in shown[1]
    assert as_csv([outcome()]).splitlines()[0].count("robustness") == 2  # the file has the same columns always


def test_uniformity_is_shown_where_no_clusters_are_planted():
    assert "uniformity" in comparison_table([outcome(uniformity=0.8)])[0]
    assert "uniformity" not in comparison_table([outcome(uniformity=0.8, ari=0.5)])[0]
