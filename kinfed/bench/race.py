"""The race: contenders take turns, round by round, so that what disturbs the machine disturbs all of them alike."""

import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kinfed.bench.contenders import CONTENDERS, Absent, Contender, Runner, make_scratch, start
from kinfed.bench.drivers import Job
from kinfed.bench.workloads import WORKLOADS, Workload
from kinfed.errors import ConfigError
from kinfed.progress import Display
from kinfed.registry import look_up
from kinfed.runs.logs import write_text

YARDSTICK = "plain"
HEADER = (
    "workload",
    "contender",
    "s a round",
    "least",
    "most",
    "ms a step",
    "× plain",
    "CPU s",
    "peak MB",
    "of bandwidth",
)


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
        own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.threads or own


@dataclass(frozen=True)
class Timing:
    """One contender on one workload; `reason` is empty if it took part."""

    workload: str
    contender: str
    first: float = 0.0  # seconds of the round before the timed ones
    rounds: tuple[float, ...] = ()  # seconds of each
    cpu: float | None = None  # seconds of CPU for one round, on average
    peak: int | None = None  # bytes
    copy_bandwidth: float | None = None  # bytes a second that a copy on its GPU reads and writes
    reason: str = ""

    @property
    def median(self) -> float:
        """Seconds of a usual round."""
        return statistics.median(self.rounds)

    def speed(self, yardstick: "Timing") -> float:
        """How many times as fast as the yardstick: the median over the rounds, each against its neighbour."""
        return statistics.median(b / a for a, b in zip(self.rounds, yardstick.rounds, strict=True))

    def bandwidth_share(self, workload: Workload) -> float | None:
        """The share of its GPU's measured memory bandwidth that the bytes a round must move make."""
        return workload.least_bytes / self.median / self.copy_bandwidth if self.copy_bandwidth else None


def race(
    workloads: Sequence[str], contenders: Sequence[Contender], plan: Plan, say: Callable[[str], None]
) -> list[Timing]:
    """The timings of all contenders on each workload; one that cannot take part has the reason in its own."""
    if not workloads or not contenders:
        raise ConfigError("bench: wanted at least one workload and one contender, got none")
    chosen = {name: look_up(name, WORKLOADS, "workload").scale(plan.scale) for name in workloads}
    return [t for name, workload in chosen.items() for t in race_on(name, workload, contenders, plan, say)]


def race_on(
    name: str, workload: Workload, contenders: Sequence[Contender], plan: Plan, say: Callable[[str], None]
) -> list[Timing]:
    """The timings of all contenders on one workload."""
    with make_scratch() as folder, ExitStack() as stack:
        job = workload.make_job(Path(folder), plan.cores, plan.device)
        heat = Heat(name, say)
        for contender in contenders:
            say(f"{name}: {contender.name} prepares and warms up")
            heat.enter(contender, stack, job, workload)
        for round in range(plan.rounds):
            heat.run_round(round, plan.rounds)
        return [heat.timing(contender.name) for contender in contenders]


