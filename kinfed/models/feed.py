"""All batches of some clients, as row numbers."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Feed:
    """All batches of some lanes; a lane's real batches come first, and in a batch its real rows."""

    x: Tensor  # a pool of rows
    y: Tensor
    pick: Tensor  # [lanes, steps, b] rows of the pool
    mask: Tensor  # [lanes, steps, b]

    def shares(self) -> Tensor:
        """How much each row counts in its batch: [lanes, steps, b]."""
        return self.mask / self.mask.sum(2, keepdim=True).clamp(min=1)
