"""The rows of all clients as one table on the device, from which a block takes what it needs without asking it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.client import width_of


class Bounds(NamedTuple):
    """Of all clients together."""

    width: int  # rows that tasks look at in one go
    longest: int  # rows of the client that has most


@dataclass(frozen=True)
class SampleTable:
    """Row numbers of all clients, one after the other, and where each client's begin."""

    rows: Tensor  # [all rows + 1]; the last is row 0, for clients that have none
    begins: Tensor  # [clients]
    sizes: Tensor  # [clients]
    lengths: tuple[int, ...]  # the same, where no device must be asked
    alike: tuple[int, ...]  # clients with the same rows have the same number here

    @classmethod
    def of(cls, part: Sequence[Tensor], device: torch.device) -> "SampleTable":
        """The table of these clients' rows."""
        lengths = tuple(index.size(0) for index in part)
        rows = torch.cat([*part, torch.zeros(1, dtype=torch.long, device=part[0].device)])
        own = rows[:-1].cpu().split(list(lengths))
        begins = [
            begin if n else sum(lengths) for begin, n in zip(accumulate(lengths, initial=0), lengths, strict=False)
        ]
        names: dict[bytes, int] = {}
        alike = tuple(names.setdefault(index.numpy().tobytes(), len(names)) for index in own)
        begin, size = (torch.tensor(values, device=device) for values in (begins, lengths))
        return cls(rows.to(device), begin, size, lengths, alike)

    @cached_property
    def bounds(self) -> Bounds:
        """What no block changes."""
        return Bounds(width_of(self.lengths), max(self.lengths))

    @cached_property
    def are_even(self) -> bool:
        """Whether all clients have as many."""
        return len(set(self.lengths)) == 1

    @cached_property
    def coarse(self) -> dict[int, int]:
        """The lengths at which blocks are cut."""
        return ladder(self.lengths, 0.4)

    @cached_property
    def fine(self) -> dict[int, int]:
        """The lengths that blocks are filled up to."""
        return ladder(self.lengths, 0.9)

    def padded(self, who: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Row numbers [lanes, longest] and sizes [lanes] of these clients; padding repeats a client's own last row."""
        sizes = self.sizes[who]
        last = (sizes - 1).clamp(min=0)[:, None]  # another client's row could be sick or without a label
        position = torch.minimum(torch.arange(longest, device=who.device), last)
        return self.rows[self.begins[who][:, None] + position], sizes


def ladder(lengths: Iterable[int], ratio: float) -> dict[int, int]:
    """The length that clients of each length are filled up to: one of few, so that shapes of blocks come again.

    Rungs go down from the longest client; each is the longest that is at most `ratio` of the rung above.
    """
    rungs: dict[int, int] = {}
    step = 0
    for length in sorted(set(lengths), reverse=True):
        step = length if not rungs or length <= ratio * step else step
        rungs[length] = step
    return rungs


def rounded(lanes: int) -> int:
    """The next number of lanes of which there are few: three leading bits, the rest zero."""
    low = max(0, lanes.bit_length() - 3)
    return -(-lanes >> low) << low
