"""Workers on the CPU's cores, each with one thread of torch.

Threads are enough: torch lets go of Python's lock inside its operations. They end with the call, however it ends.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

import torch

from kinfed.cancellation import cancel_on, raise_if_cancelled

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
