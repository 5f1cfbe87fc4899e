"""Processes for runs. They load what they need by themselves, so they can start before this process has loaded it.

They are spawned: CUDA does not survive a fork.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

THREADS = "OMP_NUM_THREADS"  # read when torch is loaded: products may ignore torch.set_num_threads later
PATIENCE = 5.0  # seconds that a process has to end
RUNS = "kinfed.runs.parallel"  # what a process for runs loads


@dataclass(frozen=True)
class Spawned:
    """A process that waits for something to do, and the lines to it."""

    process: SpawnProcess
    line: Connection
    threads: int  # of torch
    further: tuple[Connection, ...] = ()  # lines, where it does several things at once

    @property
    def lines(self) -> tuple[Connection, ...]:
        """All lines to it."""
        return self.line, *self.further

    def give(self, work: Callable[..., None], settings: object) -> None:
        """Lets it do this, with the settings and the lines to here."""
        with suppress(OSError):  # it has died, which whoever waits for it sees
            self.line.send((work, settings))


def start_early(jobs: int) -> AbstractContextManager[list[Spawned]]:
    """Processes for so many runs at once, none for one; as many as there are cores at most."""
    cores = count_cores()
    return start_processes(min(jobs, cores) if jobs > 1 else 0, max(1, cores // max(1, jobs)))


def count_cores() -> int:
    """As many threads as torch will have: those that are set, or one for each core that this process may use."""
    wanted = os.environ.get(THREADS, "")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else usable


@contextmanager
def start_processes(count: int, threads: int, module: str = RUNS, lines: int = 1) -> Iterator[list[Spawned]]:
    """So many processes, each with so many lines; all end with the context, busy ones as if by Ctrl-C."""
    started: list[Spawned] = []
    try:
        with ignore_interrupts():
            started += (start_process(threads, module, lines) for _ in range(count))
        yield list(started)
    finally:
        end_processes(started)


def end_processes(started: Sequence[Spawned]) -> None:
    """Ends these processes, if they are still there."""
    with ignore_interrupts():  # to a second Ctrl-C: all that it could ask for is under way
        for each in started:
            each.process.terminate()
        end = time.monotonic() + PATIENCE
        for each in started:
            each.process.join(max(0.0, end - time.monotonic()))
            each.process.kill()  # if it is still there
            each.process.join()
            for line in each.lines:
                line.close()


def start_process(threads: int, module: str, lines: int) -> Spawned:
    """A new process, which loads the module and waits."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = zip(*(spawn.Pipe() for _ in range(lines)), strict=True)
    process = spawn.Process(target=serve, args=(module, *theirs), daemon=True)
    with set_variable(THREADS, str(threads)):
        process.start()
    for line in theirs:
        line.close()  # else its end would go unnoticed
    return Spawned(process, ours[0], threads, ours[1:])


def serve(module: str, *lines: Connection) -> None:
    """What a process does: it loads the module, and does the one thing that it is given."""
    threading.Thread(target=leave_with_parent, daemon=True).start()
    import_module(module)
    given = receive_from(lines[0])
    if isinstance(given, tuple):
        work, settings = given
        work(settings, *lines)


def leave_with_parent() -> None:
    """Ends this process when its parent is gone, however that came: the next command may take up the same run."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def receive_from(line: Connection) -> object:
    """What comes next, or None if the other end is closed."""
    try:
        return line.recv()
    except (EOFError, OSError):
        return None


@contextmanager
def set_variable(name: str, value: str) -> Iterator[None]:
    """Inside it an environment variable has this value, also for processes that are started there."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Inside it Ctrl-C has no effect, nor ever on processes started there: their parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
