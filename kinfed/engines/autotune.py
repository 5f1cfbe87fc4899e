"""A short trial at the start: the ways in which a task can run on a CPU, raced on a few rows of a few clients.

Ways add numbers in different orders, which changes their last bits. So the first way, a block of clients side by side
for each core, is left only for one that is clearly faster: a stopwatch must not decide a close race.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from kinfed.data.population import Population, Role
from kinfed.federation import Resident

CLEARLY = 1.5  # times as fast as the first way
ROWS = 32  # of a client, for training and for tests
LONG = 0.25  # seconds of a call; a task that takes less needs no trial
LAPS = 2


class Way(NamedTuple):
    """How a cohort is worked on."""

    workers: int  # blocks, or clients, at once; with more than one each has one thread of torch
    alone: bool = False  # one client at a time, instead of a block of them in the same operations

    def __str__(self) -> str:
        cut = "one client at a time" if self.alone else "clients side by side"
        return f"{cut}, {self.workers} {'clients' if self.alone else 'blocks'} at once" if self.workers > 1 else cut


def ways(cores: int, quick: bool) -> tuple[Way, ...]:
    """The ways that are worth a trial on so many cores; a quick training is slower by itself."""
    return tuple(dict.fromkeys((Way(cores), Way(1), *([] if quick else [Way(cores, alone=True)]))))


def some_of(fed: Resident, clients: list[int]) -> Population:
    """These clients with a few of their rows."""
    train, test = ([part[i][:ROWS] for i in clients] for part in (fed.train, fed.test))
    roles = tuple(Role(holdout=fed.roles[i].holdout, labelled=fed.roles[i].labelled) for i in clients)
    return Population(fed.x, fed.y, tuple(train), tuple(test), fed.population.classes, roles=roles)


def fastest(runs: Mapping[Way, Callable[[], object]]) -> tuple[Way, dict[Way, float]]:
    """The way to take, and the seconds of each; the ways take turns, and the best lap of each counts."""
    seconds = dict.fromkeys(runs, float("inf"))
    for lap in range(LAPS + 1):
        for way, run in runs.items():
            began = time.perf_counter()
            run()
            if lap:  # the first warms up
                seconds[way] = min(seconds[way], time.perf_counter() - began)
    first = next(iter(runs))
    return min(runs, key=lambda way: seconds[way] * (1.0 if way == first else CLEARLY)), seconds


def cores() -> int:
    """How many cores torch may use."""
    return torch.get_num_threads()
