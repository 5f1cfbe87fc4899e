"""Threads that run a cohort's blocks, and a log of how far they are."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Lock
from typing import TypeVar

import torch

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
