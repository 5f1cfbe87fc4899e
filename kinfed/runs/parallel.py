"""Parallel runs: processes that live as long as there are runs, and take the next one as soon as they are free.

So each pays once for its imports, for the start of the GPU, and for clients that its next run has too.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from kinfed.engines import choose_device
from kinfed.errors import ConfigError, KinfedError
from kinfed.processes import Spawned, end_processes, receive_from, start_processes
from kinfed.progress import Display
from kinfed.runs.jobs import Ended, Job, Runner, Setup, group_by_training, has_lost_gpu, run_to_end, work

MOST_DEATHS = 2  # of as many processes as there are, while no run ends: then something is wrong with all of them


@dataclass(frozen=True)
class AtOnce:
    """How many runs go on at once."""

    processes: int = 1
    together: int = 1  # in each process on a GPU, where they train together

    @classmethod
    def parse(cls, jobs: "int | str | AtOnce") -> "AtOnce":
        """8, or "4x8" for four processes with eight runs each; raises on anything else, and on none."""
        if isinstance(jobs, cls):
            return jobs
        words = str(jobs).lower().split("x")
        if len(words) > 2 or not all(word.isdecimal() and int(word) for word in words):
            raise ConfigError(
                f"--jobs: wanted how many runs at once, at least 1, got {jobs}; 4x8: four processes, eight runs in each"
            )
        return cls(*map(int, words))

    @property
    def runs(self) -> int:
        """In all."""
        return self.processes * self.together

    def for_runs(self, count: int, device: str) -> "AtOnce":
        """As many as so many runs need there: only on one GPU can they train together."""
        together = self.together if device.startswith("cuda") and "," not in device else 1
        processes = min(self.processes, -(-count // together))
        return AtOnce(processes, min(together, -(-count // max(1, processes))))


def ignore(job: Job) -> None:
    """Notes nothing of a run that has ended."""


def run_jobs(
    jobs: Sequence[Job],
    at_once: AtOnce,
    display: Display,
    threads: int = 0,
    note: Callable[[Job], None] = ignore,
) -> dict[Path, str]:
    """Takes all runs to their end, so many at once, and notes each; gives back why runs failed, by their folders."""
    with Workers(at_once, threads) as workers:
        return workers.run(jobs, display, note)


def run_in_turn(jobs: Sequence[Job], display: Display, note: Callable[[Job], None]) -> dict[Path, str]:
    """Takes all runs to their end in this process, one after the other; gives back why runs failed."""
    runner, failed = Runner(), {}
    with display.live():
        for number, job in enumerate(jobs, 1):
            display.say(f"run {number} of {len(jobs)}: {job.said}")
            if why := run_to_end(runner, job, display).failed:
                failed[job.path] = why
                display.say(f"failed: {why}")
                if has_lost_gpu():
                    raise KinfedError(f"this process cannot use the GPU any more; run the command again: {why}")
            else:
                note(job)
    return failed


@contextmanager
def limit_threads(wanted: bool) -> Iterator[None]:
    """Inside it torch has one thread, if that is wanted: for small work several only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Worker:
    """A process that runs, and a line to it: jobs go there, what is said and how they ended comes back."""

    process: SpawnProcess
    line: Connection

    def take(self, job: Job) -> None:
        """Hands it a job."""
        with suppress(OSError):  # it has died, which `receive` reports
            self.line.send(job)

    def receive(self) -> str | Ended:
        """What it says next, or how its run ended."""
        message = receive_from(self.line)
        if isinstance(message, str | Ended):
            return message
        self.process.join()
        code = self.process.exitcode
        hint = ", mostly for want of memory: try fewer --jobs" if code == -9 else ""
        return Ended(failed=f"its process died with exit code {code}{hint}", died=True, crowded=code == -9)


@dataclass
class Pool:
    """Which worker has which run, and the runs that have not begun yet."""

    todo: deque[tuple[int, Job]]
    free: list[Worker]
    start: Callable[[], Worker]  # another process
    busy: dict[Worker, tuple[int, Job]] = field(default_factory=dict)
    shared: set[int] = field(default_factory=set)  # runs beside which others were
    tried: set[int] = field(default_factory=set)  # runs whose process died
    deaths: int = 0  # of processes, since a run ended
    processes: int = 0  # at the beginning

    def __post_init__(self) -> None:
        self.processes = len(self.free)

    def begin(self) -> tuple[int, Job]:
        """Gives the next run to a free worker."""
        worker, (number, job) = self.free.pop(), self.todo.popleft()
        self.busy[worker] = number, job
        self.shared |= {each for each, _ in self.busy.values()} if len(self.busy) > 1 else set()
        worker.take(job)
        return number, job

    def end(self, worker: Worker, how: Ended) -> str:
        """Notes how a run ended; or that it goes on later, and gives back why.

        Where others took its room it waits, and they are one fewer. Where its process died it is tried once more.
        """
        number, job = self.busy.pop(worker)
        if how.died:
            return self.replace_worker(number, job, how)
        self.deaths = 0
        if not how.crowded or number not in self.shared:
            self.free.append(worker)
            return ""
        self.shared.remove(number)
        self.todo.appendleft((number, job))
        if self.busy or self.free:
            worker.line.close()  # it leaves, and what it has of the GPU's memory is free
        else:
            self.free.append(worker)
        return "no room for it beside others, it goes on later"

    def replace_worker(self, number: int, job: Job, how: Ended) -> str:
        """Starts a process in place of one that died, unless memory is short; its run is tried once more, at last."""
        self.deaths += 1
        others = self.busy or self.free
        if self.deaths < MOST_DEATHS * self.processes and not (how.crowded and others):
            self.free.append(self.start())
        if number in self.tried:
            return ""
        self.tried.add(number)
        self.todo.append((number, job))
        return f"{how.failed}; it is tried once more"


