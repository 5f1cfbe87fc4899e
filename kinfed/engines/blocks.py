"""A cohort cut into blocks: clients that one vmap takes, and their samples from one table on the device.

Which way a task runs fastest (blocks, workers, or client by client) is autotuned here.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.client import width_of
from kinfed.data.population import Population, Role
from kinfed.fastpath import LEAST
from kinfed.federation import Resident


class Bounds(NamedTuple):
    """Of all clients together."""

    width: int  # samples that tasks look at in one go
    longest: int  # samples of the client that has most


@dataclass(frozen=True)
class SampleTable:
    """Sample numbers of all clients, one after the other, and where each client's begin."""

    numbers: Tensor  # [all samples + 1]; the last is sample 0, for clients that have none
    begins: Tensor  # [clients]
    sizes: Tensor  # [clients]
    lengths: tuple[int, ...]  # the same, where no device must be asked
    alike: tuple[int, ...]  # clients with the same samples have the same number here

    @classmethod
    def of(cls, part: Sequence[Tensor], device: torch.device) -> "SampleTable":
        """The table of these clients' samples."""
        lengths = tuple(index.size(0) for index in part)
        numbers = torch.cat([*part, torch.zeros(1, dtype=torch.long, device=part[0].device)])
        own = numbers[:-1].cpu().split(list(lengths))
        begins = [
            begin if n else sum(lengths) for begin, n in zip(accumulate(lengths, initial=0), lengths, strict=False)
        ]
        names: dict[bytes, int] = {}
        alike = tuple(names.setdefault(index.numpy().tobytes(), len(names)) for index in own)
        begin, size = (torch.tensor(values, device=device) for values in (begins, lengths))
        return cls(numbers.to(device), begin, size, lengths, alike)

    @cached_property
    def bounds(self) -> Bounds:
        """What no block changes."""
        return Bounds(width_of(self.lengths), max(self.lengths))

    @cached_property
    def are_even(self) -> bool:
        """Whether all clients have as many."""
        return len(set(self.lengths)) == 1

    @cached_property
    def cut_lengths(self) -> dict[int, int]:
        """The lengths at which blocks are cut."""
        return ladder(self.lengths, 0.4)

    @cached_property
    def padded_lengths(self) -> dict[int, int]:
        """The lengths that blocks are padded to."""
        return ladder(self.lengths, 0.9)

    def pad(self, clients: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Sample numbers [lanes, longest] and sizes [lanes] of these clients; padding repeats the last sample."""
        sizes = self.sizes[clients]
        last = (sizes - 1).clamp(min=0)[:, None]  # another client's sample could be NaN or without a label
        position = torch.minimum(torch.arange(longest, device=clients.device), last)
        return self.numbers[self.begins[clients][:, None] + position], sizes


def ladder(lengths: Iterable[int], ratio: float) -> dict[int, int]:
    """The length that clients of each length are padded to: one of few, so that shapes of blocks come again.

    Rungs go down from the longest client; each is the longest that is at most `ratio` of the rung above.
    """
    rungs: dict[int, int] = {}
    step = 0
    for length in sorted(set(lengths), reverse=True):
        step = length if not rungs or length <= ratio * step else step
        rungs[length] = step
    return rungs


def round_up(lanes: int) -> int:
    """The next number of lanes of which there are few: three leading bits, the rest zero."""
    low = max(0, lanes.bit_length() - 3)
    return -(-lanes >> low) << low


class Block(NamedTuple):
    order: list[int]  # positions in the cohort
    positions: Tensor  # the same, and copies that fill the block up
    longest: tuple[int, int]  # training and test samples that its clients are padded to
    step_graphs: bool  # a few steps become a CUDA graph, not the whole block


@dataclass(frozen=True)
class Cut:
    """How cohorts are cut: on a GPU into few shapes, so that CUDA graphs of whole blocks are replayed."""

    train: SampleTable
    test: SampleTable
    device: torch.device
    step_graphs: bool = False  # of steps, not of blocks: then clients that are done cost nothing

    @property
    def on_gpu(self) -> bool:
        """Whether a step costs more than a padded sample."""
        return self.device.type == "cuda"

    def blocks(self, ids: list[int], lanes: int, by_test: bool = False) -> Iterator[Block]:
        """Longest clients first, cut where padding would waste too much."""
        table = self.test if by_test else self.train
        lengths = [table.lengths[i] for i in ids]
        order = sorted(range(len(ids)), key=lengths.__getitem__, reverse=True)  # equals stay in their order
        block: list[int] = []
        for i in order:
            if block and (len(block) == lanes or self._is_shorter(table, lengths[i], lengths[block[0]])):
                yield self._block(block, ids)
                block = []
            block.append(i)
        yield self._block(block, ids)

    def _is_shorter(self, table: SampleTable, length: int, first: int) -> bool:
        """Whether a client is too short for the block of this first one."""
        if self.step_graphs:
            return False
        return table.cut_lengths[length] < table.cut_lengths[first] if self.on_gpu else length < 0.7 * first

    def _block(self, positions: list[int], ids: list[int]) -> Block:
        tables, clients = (self.train, self.test), [ids[i] for i in positions]
        longest = [max(map(table.lengths.__getitem__, clients)) for table in tables]
        lanes = max(LEAST, len(positions))
        if self.on_gpu and not self.step_graphs:
            longest = [table.padded_lengths[n] for table, n in zip(tables, longest, strict=True)]
            lanes = lanes if self.train.are_even else round_up(lanes)
        copies = (positions * -(-lanes // len(positions)))[:lanes]
        return Block(positions, torch.tensor(copies, device=self.device), (longest[0], longest[1]), self.step_graphs)


@dataclass
class Retry:
    """When a task, whose blocks others left too little memory for, tries larger ones again."""

    pause: int = 4  # calls that go well before; doubled each time
    calls: int = 0

    def note_success(self) -> bool:
        """Whether it is time for larger blocks."""
        self.calls += 1
        return self.calls >= self.pause

    def start_again(self) -> None:
        """Waits for twice as many calls."""
        self.pause, self.calls = 2 * self.pause, 0


TOO_LARGE = ("DefaultCPUAllocator", "ALLOC_FAILED", "canUse32BitIndexMath", "32-bit", "invalid configuration argument",
             "CUDNN_STATUS_NOT_SUPPORTED")  # fmt: skip
NOT_VECTORISED = ("vmap", "functorch", "atching rule", "Cannot access data pointer")  # what torch says of a task


def is_too_large(error: RuntimeError) -> bool:
    """Whether a block was too large for the memory or for a kernel's 32-bit index: fewer clients may do."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in TOO_LARGE)


def is_not_vectorised(error: RuntimeError) -> bool:
    """Whether vmap refuses a task: such a task runs sequentially. Any other error is the task's own."""
    return any(words in str(error) for words in NOT_VECTORISED)


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
