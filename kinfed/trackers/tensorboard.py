"""TensorBoard: scalars by round and histograms of clients' accuracies, in the run's own folder."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinfed.experiment import RoundResult
from kinfed.trackers.subject import Subject, Summary, ended_with, numbers

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


@dataclass
class TensorBoard:
    """Writes while it watches; what a killed run wrote beyond its checkpoint is purged."""

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
            accuracy = result.scores.accuracy
            self.writer.add_histogram("clients/accuracy", accuracy[accuracy.isfinite()], result.round)
        self.writer.flush()

    def on_end(self, summary: Summary) -> None:
        if self.writer is None:
            return
        for name, value in ended_with(summary).items():
            self.writer.add_scalar(f"summary/{name.removeprefix('final_')}", value)
        self.writer.close()


def track(subject: Subject) -> TensorBoard:
    """A tracker of this run."""
    return TensorBoard(subject)