@dataclass
class Workers:
    """Processes that runs are given to, so many at once; they stay until the context ends, and serve later runs too."""

    at_once: AtOnce
    threads: int = 0  # of torch in each; 0: its share of this process's
    early: list[Spawned] = field(default_factory=list)  # processes that have started already
    free: list[Worker] = field(default_factory=list)
    setup: Setup | None = None  # theirs
    started: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Starts the processes that these runs need: they load what all runs need while this one goes on."""
        if self.serves(jobs):
            self.free = self.take(len(jobs), find_device(jobs))
        else:
            self.dismiss_early()

    def run(self, jobs: Sequence[Job], display: Display, note: Callable[[Job], None] = ignore) -> dict[Path, str]:
        """Takes all runs to their end and notes each; gives back why runs failed, by their folders."""
        if self.serves(jobs):
            self.prepare(jobs)
            jobs = group_by_training(jobs) if self.setup and self.setup.together > 1 else jobs
            return run_parallel(Pool(deque(enumerate(jobs, 1)), self.free, self.start_another), display, note)
        with limit_threads(self.threads == 1):
            return run_in_turn(jobs, display, note)

    def serves(self, jobs: Sequence[Job]) -> bool:
        """Whether these runs go to processes: several at once, or one whose GPU a process has started already."""
        count = min(self.at_once.runs, len(jobs))
        return count > 1 or (count == 1 and bool(self.free) and find_device(jobs) != "cpu")

    def take(self, runs: int, device: str) -> list[Worker]:
        """Workers for so many runs: those that are there if they have the right threads and device, else new ones."""
        count, together = (wanted := self.at_once.for_runs(runs, device)).processes, wanted.together
        share = count if device == "cpu" else self.at_once.processes  # on a GPU, cores are no reason for other ones
        threads = self.threads or max(1, torch.get_num_threads() // share)
        setup = Setup(os.getcwd(), threads, device, count, together)
        if setup != self.setup:
            self.close()
            self.setup = setup
        missing = -(-max(0, wanted.runs - len(self.free)) // together)
        early = self.employ_early(missing, setup)
        return [*self.free, *early, *self.started.enter_context(start_workers(missing - len(early), setup))]

    def start_another(self) -> Worker:
        """A worker like the others, but by itself: what killed one of several may kill them again.

        Each of these may get one: as many share the GPU then.
        """
        assert self.setup
        alone = replace(self.setup, together=1, processes=self.setup.processes * self.setup.together)
        (worker,) = self.started.enter_context(start_workers(1, alone))
        return worker

    def employ_early(self, count: int, setup: Setup) -> list[Worker]:
        """So many of the processes that have started already, if they have the right threads; the others leave."""
        fits = setup.device != "cpu", setup.together == 1  # they have one line each
        fitting = [each for each in self.early if fits[1] and (fits[0] or each.threads == setup.threads)][:count]
        self.early = [each for each in self.early if each not in fitting]
        self.dismiss_early()
        self.started.callback(end_processes, fitting)
        return [worker for each in fitting for worker in employ(each, setup)]

    def dismiss_early(self) -> None:
        """Lets the processes leave that have started already, and have nothing to do."""
        for each in self.early:
            each.line.close()
        self.early = []

    def close(self) -> None:
        """Ends all of them."""
        self.started.close()
        self.free = []


def find_device(jobs: Sequence[Job]) -> str:
    """The device of these runs, or devices with commas between: those of the first that uses a GPU."""
    devices = (choose_device(job.config.engine.device) for job in jobs)
    return next((device for device in devices if "cuda" in device), "cpu")


def run_parallel(pool: Pool, display: Display, note: Callable[[Job], None] = ignore) -> dict[Path, str]:
    """Takes all runs of a pool to their end, or as many at once as the GPU has room for; gives back why runs failed."""
    began, count = time.monotonic(), len(pool.todo)
    failed: dict[Path, str] = {}
    last = ""
    while pool.busy or (pool.todo and pool.free):
        while pool.todo and pool.free:
            number, job = pool.begin()
            display.say(f"run {number} of {count}: {job.said}")
        ready = wait([worker.line for worker in pool.busy])
        for worker in [worker for worker in pool.busy if worker.line in ready]:
            number, job = pool.busy[worker]
            message = worker.receive()
            if isinstance(message, str):
                display.say(f"run {number}: {message}")
                continue
            if why := pool.end(worker, message):
                display.say(f"run {number}: {why}")
                last = message.failed
                continue
            failed |= {job.path: message.failed} if message.failed else {}
            left = outlook(count, len(pool.todo) + len(pool.busy), time.monotonic() - began)
            display.say(f"run {number}: {message}{left}")
            if not message.failed:
                note(job)
    if pool.todo:
        raise KinfedError(f"all processes died, {len(pool.todo)} runs are left: {last}")
    return failed


def outlook(count: int, left: int, seconds: float) -> str:
    """How many runs are left, and for how long, if the others go as those went that have ended."""
    more = seconds * left / (count - left)
    about = f"{more:.0f} s" if more < 100 else f"{more / 60:.0f} min"
    return f"; {left} of {count} left, about {about}" if left else ""


@contextmanager
def start_workers(count: int, setup: Setup) -> Iterator[list[Worker]]:
    """The workers of so many processes; all end with the context, busy ones as if by Ctrl-C."""
    with start_processes(count, setup.threads, lines=setup.together) as started:
        yield [worker for each in started for worker in employ(each, setup)]


def employ(spawned: Spawned, setup: Setup) -> list[Worker]:
    """A process that has started becomes a worker, or several that train together."""
    spawned.give(work, setup)
    return [Worker(spawned.process, line) for line in spawned.lines]
