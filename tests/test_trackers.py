"""Trackers as they really are: what they wrote is read back with their own tools."""

from dataclasses import replace
from pathlib import Path

import pytest

from kinfed import commands
from kinfed.commands import Place
from kinfed.config import Config, load_config
from kinfed.errors import ConfigError
from kinfed.progress import Silence
from tests.test_runs import TINY, table

LOUD = "ignore:.*:DeprecationWarning"  # of the packages, not ours


def tracked(name: str, *settings: str) -> Config:
    return load_config(None, [*TINY, f'trackers=["{name}"]', *settings])


def needs(package: str) -> None:
    pytest.importorskip(package, reason=f"not installed: pip install 'kinfed[{package}]'")


def accuracies(folder: Path) -> list[tuple[int, float]]:
    return [(int(row["round"]), float(row["accuracy"])) for row in table(folder, "rounds")]


@pytest.mark.filterwarnings(LOUD)
def test_tensorboard_has_every_round_also_of_a_run_that_was_resumed(tmp_path: Path):
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = commands.run(tracked("tensorboard", "rounds=2"), Place(tmp_path / "run"), Silence())
    commands.resume(folder, lambda config: replace(config, rounds=4), Silence())
    events = EventAccumulator(str(folder / "tensorboard"), {"histograms": 0}).Reload()
    logged = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert logged == [(round, pytest.approx(value, abs=1e-6)) for round, value in accuracies(folder)]
    assert [event.step for event in events.Histograms("clients/accuracy")] == [1, 2, 3, 4]
    assert {"megabytes", "seconds", "worst_decile", "summary/accuracy"} <= set(events.Tags()["scalars"])
    assert not (commands.run(load_config(None, TINY), Place(folder, force=True), Silence()) / "tensorboard").exists()


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_parameters_and_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    from mlflow import MlflowClient

    folder = commands.run(tracked("mlflow", "rounds=2"), Place(tmp_path / "run"), Silence())
    commands.resume(folder, lambda config: replace(config, rounds=4), Silence())
    client, run = MlflowClient(), (folder / "mlflow_run.txt").read_text().strip()
    history = [(metric.step, metric.value) for metric in client.get_metric_history(run, "accuracy")]
    assert history == [(round, pytest.approx(value)) for round, value in accuracies(folder)]
    kept = client.get_run(run)
    assert kept.data.params["training.lr"] == "0.01" and kept.info.status == "FINISHED"
    assert kept.info.run_name == "fedavg-digits-seed0"


@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    needs("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CACHE_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    folder = commands.run(tracked("wandb"), Place(tmp_path / "run"), Silence())
    (offline,) = (folder / "wandb").glob("offline-run-*")
    assert offline.name.endswith((folder / "wandb_run.txt").read_text().strip())
    said = b"".join(path.read_bytes() for path in offline.glob("*.wandb"))
    assert b"worst_decile" in said and b"final_accuracy" in said


def test_an_unknown_or_missing_tracker_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ConfigError, match="unknown tracker 'tensorbord': did you mean 'tensorboard'"):
        commands.run(tracked("tensorbord"), Place(tmp_path / "run"), Silence())
    monkeypatch.setattr("kinfed.trackers.registry.is_installed", lambda name: False)
    with pytest.raises(
        ConfigError, match=r"'wandb' needs the package wandb; install it with pip install 'kinfed\[wandb\]'"
    ):
        commands.run(tracked("wandb"), Place(tmp_path / "run"), Silence())
    assert not (tmp_path / "run").exists()


def test_a_tracker_changes_nothing_in_the_run(tmp_path: Path):
    needs("tensorboard")
    plain = commands.run(load_config(None, TINY), Place(tmp_path / "plain"), Silence())
    watched = commands.run(tracked("tensorboard"), Place(tmp_path / "watched"), Silence())
    for name in ("rounds.csv", "clients.csv", "ledger.csv", "summary.json"):
        assert (plain / name).read_bytes() == (watched / name).read_bytes()
