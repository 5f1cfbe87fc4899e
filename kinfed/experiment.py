"""An experiment: rounds of a method on a federation, evaluated as they go, watched by observers, resumable."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from kinfed import snapshot
from kinfed.algorithm import Algorithm
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Task
from kinfed.metrics import (
    QUESTIONS,
    accuracy_of,
    agreement,
    converged_at,
    mean_accuracy,
    rounds_to_target,
    share_at_target,
    standard_error,
    variance,
    worst_decile,
)

State = TypeVar("State")


@dataclass(frozen=True)
class Evaluation:
    """When and how clients are scored."""

    every: int = 1  # rounds between two evaluations; the last round is always evaluated
    adapt: bool = False  # also after local adaptation
    target: float = 0.99  # accuracy a client should reach

    def __post_init__(self) -> None:
        if self.every < 1 or not 0 <= self.target <= 1:
            raise ConfigError(f"wanted every >= 1 and a target in [0, 1], got {self.every} and {self.target}")


@dataclass(frozen=True)
class Scores:
    """Every client's accuracy after a round; not a number where a client was not scored."""

    accuracy: Tensor  # [clients], its model as served
    adapted: Tensor  # [clients], after local adaptation
    loss: Tensor  # [clients], mean over its test rows
    rows: Tensor  # [clients], test rows
    trains: Tensor  # [clients] bool: it takes part in training


@dataclass(frozen=True)
class RoundResult:
    """What observers are told after a round."""

    round: int  # rounds done so far
    metrics: dict[str, float]  # empty when the round was not evaluated
    scores: Scores | None
    groups: Tensor | None  # kinship found
    down: int  # bytes so far; evaluation does not count
    up: int
    seconds: float  # of this round


class Observer(Protocol):
    """Somebody who watches a run: a progress bar, a run folder, a tracker."""

    def began(self, rounds: int, done: int) -> None: ...

    def after_round(self, result: RoundResult) -> None: ...

    def ended(self, summary: dict[str, float | int | None]) -> None: ...


