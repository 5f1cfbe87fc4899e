"""One process at a time writes a run."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinfed.errors import ConfigError

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Inside it nobody else writes this folder; raises if somebody is at it. A killed process holds nothing."""
    if sys.platform == "win32":  # which has no such locks
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        flock(handle, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"another process is at work on the run at {folder}: let it end, stop it, or choose another folder"
        ) from None
    except OSError:  # not all network drives have locks
        return
