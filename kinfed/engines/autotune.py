"""Autotuning at the start: the plans by which a task can run on a CPU, timed on a few samples of a few clients.

Plans add numbers in different orders, which changes their last bits. So the first plan, a block of clients for each
core, is left only for one that is clearly faster: a stopwatch must not decide a close race.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from kinfed.data.population import Population, Role
from kinfed.federation import Resident

CLEARLY = 1.5  # times as fast as the first plan
SAMPLES = 32  # of a client, for training and for tests
SLOW = 0.25  # seconds of a call; a task that takes less is not tuned
LAPS = 2


class ExecutionPlan(NamedTuple):
    """How a cohort is worked on."""

    workers: int  # blocks, or clients, at once; with more than one each has one thread of torch
    sequential: bool = False  # one client at a time, instead of a block of them in the same operations

    def __str__(self) -> str:
        cut = "one client at a time" if self.sequential else "clients in blocks"
        return (
            f"{cut}, {self.workers} {'clients' if self.sequential else 'blocks'} at once" if self.workers > 1 else cut
        )


def candidate_plans(cores: int, fast_path: bool) -> tuple[ExecutionPlan, ...]:
    """The plans that are worth timing on so many cores; the fast path is slower one client at a time."""
    alone = () if fast_path else (ExecutionPlan(cores, sequential=True),)
    return tuple(dict.fromkeys((ExecutionPlan(cores), ExecutionPlan(1), *alone)))


def subset(fed: Resident, clients: list[int]) -> Population:
    """These clients with a few of their samples."""
    train, test = ([part[i][:SAMPLES] for i in clients] for part in (fed.train, fed.test))
    roles = tuple(Role(holdout=fed.roles[i].holdout, labelled=fed.roles[i].labelled) for i in clients)
    return Population(fed.x, fed.y, tuple(train), tuple(test), fed.population.classes, roles=roles)


def time_plans(
    runs: Mapping[ExecutionPlan, Callable[[], object]],
) -> tuple[ExecutionPlan, dict[ExecutionPlan, float]]:
    """The plan to follow, and the seconds of each; the plans take turns, and the best lap of each counts."""
    seconds = dict.fromkeys(runs, float("inf"))
    for lap in range(LAPS + 1):
        for plan, run in runs.items():
            began = time.perf_counter()
            run()
            if lap:  # the first warms up
                seconds[plan] = min(seconds[plan], time.perf_counter() - began)
    first = next(iter(runs))
    return min(runs, key=lambda plan: seconds[plan] * (1.0 if plan == first else CLEARLY)), seconds


def cores() -> int:
    """How many cores torch may use."""
    return torch.get_num_threads()
