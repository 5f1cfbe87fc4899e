"""How far a cohort is with a task, said while that takes long."""

import logging
import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

LOG = logging.getLogger("kinfed.engines")
SECONDS = 10.0  # until the first word; from one to the next twice as many as before
MOST = 60.0


class ProgressLog:
    """Says now and then how many clients of a cohort have answered; nothing of what takes less than ten seconds."""

    def __init__(self, task: str, clients: int) -> None:
        self.task, self.clients = task, clients
        self.answered, self.said, self.pause, self.lock = 0, time.monotonic(), SECONDS, Lock()

    def after(self, work: Callable[[Item], Result], clients: Callable[[Item], int]) -> Callable[[Item], Result]:
        """The same work, after each item of which so many more clients have answered; workers may share it."""

        def told(item: Item) -> Result:
            result = work(item)
            with self.lock:
                self.reached(self.answered + clients(item))
            return result

        return told

    def reached(self, answered: int) -> None:
        """Takes note that so many have answered."""
        self.answered, now = answered, time.monotonic()
        if answered < self.clients and now - self.said >= self.pause:
            self.said, self.pause = now, min(2 * self.pause, MOST)
            LOG.info("%s: %d of %d clients", self.task, answered, self.clients)
