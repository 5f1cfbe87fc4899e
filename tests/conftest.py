"""One thread: tests compare numbers to the bit, and two cores run two test processes. And no trace in the cache."""

import atexit
import gc
import os
import shutil
import signal
import tempfile

import pytest
import torch

torch.set_num_threads(1)

CACHE = tempfile.mkdtemp(prefix="kinfed-tests-")
os.environ["XDG_CACHE_HOME"] = CACHE
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
ENCODERS = os.environ.setdefault("KINFED_TESTS_ENCODERS", f"{CACHE}/encoders")  # trained once for all test processes
os.makedirs(ENCODERS, exist_ok=True)
os.mkdir(f"{CACHE}/kinfed")
os.symlink(ENCODERS, f"{CACHE}/kinfed/encoders")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a script; tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collects without searching for garbage: what is read for thousands of tests stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other make all later tests of a process ten times as dear."""
    yield
    assert torch.get_num_threads() == 1, "this test, or a library that it uses, gave torch more threads"
