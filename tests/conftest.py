"""One thread: tests compare numbers to the bit, and two cores run two test processes. And no trace in the cache."""

import atexit
import os
import shutil
import tempfile

import pytest
import torch

torch.set_num_threads(1)

CACHE = tempfile.mkdtemp(prefix="kinfed-tests-")
os.environ["XDG_CACHE_HOME"] = CACHE
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other make all later tests of a process ten times as dear."""
    yield
    assert torch.get_num_threads() == 1, "this test, or a library that it uses, gave torch more threads"
