"""One process at a time: file locks, which a killed process gives back."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from kinfed.errors import ConfigError


@contextmanager
def lock(path: Path, busy: str = "") -> Iterator[None]:
    """Holds a lock file: waits for others, or raises ConfigError with the message `busy`.

    Where the file system has no locks, as some network drives have none, it holds nothing.
    """
    file = FileLock(path, timeout=0 if busy else -1)
    try:
        with suppress(OSError, NotImplementedError):
            take(file, busy)
        yield
    finally:
        file.release()


def take(file: FileLock, busy: str) -> None:
    """Takes the lock; raises ConfigError if another process has it."""
    try:
        file.acquire()
    except Timeout:
        raise ConfigError(busy) from None
