"""What runs on several threads of one process share: changes of the whole process, and who listens to what."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class SharedChange:
    """A change of the whole process: the first thread that wants it makes it, the last one takes it back."""

    make: Callable[[], AbstractContextManager[object]]
    wanted: int = 0  # times, now
    made: ExitStack = field(default_factory=ExitStack)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Inside it the change is made."""
        with self.lock:
            if not self.wanted:
                self.made.enter_context(self.make())
            self.wanted += 1
        try:
            yield
        finally:
            with self.lock:
                self.wanted -= 1
                if not self.wanted:
                    self.made.close()


class Listeners(Generic[T]):
    """Who listens to something, each to its own thread."""

    def __init__(self) -> None:
        self.known: list[tuple[int, T]] = []

    @contextmanager
    def add(self, listener: T) -> Iterator[None]:
        """Inside it one more hears what happens on this thread, or on one that nobody listens to."""
        entry = threading.get_ident(), listener
        self.known.append(entry)
        try:
            yield
        finally:
            self.known.remove(entry)

    def here(self) -> list[T]:
        """Those of this thread; all, where it has none: it may work for any of them."""
        own = [listener for thread, listener in self.known if thread == threading.get_ident()]
        return own or [listener for _, listener in self.known]
