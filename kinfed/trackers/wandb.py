"""Weights & Biases: config, metrics and histograms of a run, as WANDB_MODE and WANDB_PROJECT say."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinfed.experiment import RoundResult
from kinfed.trackers.subject import Subject, Summary, ended_with, numbers

if TYPE_CHECKING:
    from wandb import Run

PROJECT = "kinfed"  # unless WANDB_PROJECT says otherwise


@dataclass
class WandB:
    """One run there for each run here; a run that is resumed stays one."""

    subject: Subject
    run: "Run | None" = None

    def on_start(self, rounds: int, done: int) -> None:
        import wandb

        known = self.subject.remembered("wandb") if done else None
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

            accuracy = result.scores.accuracy
            logged["clients/accuracy"] = Histogram(accuracy[accuracy.isfinite()].tolist())
        self.run.log(logged, step=result.round)

    def on_end(self, summary: Summary) -> None:
        if self.run is not None:
            self.run.summary.update(ended_with(summary))
            self.run.finish()


def track(subject: Subject) -> WandB:
    """A tracker of this run."""
    return WandB(subject)
