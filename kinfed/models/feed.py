"""All batches of some clients, as row numbers."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Feed:
    """All batches of some lanes; a lane's real batches come first, and in a batch its real rows."""

    x: Tensor  # a pool of rows
    y: Tensor  # -1: no label
    pick: Tensor  # [lanes, steps, b] rows of the pool
    mask: Tensor  # [lanes, steps, b]

    def halved(self) -> "Feed":
        """Each batch as two, the first half of its rows and the second: [lanes, 2 · steps, b / 2]."""
        pick, mask = (t.unflatten(2, (2, -1)).flatten(1, 2) for t in (self.pick, self.mask))
        return Feed(self.x, self.y, pick, mask)

    def shares(self) -> Tensor:
        """How much each row counts in its batch: [lanes, steps, b]; padding, and rows without a label, not at all."""
        counts = self.mask & (self.y[self.pick] >= 0)
        return counts / counts.sum(2, keepdim=True).clamp(min=1)
