"""What the fast path trains on: the mini-batches of some clients as sample numbers, and the settings of SGD."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class SGD(NamedTuple):
    """The settings of mini-batch SGD: w -= lr · v, where v = momentum · v + gradient + mu · (w - start) + shift."""

    momentum: float = 0.0
    mu: float = 0.0  # μ of FedProx
    inner_lr: float = 0.0  # of the look-ahead step before every real one (Per-FedAvg), on a GPU; 0: no such step


@dataclass(frozen=True)
class Schedule:
    """All mini-batches of some lanes; a lane's real batches come first, and in a batch its real samples."""

    x: Tensor  # the pool of samples
    y: Tensor  # -1: no label
    pick: Tensor  # [lanes, steps, b] indices into the pool
    mask: Tensor  # [lanes, steps, b]

    def split_pairs(self) -> "Schedule":
        """Each batch as two, the first half of its samples and the second: [lanes, 2 · steps, b / 2]."""
        pick, mask = (t.unflatten(2, (2, -1)).flatten(1, 2) for t in (self.pick, self.mask))
        return Schedule(self.x, self.y, pick, mask)

    def sample_weights(self) -> Tensor:
        """The weight of each sample in its batch's mean: [lanes, steps, b]; 0 for padding and without a label."""
        counts = self.mask & (self.y[self.pick] >= 0)
        return counts / counts.sum(2, keepdim=True).clamp(min=1)
