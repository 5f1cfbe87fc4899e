"""Work that can be given up: a worker asks, at every batch of rows, whether anybody still waits for its result.

Nothing is stopped from outside: an exception thrown into another thread can hit it in the middle of torch, or hit a
thread that it has just started, and then nobody ever ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, local

_work = local()


class Cancelled(BaseException):
    """Raised inside a worker whose result nobody waits for any more."""


@contextmanager
def cancel_on(over: Event) -> Iterator[None]:
    """Inside it, what this thread works on ends at its next batch once `over` is set."""
    _work.over = over
    try:
        yield
    finally:
        _work.over = None


def raise_if_cancelled() -> None:
    """Raises Cancelled where nobody waits any more; tasks pass here with every batch."""
    over: Event | None = getattr(_work, "over", None)
    if over is not None and over.is_set():
        raise Cancelled
