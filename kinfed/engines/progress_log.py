"""A progress log: how many clients of a cohort have answered, while a task takes long."""

import logging
import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

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
