"""The loop of an experiment: rounds, each evaluated and watched; the checkpoint, and the summary at the end."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Generic, TypedDict, TypeVar, Unpack, cast

import torch
from torch import Tensor

from kinfed import checkpoint as checkpoints
from kinfed.aggregation import MEAN, Aggregation
from kinfed.capabilities import FindsClusters
from kinfed.data.population import Population
from kinfed.engines import EngineSettings, make_federation
from kinfed.errors import ConfigError
from kinfed.experiment.doubts import (
    SETTLED,
    say_if_tests_are_many,
    warn_if_outvoted,
    warn_if_partial,
    warn_if_short,
    warn_if_stuck,
    warn_if_unsettled,
)
from kinfed.experiment.evaluation_settings import EVALUATION, Evaluation
from kinfed.experiment.observers import Observer, RoundResult, Summary
from kinfed.experiment.preconditions import check_experiment
from kinfed.federation import Federation
from kinfed.method import Method
from kinfed.metrics import (
    QUESTIONS,
    DriftLog,
    FoundClusters,
    Scores,
    assign_look_alikes,
    average_changed,
    correlations,
    count_bytes,
    count_unused,
    current_clusters,
    drift_similarity,
    dry_run,
    find_convergence,
    measure_clients,
    originals_of,
    robustness,
    rounds_to_target,
    score_clients,
    spend_privacy,
    standard_error,
    summarise_scores,
)
from kinfed.privacy import OPEN, Privacy
from kinfed.quality import Metric

MOST_MEASURED = 1000  # clients
QUICK = 1.0  # seconds; a checkpoint that takes less is written whenever it is wanted

State = TypeVar("State")


class Loop(TypedDict, total=False):
    """The settings of an experiment over a federation that exists."""

    rounds: int
    evaluation: Evaluation
    observers: Sequence[Observer]
    checkpoint: Path | None
    checkpoint_every: int
    about: Mapping[str, object]


class Experiment(Generic[State]):
    """`run()` takes a method through its rounds on clients and returns a summary."""

    def __init__(
        self, method: Method[State], population: Population, engine: str | EngineSettings = "vectorised", *,
        rounds: int = 100, fraction: float = 1.0, seed: int = 0, device: str | None = None,
        aggregation: Aggregation = MEAN, privacy: Privacy = OPEN, evaluation: Evaluation = EVALUATION,
        observers: Sequence[Observer] = (), checkpoint: Path | None = None, checkpoint_every: int = 10,
        about: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(population, Population):
            raise ConfigError(
                f"Experiment: wanted a Population, got a {type(population).__name__}; the experiment makes the "
                "federation itself: Experiment(method, population, engine='vectorised'), and over one that exists "
                "Experiment.over(federation)"
            )
        anything = cast("Method[object]", method)
        federation = make_federation(anything, population, engine, fraction=fraction, seed=seed, device=device)
        federation.privacy = privacy
        federation.aggregation = aggregation
        self._prepare(
            method, federation, rounds=rounds, evaluation=evaluation, observers=observers, checkpoint=checkpoint,
            checkpoint_every=checkpoint_every, about=about or {},
        )  # fmt: skip

    @classmethod
    def over(cls, federation: Federation, **loop: Unpack[Loop]) -> "Experiment[State]":
        """An experiment with the method and the clients of a federation that exists."""
        experiment = cls.__new__(cls)
        experiment._prepare(cast("Method[State]", federation.method), federation, **loop)
        return experiment

    def _prepare(self, method: Method[State], fed: Federation, **loop: Unpack[Loop]) -> None:
        self.method, self.fed = method, fed
        self.rounds = fed.rounds = loop.get("rounds", 100)
        self.evaluation = loop.get("evaluation", EVALUATION)
        self.observers: tuple[Observer, ...] = tuple(loop.get("observers", ()))
        self.checkpoint: Path | None = loop.get("checkpoint")
        self.checkpoint_every = loop.get("checkpoint_every", 10)
        self.about = dict(loop.get("about", {}))  # goes into the checkpoint
        self.state: State | None = None
        self.history: list[tuple[int, dict[str, float]]] = []
        self.scores: Scores | None = None  # every client's, of the last evaluation
        self.final: dict[str, float] = {}  # metrics that are measured once, after the last round
        self.found: tuple[FoundClusters, dict[str, float]] | None = None  # the latest clusters and their metrics
        self.recent: tuple[Tensor, ...] = ()  # the clusters after the latest rounds
        self.error: float | None = None  # standard error at the checkpoint that the run was resumed from
        self.saved: tuple[float, float] = (0.0, 0.0)  # seconds that the last checkpoint took, and when it was written
        self.drift: Tensor | None = None  # similarity of clients' images, where correlations are measured
        self.drift_log = DriftLog()  # when clients' samples changed, and when that was noticed
        check_experiment(method, fed, self.rounds, self.checkpoint_every, self.evaluation)

    @property
    def metric(self) -> Metric:
        """The main metric."""
        return self.method.model.task.metric()

    @property
    def has_clusters(self) -> bool:
        """Whether the method finds clusters, and there are true ones to compare them with."""
        return isinstance(self.method, FindsClusters) and self.fed.true_clusters is not None

    def attach(self, observers: Sequence[Observer], checkpoint: Path) -> None:
        """Adds observers, and says where the checkpoint is."""
        self.observers, self.checkpoint = (*self.observers, *observers), checkpoint

    def run(self, resume: bool = False) -> Summary:
        """The summary after all rounds; with `resume`, from the checkpoint on."""
        if self.fed.is_over or self.fed.round:
            raise ConfigError("this federation has been through a run, and its clients remember it: make a new one")
        warn_if_short(self.method, self.fed, self.rounds)
        say_if_tests_are_many(self.fed)
        self.fed.open()
        if self.evaluation.correlation:
            self.drift = drift_similarity(self.fed.population, self.fed.device)
        done, admitted, state = self._load_checkpoint() if resume else (0, self.fed.clients, self._begin())
        for observer in self.observers:
            observer.on_start(self.rounds, done)
        for t in range(done, self.rounds):
            began, before_it = time.perf_counter(), self.fed.client_seconds
            self.fed.begin(t)
            state = self._admit(state, admitted)
            admitted = self.fed.present
            state = checkpoints.check_state(self.method, self.method.round(state, t, self.fed), "round")
            seconds = time.perf_counter() - began, self.fed.client_seconds - before_it
            before = checkpoints.Books.of(self.fed) if t + 1 == self.rounds else None
            served = self._admit_last(state, admitted) if t + 1 == self.rounds else state
            nobody_joined = before is None or before.calls == self.fed.calls
            self._notify(self._result(served, t + 1, seconds))
            self.state = served
            if self._is_due(t + 1):
                self._save(state, t + 1, None if nobody_joined else before)
        summary = self.summary()
        for observer in self.observers:
            observer.on_end(summary)
        return summary

    def summary(self) -> Summary:
        """The last metrics, the cost, and how fast it went there."""
        means = self._mean_scores()
        down, up = count_bytes(self.fed.ledger)
        reached = rounds_to_target(means, self.evaluation.target, self.metric.lower_is_better)
        return {
            **self.history[-1][1],
            **self._means("clustering_error", "clustering_accuracy"),
            **self.final,
            **self.drift_log.measure(self.rounds, self.has_clusters, self.fed.roles),
            "standard_error": self._standard_error(means[-1][1]),
            "rounds_to_target": reached,
            "bytes_to_target": None if reached is None else self.fed.ledger.until(reached, without=QUESTIONS),
            "converged_at": find_convergence(means, self.metric),
            "bytes_down": down,
            "bytes_up": up,
            "rejected_replies": sum(reply.was_dropped for reply in self.fed.rejected),
            **count_unused(self.fed.rejected),
            **spend_privacy(self.method, self.fed),
        }

    def _mean_scores(self) -> list[tuple[int, float]]:
        return [(round, metrics[self.metric.name]) for round, metrics in self.history]

    def _standard_error(self, mean: float) -> float | None:
        """Of a share, over test samples; of other metrics, over clients, where there are several."""
        task = self.method.model.task
        if self.metric.unit == "%" and task.least() >= 0 and task.most() <= 1 and not (mean < 0 or mean > 1):
            return standard_error(mean, max(1, self.fed.test_samples))
        if self.scores is None:  # of a run that had ended
            return self.error
        known = self.scores.main[self.scores.trains]
        known = known[~known.isnan()]
        return float(known.std() / len(known) ** 0.5) if len(known) > 1 else None

    def _means(self, *names: str) -> dict[str, float]:
        """Means over the evaluated rounds of the metrics that have been measured."""
        values = {name: [m[name] for _, m in self.history if name in m] for name in names}
        return {f"{name}_mean": sum(seen) / len(seen) for name, seen in values.items() if seen}

    def _is_due(self, done: int) -> bool:
        """Whether a checkpoint is written now; a large one comes less often, so that it takes a tenth of the time."""
        cost, ended = self.saved
        in_time = cost < QUICK or time.perf_counter() - ended > 10 * cost
        return done == self.rounds or (done % self.checkpoint_every == 0 and in_time)

    def _save(self, state: State, done: int, before: checkpoints.Books | None) -> None:
        """Writes the checkpoint; `before` is what was counted before clients that join after training were.

        A longer run admits them at its own end, and counts them there.
        """
        longer = before.with_later(checkpoints.Books.of(self.fed), QUESTIONS) if before else None
        if self.checkpoint:
            began = time.perf_counter()
            checkpoints.save(self.checkpoint, state, self.fed, self._about(done), longer)
            self.saved = time.perf_counter() - began, time.perf_counter()

    def _about(self, done: int) -> dict[str, object]:
        kind = str(self.fed.x.dtype).removeprefix("torch.")
        samples = {"shape": list(self.fed.x.shape[1:]), "dtype": kind, "classes": self.method.model.classes}
        return (
            self.about
            | {"round": done, "history": self.history, "final": self.final, "samples": samples}
            | ({"standard_error": self._standard_error(self._mean_scores()[-1][1])} if done == self.rounds else {})
            | ({"fingerprint": self.fingerprint} if self.fed.sees_samples else {})
            | ({"drift": self.drift_log.state_dict()} if self.fed.population.changes else {})
        )

    @cached_property
    def fingerprint(self) -> checkpoints.Fingerprint:
        """By which a run that is resumed knows its samples again."""
        return checkpoints.take_fingerprint(self.fed.population)

    def check_checkpoint(self, path: Path) -> None:
        """Raise CheckpointError where the checkpoint is of other samples, or of a state with other fields."""
        checkpoints.refuse_other_state(path, self.method)
        before = checkpoints.read_about(path).get("fingerprint")
        if self.fed.sees_samples and isinstance(before, dict):
            checkpoints.refuse_others(before, self.fingerprint, path)

    def _load_checkpoint(self) -> tuple[int, Tensor, State]:
        if self.checkpoint is None:
            raise ConfigError("an experiment without a checkpoint cannot be resumed")
        self.check_checkpoint(self.checkpoint)
        about = checkpoints.read_about(self.checkpoint)
        done = int(str(about["round"]))
        state = checkpoints.load(self.checkpoint, self.method, self.fed, longer=True)
        self.history = [(int(round), dict(metrics)) for round, metrics in about["history"]]  # type: ignore[attr-defined]
        self.final = dict(about.get("final", {}))  # type: ignore[call-overload]
        self.error = cast("float | None", about.get("standard_error"))
        self.drift_log = DriftLog.read(about.get("drift"))
        self.fed.begin(done - 1)
        admitted = self.fed.present
        if done == self.rounds:  # only what is written at the end may be missing
            self.state = self._admit_last(state, admitted)
            checkpoints.load_books(self.checkpoint, self.fed)
        return done, admitted, state

    def _begin(self) -> State:
        return checkpoints.check_state(self.method, self.method.init(self.fed), "init")

    def _admit_last(self, state: State, admitted: Tensor) -> State:
        """The state that serves all clients: those that join after training are admitted now."""
        self.fed.is_over = True
        return self._admit(state, admitted)

    def _admit(self, state: State, admitted: Tensor) -> State:
        if self.fed.present is admitted:  # nobody has come
            return state
        here = self.fed.real
        unseen = here[~torch.isin(here, admitted)]
        if not len(unseen):
            return state
        return checkpoints.check_state(self.method, self.method.admit(state, unseen, self.fed), "admit")

    def _result(self, state: State, done: int, seconds: tuple[float, float]) -> RoundResult:
        scores, metrics = None, {}
        self.drift_log = self.drift_log.enter(self.fed)
        if done % self.evaluation.every == 0 or done == self.rounds:
            adapt = self.evaluation.adapts(done, self.rounds)
            scores = score_clients(self.method, state, self.fed, adapt)
            self.scores, metrics = scores, self._metrics(state, scores)
            self.history.append((done, metrics))
            warn_if_stuck(self.method, self._mean_scores())
        clusters = current_clusters(self.method, state, self.fed) if done < self.rounds else self._close(state)
        if done in (1, self.rounds) and clusters is not None:
            warn_if_outvoted(self.fed, clusters)
        if clusters is not None and not self.fed.population.changes:
            self.recent = (*self.recent[-SETTLED:], clusters)
        if done == self.rounds:
            warn_if_unsettled(self.recent)
            if clusters is not None:
                warn_if_partial(self.fed, clusters)
        if self.fed.population.changes:
            self.drift_log = self.drift_log.note(self.fed, clusters, scores, self.metric.lower_is_better)
        return RoundResult(
            done, metrics, scores, clusters, *count_bytes(self.fed.ledger), seconds[0], self.metric, seconds[1]
        )

    def _metrics(self, state: State, scores: Scores) -> dict[str, float]:
        metrics = summarise_scores(scores, self.metric, self.evaluation.target)
        if (changed := average_changed(scores, self.fed)) is not None:
            metrics[f"{self.metric.name}_changed"] = changed
        found = FoundClusters.by(self.method, state, self.fed)
        if found is not None:
            metrics |= self._cluster_metrics(found)
        if self.evaluation.correlation:
            metrics |= correlations(self.method, state, self.fed, self.drift)
        return metrics

    def _cluster_metrics(self, found: FoundClusters) -> dict[str, float]:
        """Its metrics; those of the last time where nothing has changed, for they compare all pairs of clients."""
        if self.found is None or not found.is_like(self.found[0]):
            self.found = found, found.metrics()
        return self.found[1]

    def _close(self, state: State) -> Tensor | None:
        """The clusters with look-alikes in them; measures what is measured once, after the last round."""
        found = FoundClusters.by(self.method, state, self.fed)
        self.final = self._measure_all(state)
        if found is None:
            return None
        self.final |= found.references(self.fed.seed)
        clusters = assign_look_alikes(self.method, state, self.fed)
        if clusters is None:
            return found.clusters
        self.final |= robustness(clusters, originals_of(self.fed), self.fed.clients.cpu())
        return clusters

    def _measure_all(self, state: State) -> dict[str, float]:
        """All metrics of the task but the main one, which is of every evaluation."""
        if self.evaluation.metrics == "main" or len(self.fed.clients) > MOST_MEASURED:
            return {}
        with dry_run(self.fed):
            found = measure_clients(self.method, state, self.fed)
        return {name: value for name, value in found.items() if name != self.metric.name}

    def _notify(self, result: RoundResult) -> None:
        for observer in self.observers:
            observer.on_round(result)
