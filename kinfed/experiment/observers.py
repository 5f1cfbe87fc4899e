"""What watches an experiment, and what it gets: the result of each round, the summary at the end."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kinfed.metrics import Scores
from kinfed.quality import ACCURACY, Metric

Summary = dict[str, float | int | None]


@dataclass(frozen=True)
class RoundResult:
    """What observers get after a round."""

    round: int  # rounds done so far
    metrics: dict[str, float]  # empty when the round was not evaluated
    scores: Scores | None
    clusters: Tensor | None  # found by the method
    down: int  # bytes so far; evaluation does not count
    up: int
    seconds: float  # of this round
    metric: Metric = ACCURACY  # the main one
    client_seconds: float = 0.0  # of these, for clients' tasks


class Observer(Protocol):
    """Watches a run: a progress bar, a run folder, a tracker."""

    def on_start(self, rounds: int, done: int) -> None: ...

    def on_round(self, result: RoundResult) -> None: ...

    def on_end(self, summary: Summary) -> None: ...
