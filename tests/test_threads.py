"""What threads of one process share."""

import threading
import time
from contextlib import contextmanager

from kinfed.threads import FairLock, Listeners, SharedChange


def test_a_fair_lock_goes_to_whoever_has_waited_longest():
    lock, order = FairLock(), []

    def wait(name: str) -> None:
        with lock:
            order.append(name)

    with lock:
        assert not lock.acquire(blocking=False)
        threads = [threading.Thread(target=wait, args=(name,)) for name in "abc"]
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(lock.waiting) < number:
                time.sleep(0.001)
        lock.release()  # a plain lock would mostly be taken back at once
        lock.acquire()
        assert order == ["a", "b", "c"]
    for thread in threads:
        thread.join(20)
    assert lock.acquire(blocking=False)


def test_a_shared_change_is_made_by_the_first_and_taken_back_by_the_last():
    seen = []

    @contextmanager
    def change():
        seen.append("made")
        yield
        seen.append("taken back")

    shared = SharedChange(change)
    first, second = shared.hold(), shared.hold()
    first.__enter__(), second.__enter__(), first.__exit__(None, None, None)
    assert seen == ["made"]
    second.__exit__(None, None, None)
    with shared.hold():
        assert seen == ["made", "taken back", "made"]


def test_listeners_hear_their_own_thread_and_those_that_nobody_listens_to():
    listeners, heard = Listeners(), []
    with listeners.add("a"), listeners.add("b"):
        assert listeners.here() == ["a", "b"]
        other = threading.Thread(target=lambda: heard.append(listeners.here()))
        other.start(), other.join()
    assert heard == [["a", "b"]] and listeners.here() == []
