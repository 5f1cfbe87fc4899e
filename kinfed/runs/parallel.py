"""Parallel runs: processes that live as long as there are runs, and take the next one as soon as they are free.

So each pays once for its imports, for the start of the GPU, and for clients that its next run has too.
"""

import gc
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from kinfed.config import POPULATION, Config, make_population, to_toml
from kinfed.data import Population
from kinfed.engines import choose_device
from kinfed.errors import CheckpointError, ConfigError, KinfedError, OutOfMemory
from kinfed.gpu_memory import share_with
from kinfed.processes import Spawned, end_processes, receive_from, start_processes
from kinfed.progress import Display, Silence
from kinfed.runs.lifecycle import Given, Place, resume, start
from kinfed.runs.logs import CHECKPOINT, CONFIG

TORCH = str(Path(torch.__file__).parent)
MOST_DEATHS = 2  # of as many processes as there are, while no run ends: then something is wrong with all of them


@dataclass(frozen=True)
class Job:
    """One run that is wanted."""

    config: Config
    said: str  # which one, in words
    path: Path  # of its folder
    is_fresh: bool = False  # what is in the folder is replaced, else taken up
    keeps_checkpoint: bool = True

    @property
    def clients(self) -> str:
        """All that its clients depend on: jobs that share it have the same ones."""
        whole = self.config.resolve()
        return to_toml({key: whole[key] for key in ("seed", *POPULATION) if key in whole})


@dataclass
class Runner:
    """Runs jobs one after the other; it keeps the clients of the last one: the next job mostly has the same."""

    last: tuple[str, Population] | None = None

    def clients(self, job: Job) -> Population:
        """The clients of a job."""
        if self.last is None or self.last[0] != job.clients:
            self.last = None  # two populations at once may be too many
            self.last = (job.clients, make_population(job.config))
        return self.last[1]

    def run(self, job: Job, display: Display) -> Exception | None:
        """Takes a run to its end, from where it is; gives back why it failed, if it did."""
        try:
            if job.is_fresh or not self.resume(job, display):
                start(job.config, Place(job.path, force=True), display, Given(self.clients(job)))
            if not job.keeps_checkpoint:
                (job.path / CHECKPOINT).unlink(missing_ok=True)
        except Exception as error:  # code of the user's own may raise anything, and other runs go on
            return error
        return None

    def resume(self, job: Job, display: Display) -> bool:
        """Whether a run that was stopped could be taken to its end."""
        if not (job.path / CONFIG).exists():
            return False
        try:
            resume(job.config, job.path, display, Given(self.clients(job)))
        except CheckpointError as error:  # it was damaged, or another version of kinfed wrote it
            display.say(f"begins again: {error}")
            return False
        return True


@dataclass(frozen=True)
class Ended:
    """What became of a run."""

    seconds: float = 0.0
    failed: str = ""  # why
    died: bool = False  # the process, too, or it cannot use the GPU any more
    crowded: bool = False  # there was no room for it

    def __str__(self) -> str:
        return f"failed: {self.failed}" if self.failed else f"ended, {self.seconds:.0f} s"


def check_jobs(at_once: int) -> None:
    """Raises unless at least one run is to go on at once."""
    if at_once < 1:
        raise ConfigError(f"--jobs: wanted how many runs at once, at least 1, got {at_once}")


def group_by_clients(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs, those on the same clients one after the other."""
    clients = [job.clients for job in jobs]
    order = {key: place for place, key in enumerate(dict.fromkeys(clients))}
    return [job for _, job in sorted(zip(clients, jobs, strict=True), key=lambda pair: order[pair[0]])]


def run_to_end(runner: Runner, job: Job, display: Display) -> Ended:
    """How a run ended; its error, whose frames hold what the run had in memory, is gone then."""
    began = time.monotonic()
    why = runner.run(job, display)
    failed, is_crowded = explain_failure(why) if why else "", isinstance(why, OutOfMemory)
    del why  # its frames know this one
    return Ended(time.monotonic() - began, failed, crowded=is_crowded)


def run_jobs(jobs: Sequence[Job], at_once: int, display: Display, threads: int = 0) -> dict[Path, str]:
    """Takes all runs to their end, so many at once; gives back why runs failed, by their folders."""
    with Workers(at_once, threads) as workers:
        return workers.run(jobs, display)


def run_in_turn(jobs: Sequence[Job], display: Display) -> dict[Path, str]:
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
    return failed


def explain_failure(error: Exception) -> str:
    """Why a run failed, in a line; of an error that is not kinfed's own, its kind and its place too."""
    said = " ".join(str(error).split())
    if isinstance(error, KinfedError):
        return said
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(TORCH)] or frames
    place = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in own[-1:])
    return f"{type(error).__name__}: {said}{place}"


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
class Setup:
    """What a process has for all of its runs."""

    place: str  # the working folder
    threads: int  # of torch
    device: str = "cpu"  # that it starts before its first run
    processes: int = field(default=1, compare=False)  # that share the device


