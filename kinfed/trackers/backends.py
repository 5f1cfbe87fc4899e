"""The trackers: TensorBoard, MLflow, Weights & Biases; each imports its package when it is used."""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.experiment import RoundResult, Summary
from kinfed.files import write_bytes

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter
    from wandb import Run

FOLDER = "tensorboard"  # in the run's own folder
EXPERIMENT = "kinfed"  # of MLflow, unless MLFLOW_EXPERIMENT_NAME says otherwise
PROJECT = "kinfed"  # of Weights & Biases, unless WANDB_PROJECT says otherwise
LONGEST = 500  # characters of an MLflow parameter
AT_ONCE = 100  # MLflow parameters


@dataclass(frozen=True)
class Subject:
    """A run that is tracked."""

    folder: Path
    name: str
    settings: dict[str, object]  # dotted key -> value

    def recall(self, tracker: str) -> str | None:
        """The id under which a tracker knew this run before it was stopped."""
        path = self._note(tracker)
        return path.read_text(encoding="utf-8").strip() if path.exists() else None

    def remember(self, tracker: str, known_as: str) -> None:
        """Keeps that id with the run."""
        write_bytes(self._note(tracker), (known_as + "\n").encode())

    def _note(self, tracker: str) -> Path:
        return self.folder / f"{tracker}_run.txt"


def numbers(result: RoundResult) -> dict[str, float]:
    """What a round came to, by name; what is not a number is left out."""
    cost = {"megabytes": (result.down + result.up) / 1e6, "seconds": result.seconds}
    return {name: value for name, value in (result.metrics | cost).items() if math.isfinite(value)}


def final_numbers(summary: Summary) -> dict[str, float]:
    """The numbers of a summary."""
    return {f"final_{name}": float(v) for name, v in summary.items() if v is not None and math.isfinite(v)}


@dataclass
class TensorBoard:
    """TensorBoard: scalars and histograms; what a killed run wrote beyond its checkpoint is purged."""

    subject: Subject
    writer: "SummaryWriter | None" = None

    def on_start(self, rounds: int, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        where = self.subject.folder / FOLDER
        self.writer = SummaryWriter(str(where), purge_step=done + 1 if done else None)
        if not done:
            lines = "\n".join(f"    {key} = {value!r}" for key, value in self.subject.settings.items())
            self.writer.add_text("config", lines, 0)

    def on_round(self, result: RoundResult) -> None:
        if self.writer is None:
            return
        for name, value in numbers(result).items():
            self.writer.add_scalar(name, value, result.round)
        if result.scores is not None:
            scores = result.scores.main
            self.writer.add_histogram(f"clients/{result.metric.name}", scores[scores.isfinite()], result.round)
        self.writer.flush()

    def on_end(self, summary: Summary) -> None:
        if self.writer is None:
            return
        for name, value in final_numbers(summary).items():
            self.writer.add_scalar(f"summary/{name.removeprefix('final_')}", value)
        self.writer.close()


@dataclass
class MLflow:
    """MLflow: parameters and metrics; it uses no run of the process, so that runs of a comparison do not mix."""

    subject: Subject
    client: "MlflowClient"
    run: str = ""

    @classmethod
    def of(cls, subject: Subject) -> "MLflow":
        """A tracker of this run, where MLFLOW_TRACKING_URI says."""
        from mlflow import MlflowClient

        return cls(subject, MlflowClient())

    def on_start(self, rounds: int, done: int) -> None:
        known = self.subject.recall("mlflow") if done else None
        self.run = known or self._create()

    def on_round(self, result: RoundResult) -> None:
        self._log(numbers(result), result.round)

    def on_end(self, summary: Summary) -> None:
        self._log(final_numbers(summary), 0)
        self.client.set_terminated(self.run)

    def _create(self) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self.client.create_experiment(name)
        run = str(self.client.create_run(experiment, run_name=self.subject.name).info.run_id)
        params = [Param(key, str(value)[:LONGEST]) for key, value in self.subject.settings.items()]
        for start in range(0, len(params), AT_ONCE):
            self.client.log_batch(run, params=params[start : start + AT_ONCE])
        self.subject.remember("mlflow", run)
        return run

    def _log(self, values: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.run, metrics=[Metric(name, value, now, step) for name, value in values.items()])


@dataclass
class WandB:
    """Weights & Biases: config, metrics and histograms; a run that is resumed stays one."""

    subject: Subject
    run: "Run | None" = None

    def on_start(self, rounds: int, done: int) -> None:
        import wandb

        known = self.subject.recall("wandb") if done else None
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=self.subject.name, config=self.subject.settings,
            dir=str(self.subject.folder), id=known, resume="allow", reinit="create_new",
        )  # fmt: skip
        self.subject.remember("wandb", self.run.id)

    def on_round(self, result: RoundResult) -> None:
        if self.run is None:
            return
        logged: dict[str, object] = dict(numbers(result))
        if result.scores is not None:
            from wandb import Histogram

            scores = result.scores.main
            logged[f"clients/{result.metric.name}"] = Histogram(scores[scores.isfinite()].tolist())
        self.run.log(logged, step=result.round)

    def on_end(self, summary: Summary) -> None:
        if self.run is not None:
            self.run.summary.update(final_numbers(summary))
            self.run.finish()
