"""How a cohort is worked on: by threads, of which a log says how far they are, and by the plan that is fastest.

Which plan that is (blocks or client by client, how many at once) is autotuned.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Lock
from typing import NamedTuple, TypeVar

import torch

from kinfed.data.population import Population, Role
from kinfed.engines.resident import Resident
from kinfed.errors import cancel_on, raise_if_cancelled

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_at_once(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """What `work` makes of each item, in their order; items are begun in their order by the next free worker.

    No result depends on the number of workers: each item meets one thread of torch, whatever that number is.
    """
    with use_one_thread():
        if workers == 1 or len(items) == 1:
            return [work(item) for item in items]
        return _spread(work, items, workers)


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Inside it this thread's torch operations use one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _spread(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    cancelled = Event()

    def one(item: Item) -> Result:
        with cancel_on(cancelled):
            raise_if_cancelled()
            return work(item)

    with ThreadPoolExecutor(workers, "kinfed", lambda: torch.set_num_threads(1)) as pool:
        futures = [pool.submit(one, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:  # Ctrl-C, or another item's error: do not wait until all have come to their end
            cancelled.set()
            raise


LOG = logging.getLogger("kinfed.engines")
SECONDS = 10.0  # until the first line; from one to the next twice as many as before
MOST = 60.0


class ProgressLog:
    """Logs how many clients of a cohort have answered; nothing where that takes less than ten seconds."""

    def __init__(self, task: str, clients: int) -> None:
        self.task, self.clients = task, clients
        self.answered, self.logged, self.pause, self.lock = 0, time.monotonic(), SECONDS, Lock()

    def wrap(self, work: Callable[[Item], Result], clients: Callable[[Item], int]) -> Callable[[Item], Result]:
        """The same work; after each item so many more clients have answered. Workers may share it."""

        def log(item: Item) -> Result:
            result = work(item)
            with self.lock:
                self.update(self.answered + clients(item))
            return result

        return log

    def update(self, answered: int) -> None:
        """So many have answered by now."""
        self.answered, now = answered, time.monotonic()
        if answered < self.clients and now - self.logged >= self.pause:
            self.logged, self.pause = now, min(2 * self.pause, MOST)
            LOG.info("%s: %d of %d clients", self.task, answered, self.clients)


CLEARLY = 1.5  # times as fast as the first plan
SAMPLES = 32  # of a client, for training and for tests
SLOW = 0.25  # seconds of the processor for a call; a task that takes less is not tuned
LAPS = 2


class ExecutionPlan(NamedTuple):
    """How a cohort is worked on."""

    workers: int  # blocks, or clients, at once; with more than one each has one thread of torch
    sequential: bool = False  # one client at a time, instead of a block of them in the same operations

    def __str__(self) -> str:
        cut = "one client at a time" if self.sequential else "clients in blocks"
        return (
            f"{cut}, {self.workers} {'clients' if self.sequential else 'blocks'} at once" if self.workers > 1 else cut
        )


def candidate_plans(cores: int, fast_path: bool) -> tuple[ExecutionPlan, ...]:
    """The plans that are worth timing on so many cores; the fast path is slower one client at a time."""
    alone = () if fast_path else (ExecutionPlan(cores, sequential=True),)
    return tuple(dict.fromkeys((ExecutionPlan(cores), ExecutionPlan(1), *alone)))


def subset(fed: Resident, clients: list[int]) -> Population:
    """These clients with a few of their samples."""
    train, test = ([part[i][:SAMPLES] for i in clients] for part in (fed.train, fed.test))
    roles = tuple(Role(holdout=fed.roles[i].holdout, labelled=fed.roles[i].labelled) for i in clients)
    return Population(fed.x, fed.y, tuple(train), tuple(test), fed.population.classes, roles=roles)


def time_plans(
    runs: Mapping[ExecutionPlan, Callable[[], object]],
) -> tuple[ExecutionPlan, dict[ExecutionPlan, float]]:
    """The plan to follow, and the seconds of each; the plans take turns, and the best lap of each counts.

    Where none has several workers, these are seconds of the processor, which others on the machine do not lengthen.
    """
    clock = time.perf_counter if any(plan.workers > 1 for plan in runs) else time.process_time
    seconds = dict.fromkeys(runs, float("inf"))
    for lap in range(LAPS + 1):
        for plan, run in runs.items():
            began = clock()
            run()
            if lap:  # the first warms up
                seconds[plan] = min(seconds[plan], clock() - began)
    first = next(iter(runs))
    return min(runs, key=lambda plan: seconds[plan] * (1.0 if plan == first else CLEARLY)), seconds


def cores() -> int:
    """How many cores torch may use."""
    return torch.get_num_threads()