@dataclass(frozen=True)
class Worker:
    """A process, and the line to it: jobs go there, what is said and how they ended comes back."""

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

    at_once: int
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
            self.free = self.take(min(self.at_once, len(jobs)), find_device(jobs))
        else:
            self.dismiss_early()

    def run(self, jobs: Sequence[Job], display: Display) -> dict[Path, str]:
        """Takes all runs to their end; gives back why runs failed, by their folders."""
        if self.serves(jobs):
            self.prepare(jobs)
            return run_parallel(Pool(deque(enumerate(jobs, 1)), self.free, self.start_another), display)
        with limit_threads(self.threads == 1):
            return run_in_turn(jobs, display)

    def serves(self, jobs: Sequence[Job]) -> bool:
        """Whether these runs go to processes: several at once, or one whose GPU a process has started already."""
        count = min(self.at_once, len(jobs))
        return count > 1 or (count == 1 and bool(self.free) and find_device(jobs) != "cpu")

    def take(self, count: int, device: str) -> list[Worker]:
        """So many workers at least: those that are there if they have the right threads and device, else new ones."""
        share = count if device == "cpu" else self.at_once  # on a GPU, cores are no reason for other processes
        setup = Setup(os.getcwd(), self.threads or max(1, torch.get_num_threads() // share), device, count)
        if setup != self.setup:
            self.close()
            self.setup = setup
        missing = max(0, count - len(self.free))
        early = self.employ_early(missing, setup)
        return [*self.free, *early, *self.started.enter_context(start_workers(missing - len(early), setup))]

    def start_another(self) -> Worker:
        """A worker like the others."""
        assert self.setup
        (worker,) = self.started.enter_context(start_workers(1, self.setup))
        return worker

    def employ_early(self, count: int, setup: Setup) -> list[Worker]:
        """So many of the processes that have started already, if they have the right threads; the others leave."""
        fitting = [each for each in self.early if setup.device != "cpu" or each.threads == setup.threads][:count]
        self.early = [each for each in self.early if each not in fitting]
        self.dismiss_early()
        self.started.callback(end_processes, fitting)
        return [employ(each, setup) for each in fitting]

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


def run_parallel(pool: Pool, display: Display) -> dict[Path, str]:
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
    """So many workers; all end with the context, busy ones as if by Ctrl-C."""
    with start_processes(count, setup.threads) as started:
        yield [employ(each, setup) for each in started]


def employ(spawned: Spawned, setup: Setup) -> Worker:
    """A process that has started becomes a worker."""
    spawned.give(work, setup)
    return Worker(spawned.process, spawned.line)


def work(setup: Setup, line: Connection) -> None:
    """What a process does: one run after the other."""
    os.chdir(setup.place)  # a spawned process begins where its parent began
    torch.set_num_threads(setup.threads)
    share_with(setup.processes)
    start_devices(setup.device)
    runner, display = Runner(), Silence(line.send)
    with suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        while isinstance(job := receive_from(line), Job):
            ended = run_to_end(runner, job, display)
            if has_lost_gpu() and ended.failed:
                line.send(replace(ended, died=True))
                return
            line.send(ended)


def has_lost_gpu() -> bool:
    """Whether an error of the GPU has made it useless for this process; else gives back the memory of the last run."""
    gc.collect()  # what a run leaves may hold CUDA graphs
    try:
        torch.cuda.empty_cache()  # others may need it before this process does
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def start_devices(names: str) -> None:
    """Starts the GPUs for this process, which takes a second or more; where that fails, its first run says why."""
    with suppress(RuntimeError):
        for name in names.split(","):
            torch.zeros(1, device=name)