@dataclass
class Experiment(Generic[State]):
    """`run()` takes a method through its rounds and gives back a summary."""

    algorithm: Algorithm[State]
    fed: Federation
    rounds: int = 100
    evaluation: Evaluation = Evaluation()
    observers: Sequence[Observer] = ()
    checkpoint: Path | None = None
    checkpoint_every: int = 10
    about: dict[str, object] = field(default_factory=dict)  # goes into the checkpoint
    state: State | None = None
    history: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.checkpoint_every < 1:
            raise ConfigError(
                f"rounds and checkpoint_every must be at least 1, got {self.rounds} and {self.checkpoint_every}"
            )
        if not len(self.fed.clients):
            raise ConfigError(
                "no client trains from the first round on: leave some neither late, holdout nor unlabelled"
            )

    def run(self, resume: bool = False) -> dict[str, float | int | None]:
        """The summary after all rounds; with `resume`, from the checkpoint on."""
        done, placed, state = self._resumed() if resume else (0, self.fed.clients, self.algorithm.init(self.fed))
        for observer in self.observers:
            observer.began(self.rounds, done)
        for t in range(done, self.rounds):
            began = time.perf_counter()
            self.fed.begin(t)
            state = self._admitted(state, placed)
            placed = self.fed.present
            state = self.algorithm.round(state, t, self.fed)
            seconds = time.perf_counter() - began
            served = self._closed(state, placed) if t + 1 == self.rounds else state
            self._tell(self._result(served, t + 1, seconds))
            self.state = served
            if self.checkpoint and ((t + 1) % self.checkpoint_every == 0 or t + 1 == self.rounds):
                snapshot.save(self.checkpoint, state, self.fed, self.about | {"round": t + 1, "history": self.history})
        summary = self.summary()
        for observer in self.observers:
            observer.ended(summary)
        return summary

    def summary(self) -> dict[str, float | int | None]:
        """The last metrics, the cost, and how fast it went there."""
        means = [(round, metrics["accuracy"]) for round, metrics in self.history]
        down, up = self._bytes()
        reached = rounds_to_target(means, self.evaluation.target)
        test_rows = len(torch.cat([self.fed.test[i] for i in self.fed.clients.tolist()]).unique())
        return {
            **self.history[-1][1],
            "standard_error": standard_error(means[-1][1], max(1, test_rows)),
            "rounds_to_target": reached,
            "bytes_to_target": None if reached is None else self.fed.ledger.until(reached, without=QUESTIONS),
            "converged_at": converged_at(means),
            "bytes_down": down,
            "bytes_up": up,
            "rejected_replies": len(self.fed.rejected),
        }

    def _resumed(self) -> tuple[int, Tensor, State]:
        if self.checkpoint is None:
            raise ConfigError("an experiment without a checkpoint cannot be resumed")
        said = snapshot.about(self.checkpoint)
        state = snapshot.load(self.checkpoint, self.algorithm, self.fed)
        done = int(str(said["round"]))
        self.history = [(int(round), dict(metrics)) for round, metrics in said["history"]]  # type: ignore[attr-defined]
        self.fed.begin(done - 1)
        return done, self.fed.present, state

    def _closed(self, state: State, placed: Tensor) -> State:
        """The state that serves everybody: those who join after training are placed now."""
        self.fed.is_over = True
        return self._admitted(state, placed)

    def _admitted(self, state: State, placed: Tensor) -> State:
        newcomers = self.fed.present[~torch.isin(self.fed.present, placed)]
        return self.algorithm.admit(state, newcomers, self.fed) if len(newcomers) else state

    def _result(self, state: State, done: int, seconds: float) -> RoundResult:
        scores, metrics, groups = None, {}, self.algorithm.groups(state)
        if done % self.evaluation.every == 0 or done == self.rounds:
            scores = self._scores(state)
            metrics = self._metrics(scores, groups)
            self.history.append((done, metrics))
        return RoundResult(done, metrics, scores, groups, *self._bytes(), seconds)

    def _scores(self, state: State) -> Scores:
        """Every present client scored on its test rows; those without labels do not adapt."""
        fed, blank = self.fed, torch.full((self.fed.count,), torch.nan, dtype=torch.double)
        accuracy, adapted, loss, rows = (
            blank.clone(),
            blank.clone(),
            blank.clone(),
            torch.zeros(fed.count, dtype=torch.long),
        )
        self._ask(self.algorithm.evaluate, fed.present, state, accuracy, loss, rows)
        if self.evaluation.adapt:
            labelled = torch.tensor([fed.roles[i].labelled for i in fed.present.tolist()], device=fed.device)
            self._ask(
                self.algorithm.evaluate_adapted, fed.present[labelled], state, adapted, loss.clone(), rows.clone()
            )
        trains = torch.isin(torch.arange(fed.count), fed.clients.cpu())
        return Scores(accuracy, adapted, loss, rows, trains)

    def _ask(self, task: Task, cohort: Tensor, state: State, accuracy: Tensor, loss: Tensor, rows: Tensor) -> None:
        replies = self.fed.run(task, cohort, self.algorithm.offer(state, cohort, self.fed))
        who, count = replies.cohort.cpu(), replies["rows"].cpu()
        accuracy[who] = accuracy_of(replies["correct"].cpu(), count)
        loss[who] = replies["loss"].cpu().double() / count
        rows[who] = count

    def _metrics(self, scores: Scores, groups: Tensor | None) -> dict[str, float]:
        scored = ~scores.accuracy.isnan()
        own = scores.accuracy[scored & scores.trains]
        metrics = {
            "accuracy": mean_accuracy(own),
            "variance": variance(own),
            "worst_decile": worst_decile(own),
            "at_target": share_at_target(own, self.evaluation.target),
        }
        if self.evaluation.adapt:
            metrics["accuracy_adapted"] = mean_accuracy(scores.adapted[scored & scores.trains])
        if bool((scored & ~scores.trains).any()):
            metrics["accuracy_strangers"] = mean_accuracy(scores.accuracy[scored & ~scores.trains])
        if groups is not None and self.fed.groups is not None:
            metrics |= agreement(groups.cpu(), self.fed.groups)
        return metrics

    def _bytes(self) -> tuple[int, int]:
        ledger = self.fed.ledger
        return tuple(
            sum(int(t.sum()) for task, t in table.items() if task not in QUESTIONS)
            for table in (ledger.down, ledger.up)
        )  # type: ignore[return-value]

    def _tell(self, result: RoundResult) -> None:
        for observer in self.observers:
            observer.after_round(result)
