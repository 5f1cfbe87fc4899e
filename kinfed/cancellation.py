"""Cooperative cancellation: at every batch a worker asks whether its work was cancelled.

Nothing is interrupted from outside: an exception thrown into another thread can hit it in the middle of torch, or hit a
thread that it has just started, which then never ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, local

_work = local()


class Cancelled(BaseException):
    """Raised inside a worker whose work was cancelled."""


@contextmanager
def cancel_on(event: Event) -> Iterator[None]:
    """Inside it, this thread's work ends at its next batch once the event is set."""
    _work.cancelled = event
    try:
        yield
    finally:
        _work.cancelled = None


def raise_if_cancelled() -> None:
    """Raises Cancelled if this thread's work was cancelled; tasks call it with every batch."""
    event: Event | None = getattr(_work, "cancelled", None)
    if event is not None and event.is_set():
        raise Cancelled
