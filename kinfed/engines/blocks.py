"""A cohort cut into blocks: clients that one vmap takes, and their samples from one table on the device.

`BlockSizes` says how many clients a block has: it plans by memory, and halves where that did not suffice.
"""

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.client import width_of
from kinfed.fastpath import LEAST
from kinfed.federation import Offer
from kinfed.gpu_memory import is_crowded, room_on
from kinfed.models import Network
from kinfed.params import to_flat

LOG = logging.getLogger("kinfed.engines")


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
    """Clients of a cohort that run a task side by side."""

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


MANY = {"cuda": 4096, "cpu": 32}  # more lanes gain nothing and make activations large
FREE = 2**30  # bytes for the blocks of all workers on a CPU
ACTIVATIONS, OF_TOKEN = 16, 1024  # numbers that a network makes of each number, or token, of a sample, roughly


@dataclass
class BlockSizes:
    """How many clients a block of each task has: as many as memory should take, or were found to fit into it."""

    device: torch.device
    given: int = 0  # by the user; 0: as memory allows
    found: dict[str, int] = field(default_factory=dict)  # task whose blocks were too large -> clients that are tried
    retries: dict[str, Retry] = field(default_factory=dict)  # where others had the memory: when more are tried
    said_full: bool = False

    def __post_init__(self) -> None:
        self.free = room_on(self.device) // 2 if self.device.type == "cuda" else FREE

    def choose(self, task: str, clients: int, workers: int, bytes_each: int) -> int:
        """The most clients of a block; so many clients are cut evenly, so that all workers have the same to do."""
        most = max(2, min(MANY.get(self.device.type, 32), self.free // workers // bytes_each))
        planned = self.given or -(-clients // (workers * -(-clients // (workers * most))))
        return min(clients, planned, self.found.get(task, planned))

    def halve(self, task: str, lanes: int) -> None:
        """Notes that memory did not suffice for a block of so many clients."""
        self.found[task] = max(LEAST, lanes // 2)
        LOG.debug("'%s': memory did not suffice for %d clients, %d are tried", task, lanes, self.found[task])
        if not is_crowded(self.device):
            return  # as many would never fit
        self.retries.setdefault(task, Retry()).start_again()
        if not self.said_full:
            warnings.warn(
                "GPU memory is full, since other processes use it, too: blocks have fewer clients until there is room",
                stacklevel=6,
            )
        self.said_full = True

    def note_success(self, task: str) -> None:
        """Where others had left too little memory, doubles blocks after some calls that went well."""
        if task in self.retries and task in self.found and self.retries[task].note_success():
            self.found[task] *= 2
            self.retries[task].calls = 0


def bytes_of_weights(offer: Offer, model: object) -> int:
    """Bytes of a client's weights, gradients and momentum; of models that all may choose from it trains one."""
    dims = {name: w.dim() for name, w in model.template.state_dict().items()} if isinstance(model, Network) else {}
    further = 0
    for name, t in to_flat(offer.shared).items():
        if t.dim() == dims.get(name.partition("/")[2], t.dim()) + 1:  # a stack of them
            further += (t.numel() - t[0].numel()) * t.element_size()
    return 12 * (offer.bytes_each() - further) + further


def bytes_of_activations(x: Tensor, width: int) -> int:
    """Bytes that a network makes of so many samples of the pool, roughly."""
    is_token = not x.is_floating_point() and x.dtype != torch.uint8
    return 4 * width * x.shape[1:].numel() * (OF_TOKEN if is_token else ACTIVATIONS)


TOO_LARGE = ("DefaultCPUAllocator", "ALLOC_FAILED", "canUse32BitIndexMath", "32-bit", "invalid configuration argument",
             "CUDNN_STATUS_NOT_SUPPORTED")  # fmt: skip
NOT_VECTORISED = ("vmap", "functorch", "atching rule", "Cannot access data pointer",
                  "stack expects each tensor to be equal size",
                  "doesn't match the broadcast shape")  # what torch says of a task  # fmt: skip


def is_too_large(error: RuntimeError) -> bool:
    """Whether a block was too large for the memory or for a kernel's 32-bit index: fewer clients may do."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in TOO_LARGE)


def is_not_vectorised(error: RuntimeError) -> bool:
    """Whether vmap refuses a task: such a task runs sequentially. Any other error is the task's own."""
    return any(words in str(error) for words in NOT_VECTORISED)
