"""One process at a time: locks on files and folders, which a killed process gives back."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kinfed.errors import ConfigError

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock


@contextmanager
def locked(path: Path, busy: str = "") -> Iterator[None]:
    """Inside it this process is the only one there; it waits for others, or raises what `busy` says.

    Where the system has no locks, as some network drives have none, it sees to nothing.
    """
    if sys.platform == "win32":
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            _take(handle, busy)
        yield
    finally:
        os.close(handle)


def _take(handle: int, busy: str) -> None:
    try:
        flock(handle, LOCK_EX | LOCK_NB if busy else LOCK_EX)
    except BlockingIOError:
        raise ConfigError(busy) from None
