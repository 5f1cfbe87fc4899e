"""MLflow: parameters and metrics of a run, where MLFLOW_TRACKING_URI says; a run that is resumed stays one."""

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinfed.experiment import RoundResult
from kinfed.trackers.subject import Subject, Summary, ended_with, numbers

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "kinfed"  # unless MLFLOW_EXPERIMENT_NAME says otherwise
LONGEST = 500  # letters of a parameter
AT_ONCE = 100  # parameters


@dataclass
class MLflow:
    """Uses the client and no run of the process, so that runs of a comparison do not meet."""

    subject: Subject
    client: "MlflowClient"
    run: str = ""

    def on_start(self, rounds: int, done: int) -> None:
        known = self.subject.remembered("mlflow") if done else None
        self.run = known or self._created()

    def on_round(self, result: RoundResult) -> None:
        self._log(numbers(result), result.round)

    def on_end(self, summary: Summary) -> None:
        self._log(ended_with(summary), 0)
        self.client.set_terminated(self.run)

    def _created(self) -> str:
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


def track(subject: Subject) -> MLflow:
    """A tracker of this run."""
    from mlflow import MlflowClient

    return MLflow(subject, MlflowClient())
