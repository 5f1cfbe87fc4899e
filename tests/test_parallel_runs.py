"""Processes that take runs."""

import os
import sys
from pathlib import Path

import pytest

from kinfed.runs.parallel import THREADS, Setup, start_workers


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_starts_with_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(THREADS, raising=False)
    with start_workers(1, Setup(os.getcwd(), 3)) as (worker,):
        given = Path(f"/proc/{worker.process.pid}/environ").read_bytes().split(b"\0")
    assert f"{THREADS}=3".encode() in given and THREADS not in os.environ
