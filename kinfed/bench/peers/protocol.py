"""What drivers share: the job they are given, and how they wait for their turns. Needs numpy and nothing else.

A driver is told `go` by a line on its standard input, runs one round, and says how long that took by a marked line on
its standard output. Between its turns it must not work.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

MARK = "@bench "


@dataclass(frozen=True)
class Job:
    """A workload as drivers see it."""

    folder: str  # where the rows lie
    network: str  # mlp, cnn or lenet
    clients: int
    rows: int  # of each client, or of the one with most
    classes: int
    cohort: int  # clients in a round
    batch: int
    lr: float
    epochs: int
    momentum: float
    lengths: list[int]  # rows of each client: the first of its images
    threads: int
    device: str

    def images(self) -> NDArray[np.uint8]:
        """All clients' images: [clients, rows, pixels] bytes, not read before they are used."""
        images: NDArray[np.uint8] = np.load(Path(self.folder) / "x.npy", mmap_mode="r")
        return images

    def floats(self) -> NDArray[np.float32]:
        """The same in [0, 1], for those who do not take bytes; made once, outside of all rounds."""
        return self.images().astype(np.float32) / np.float32(255)

    def labels(self) -> NDArray[np.int64]:
        """[clients, rows]"""
        labels: NDArray[np.int64] = np.load(Path(self.folder) / "y.npy")
        return labels

    def chosen(self, round: int) -> list[int]:
        """The clients of a round, the same for all contenders that let us choose."""
        draw = np.random.default_rng(round).choice(self.clients, self.cohort, replace=False)
        return [int(client) for client in np.sort(draw)]


def read_job() -> Job:
    """The job this process was started with."""
    return Job(**json.loads(sys.argv[1]))


def say(**facts: object) -> None:
    """Tells the race something."""
    print(MARK + json.dumps(facts), flush=True)


def told_to_go() -> bool:
    """Waits for the next turn; false when there is none."""
    return sys.stdin.readline().strip() == "go"


def drive(start: Callable[[Job], Callable[[int], object]]) -> None:
    """Serves turns: `start` prepares everything and gives back a function that runs round t."""
    job = read_job()
    try:
        run = start(job)
    except ImportError as error:
        give_up(error)
    say(ready=True)
    round = 0
    while told_to_go():
        began = time.perf_counter()
        run(round)
        say(seconds=time.perf_counter() - began)
        round += 1


def give_up(error: ImportError) -> NoReturn:
    """Says which package is missing, and leaves."""
    say(missing=str(error))
    sys.exit(0)


class Clock:
    """Turns for simulators that run their rounds themselves: call `begin` before a round and `end` after it."""

    def __init__(self) -> None:
        self.began = 0.0
        say(ready=True)

    def begin(self) -> None:
        """Waits for the turn; leaves the process when there is none."""
        if not told_to_go():
            sys.exit(0)
        self.began = time.perf_counter()

    def end(self) -> None:
        """Says how long the round took."""
        say(seconds=time.perf_counter() - self.began)
