"""Processes that take runs."""

import os
import sys
import time
from pathlib import Path

import pytest

from kinfed.runs.parallel import THREADS, Setup, start_workers


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_starts_with_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(THREADS, raising=False)
    with start_workers(1, Setup(os.getcwd(), 3)) as (worker,):
        given = read_environment(Path(f"/proc/{worker.process.pid}"))
    assert f"{THREADS}=3".encode() in given and THREADS not in os.environ


def read_environment(process: Path) -> list[bytes]:
    """The environment that a process was started with; before it is, /proc shows this process's own."""
    while b"spawn_main" not in (process / "cmdline").read_bytes():
        time.sleep(0.01)
    return (process / "environ").read_bytes().split(b"\0")