@dataclass(frozen=True)
class Heat:
    """The contenders that run on one workload, and what was measured so far."""

    name: str
    say: Callable[[str], None]
    running: dict[str, Runner] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)  # the first is the round that warms up
    used: dict[str, float | None] = field(default_factory=dict)  # seconds of CPU before the first timed round
    reasons: dict[str, str] = field(default_factory=dict)

    def enter(self, contender: Contender, stack: ExitStack, job: Job, workload: Workload) -> None:
        """Starts a contender, which ends with the stack."""
        with self.note_absence(contender.name):
            if contender.is_peer and not workload.is_common:
                raise Absent("not supported by its driver: one epoch of plain SGD on 28x28 pixels (mlp and cnn) is")
            self.warm_up(contender.name, stack.enter_context(start(contender, job, Path(job.folder))))

    def warm_up(self, name: str, runner: Runner) -> None:
        """Lets a contender run its first round."""
        self.running[name] = runner
        self.times[name] = [runner.turn()]
        self.used[name] = runner.cpu()

    def run_round(self, round: int, rounds: int) -> None:
        """One round of every contender; the first of them changes from round to round."""
        names = list(self.running)
        for i in range(len(names)):
            name = names[(round + i) % len(names)]
            with self.note_absence(name):
                self.times[name].append(self.running[name].turn())
        took = ", ".join(f"{name} {self.times[name][-1]:.2f} s" for name in self.running)
        self.say(f"{self.name}: round {round + 1}/{rounds}: {took}")

    @contextmanager
    def note_absence(self, name: str) -> Iterator[None]:
        """Inside it a contender may fail, which is noted."""
        try:
            yield
        except Absent as reason:
            self.running.pop(name, None)
            self.reasons[name] = str(reason)
            self.say(f"{self.name}: {name} is left out: {reason}")

    def timing(self, name: str) -> Timing:
        """What was measured of a contender."""
        if name in self.reasons:
            return Timing(self.name, name, reason=self.reasons[name])
        runner, (first, *rest) = self.running[name], self.times[name]
        before, after = self.used[name], runner.cpu()
        cpu = None if before is None or after is None else (after - before) / len(rest)
        bandwidth = runner.facts.get("copy_bandwidth")
        return Timing(self.name, name, first, tuple(rest), cpu, runner.peak(), bandwidth)


def make_table(timings: Sequence[Timing], plan: Plan) -> list[tuple[str, ...]]:
    """A header and one row for each contender that took part, the fastest of a workload first."""
    order = list(dict.fromkeys(timing.workload for timing in timings))
    took_part = sorted((t for t in timings if not t.reason), key=lambda t: (order.index(t.workload), t.median))
    return [HEADER, *(make_row(timing, timings, plan) for timing in took_part)]


def make_row(timing: Timing, timings: Sequence[Timing], plan: Plan) -> tuple[str, ...]:
    """One contender as cells."""
    speed = speed_of(timing, timings)
    workload = WORKLOADS[timing.workload].scale(plan.scale)
    share = timing.bandwidth_share(workload)
    return (
        timing.workload, timing.contender, f"{timing.median:.3f}", f"{min(timing.rounds):.3f}",
        f"{max(timing.rounds):.3f}", f"{1000 * timing.median / workload.steps_each:.3g}",
        "–" if speed is None else f"{speed:.2f}",
        "–" if timing.cpu is None else f"{timing.cpu:.3f}",
        "–" if timing.peak is None else f"{timing.peak / 2**20:.0f}", "–" if share is None else f"{share:.0%}",
    )  # fmt: skip


def speed_of(timing: Timing, timings: Sequence[Timing]) -> float | None:
    """How many times as fast as the plain loop on the same workload; None if that did not take part."""
    for other in timings:
        if (other.workload, other.contender) == (timing.workload, YARDSTICK) and other.rounds:
            return timing.speed(other)
    return None


def explain_absences(timings: Sequence[Timing]) -> list[str]:
    """One line for each contender that did not take part."""
    about = {name: contender.about for name, contender in CONTENDERS.items()}
    return [
        f"{t.workload}: {t.contender} ({about.get(t.contender, Contender.about)}) did not take part: {t.reason}"
        for t in timings
        if t.reason
    ]


def as_json(timings: Sequence[Timing], plan: Plan) -> dict[str, object]:
    """Everything that was measured, and how."""
    return {
        "plan": asdict(plan) | {"threads": plan.cores},
        "workloads": {t.workload: asdict(WORKLOADS[t.workload].scale(plan.scale)) for t in timings},
        "timings": [
            asdict(t) | {"speed": speed_of(t, timings) if t.rounds else None, "median": t.median if t.rounds else None}
            for t in timings
        ],
    }


def run_bench(
    workloads: Sequence[str],
    contenders: Sequence[Contender],
    plan: Plan,
    display: Display,
    json_file: Path | None = None,
) -> list[Timing]:
    """Races the contenders on each workload, shows the table, and writes what was measured as JSON if wanted."""
    timings = race(workloads, contenders, plan, display.say)
    for line in explain_absences(timings):
        display.say(line)
    display.table(make_table(timings, plan))
    if json_file:
        write_text(json_file, json.dumps(as_json(timings, plan), indent=1) + "\n")
    return timings
