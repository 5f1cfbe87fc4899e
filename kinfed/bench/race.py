"""The race: contenders take turns, round by round, so that whatever disturbs the machine disturbs all of them."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kinfed.bench.peers.protocol import Job
from kinfed.bench.runners import Absent, Contender, Runner, scratch, started
from kinfed.bench.workloads import WORKLOADS, Workload
from kinfed.errors import ConfigError
from kinfed.registry import look_up

YARDSTICK = "plain"
CONTENDERS = {
    "kinfed": Contender("kinfed", "kinfed", ("vectorised",)),
    "kinfed-tf32": Contender("kinfed-tf32", "kinfed", ("vectorised", "tf32")),
    "sequential": Contender("sequential", "kinfed", ("sequential",)),
    "plain": Contender("plain", "plain"),
    "plain-1": Contender("plain-1", "plain", threads=1),
    "flower": Contender("flower", "flower"),
    "pfl": Contender("pfl", "pfl"),
    "fedlab": Contender("fedlab", "fedlab"),
    "fedjax": Contender("fedjax", "fedjax"),
}
ABOUT = {
    "kinfed": "this engine, vectorised",
    "kinfed-tf32": "the same with engine.tf32, on a GPU",
    "sequential": "kinfed's reference engine",
    "plain": "a plain PyTorch loop",
    "plain-1": "the same with one thread",
    "flower": "Flower's simulation on Ray, an actor a thread",
    "pfl": "pfl-research, a process a thread",
    "fedlab": "FedLab's serial trainer",
    "fedjax": "fedjax, compiled",
}


@dataclass(frozen=True)
class Plan:
    """How contenders race."""

    rounds: int = 5
    threads: int = 0  # 0: all cores
    device: str = "cpu"
    scale: float = 1.0  # share of the clients

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.threads < 0:
            raise ConfigError(f"wanted --rounds >= 1 and --threads >= 0, got {self.rounds} and {self.threads}")

    @property
    def cores(self) -> int:
        """Threads that every contender may use."""
        return self.threads or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Outcome:
    """One contender on one workload; `why` is empty if it took part."""

    workload: str
    contender: str
    first: float = 0.0  # seconds of the round before the timed ones
    rounds: tuple[float, ...] = ()  # seconds of each
    cpu: float | None = None  # seconds of CPU for one round, on average
    peak: int | None = None  # bytes
    copied_a_second: float | None = None  # bytes that a copy on its GPU moves in a second
    why: str = ""

    @property
    def median(self) -> float:
        """Seconds of a usual round."""
        return statistics.median(self.rounds)

    def speed(self, yardstick: "Outcome") -> float:
        """How many times as fast as the yardstick: the median over the rounds, each against its neighbour."""
        return statistics.median(b / a for a, b in zip(self.rounds, yardstick.rounds, strict=True))

    def bandwidth_share(self, workload: Workload) -> float | None:
        """The share of its GPU's measured memory bandwidth that the bytes a round must move make."""
        return workload.least_bytes / self.median / self.copied_a_second if self.copied_a_second else None


def entries(names: Sequence[str], pythons: Mapping[str, str]) -> list[Contender]:
    """The contenders of these names; `pythons` says which interpreter has a peer's packages."""
    for name in pythons:
        if look_up(name, CONTENDERS, "contender").is_own:
            raise ConfigError(f"--peer-python: '{name}' runs in this environment; wanted one of the other simulators")
    chosen = [look_up(name, CONTENDERS, "contender") for name in names]
    return [Contender(c.name, c.driver, c.arguments, c.threads, pythons.get(c.name, c.python)) for c in chosen]


def race(name: str, contenders: Sequence[Contender], plan: Plan, tell: Callable[[str], None]) -> list[Outcome]:
    """The outcomes of all contenders on one workload; who cannot take part, or falls, has the reason in its outcome."""
    workload = look_up(name, WORKLOADS, "workload").scaled(plan.scale)
    with scratch() as folder, ExitStack() as stack:
        job = workload.job(Path(folder), plan.cores, plan.device)
        track = Track(name, tell)
        for contender in contenders:
            tell(f"{name}: {contender.name} prepares and warms up")
            track.enter(contender, stack, job, workload)
        for round in range(plan.rounds):
            track.lap(round, plan.rounds)
        return [track.outcome(contender.name) for contender in contenders]


@dataclass(frozen=True)
class Track:
    """Who is running, and what was measured so far."""

    name: str
    tell: Callable[[str], None]
    running: dict[str, Runner] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)  # the warming up first
    used: dict[str, float | None] = field(default_factory=dict)  # seconds of CPU before the first timed round
    reasons: dict[str, str] = field(default_factory=dict)

    def enter(self, contender: Contender, stack: ExitStack, job: Job, workload: Workload) -> None:
        """Starts a contender, which ends with the stack."""
        with self.excused(contender.name):
            if not workload.is_common and contender.driver not in ("kinfed", "plain"):
                raise Absent("its driver knows one epoch of plain SGD on 28x28 pixels alone (workloads mlp and cnn)")
            self.warm_up(contender.name, stack.enter_context(started(contender, job, Path(job.folder))))

    def warm_up(self, name: str, runner: Runner) -> None:
        """Lets a contender run its first round."""
        self.running[name] = runner
        self.times[name] = [runner.turn()]
        self.used[name] = runner.cpu()

    def lap(self, round: int, rounds: int) -> None:
        """One round of everybody; who begins changes from round to round."""
        names = list(self.running)
        for i in range(len(names)):
            name = names[(round + i) % len(names)]
            with self.excused(name):
                self.times[name].append(self.running[name].turn())
        took = ", ".join(f"{name} {self.times[name][-1]:.2f} s" for name in self.running)
        self.tell(f"{self.name}: round {round + 1}/{rounds}: {took}")

    @contextmanager
    def excused(self, name: str) -> Iterator[None]:
        """Inside it a contender may fall, which is noted."""
        try:
            yield
        except Absent as reason:
            self.running.pop(name, None)
            self.reasons[name] = str(reason)
            self.tell(f"{self.name}: {name} is left out: {reason}")

    def outcome(self, name: str) -> Outcome:
        """What came of a contender."""
        if name in self.reasons:
            return Outcome(self.name, name, why=self.reasons[name])
        runner, (first, *rest) = self.running[name], self.times[name]
        before, after = self.used[name], runner.cpu()
        cpu = None if before is None or after is None else (after - before) / len(rest)
        copied = runner.facts.get("copied_a_second")
        return Outcome(self.name, name, first, tuple(rest), cpu, runner.peak(), copied)
