"""Trackers as they really are: what they wrote is read back with their own tools."""

from pathlib import Path

import pytest

from kinfed import api
from kinfed.config import Config, load_config
from kinfed.errors import ConfigError
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

    folder = api.run(tracked("tensorboard", "rounds=2"), out=tmp_path / "run", quiet=True).path
    api.resume(folder, rounds=4, quiet=True)
    events = EventAccumulator(str(folder / "tensorboard"), {"histograms": 0}).Reload()
    logged = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert logged == [(round, pytest.approx(value, abs=1e-6)) for round, value in accuracies(folder)]
    assert [event.step for event in events.Histograms("clients/accuracy")] == [1, 2, 3, 4]
    assert {"megabytes", "seconds", "worst_decile", "summary/accuracy"} <= set(events.Tags()["scalars"])
    assert not (api.run(load_config(None, TINY), out=folder, force=True, quiet=True).path / "tensorboard").exists()


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_parameters_and_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    from mlflow import MlflowClient

    folder = api.run(tracked("mlflow", "rounds=2"), out=tmp_path / "run", quiet=True).path
    api.resume(folder, rounds=4, quiet=True)
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
    folder = api.run(tracked("wandb"), out=tmp_path / "run", quiet=True).path
    (offline,) = (folder / "wandb").glob("offline-run-*")
    assert offline.name.endswith((folder / "wandb_run.txt").read_text().strip())
    said = b"".join(path.read_bytes() for path in offline.glob("*.wandb"))
    assert b"worst_decile" in said and b"final_accuracy" in said


def test_an_unknown_or_missing_tracker_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ConfigError, match="unknown tracker 'tensorbord': did you mean 'tensorboard'"):
        api.run(tracked("tensorbord"), out=tmp_path / "run", quiet=True)
    monkeypatch.setattr("kinfed.trackers.is_installed", lambda name: False)
    with pytest.raises(
        ConfigError, match=r"'wandb' needs the package wandb; install it with pip install 'kinfed\[wandb\]'"
    ):
        api.run(tracked("wandb"), out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_tracker_changes_nothing_in_the_run(tmp_path: Path):
    needs("tensorboard")
    plain = api.run(load_config(None, TINY), out=tmp_path / "plain", quiet=True).path
    watched = api.run(tracked("tensorboard"), out=tmp_path / "watched", quiet=True).path
    for name in ("rounds.csv", "clients.csv", "ledger.csv", "summary.json"):
        assert (plain / name).read_bytes() == (watched / name).read_bytes()
