"""A cohort cut into blocks: clients that work side by side, in one vmap."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.engines.sample_table import SampleTable, rounded
from kinfed.models import LEAST


class Block(NamedTuple):
    order: list[int]  # positions in the cohort
    positions: Tensor  # the same, and copies that fill the block up
    longest: tuple[int, int]  # training and test rows that its clients are filled up to
    walks: bool  # its steps are recorded, not itself


@dataclass(frozen=True)
class Cut:
    """How cohorts are cut: on a GPU into few shapes, so that recordings of whole blocks are of use."""

    train: SampleTable
    test: SampleTable
    device: torch.device
    walks: bool = False  # steps are recorded, not blocks: then clients that are done cost nothing

    @property
    def on_gpu(self) -> bool:
        """Whether a step costs more than a padded row."""
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
        if self.walks:
            return False
        return table.coarse[length] < table.coarse[first] if self.on_gpu else length < 0.7 * first

    def _block(self, positions: list[int], ids: list[int]) -> Block:
        tables, who = (self.train, self.test), [ids[i] for i in positions]
        longest = [max(map(table.lengths.__getitem__, who)) for table in tables]
        lanes = max(LEAST, len(positions))
        if self.on_gpu and not self.walks:
            longest = [table.fine[n] for table, n in zip(tables, longest, strict=True)]
            lanes = lanes if self.train.are_even else rounded(lanes)
        filled = (positions * -(-lanes // len(positions)))[:lanes]
        return Block(positions, torch.tensor(filled, device=self.device), (longest[0], longest[1]), self.walks)
