"""Weights of several clients, each updated in place by its own steps of SGD.

A lane is a client's index in the block: a weight is [lanes, ...].
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class UpdateRule:
    """A step of SGD: w -= lr · v, where v = momentum · v + gradient + pull · (w - anchor · start) + shift."""

    lr: float
    momentum: float
    pull: float
    anchor: float


@dataclass(frozen=True)
class Weight:
    """One weight of some lanes, its velocity, anchor and shift, where they are needed; updated in place."""

    now: Tensor
    velocity: Tensor | None
    anchor: Tensor | None
    shift: Tensor | None
    rule: UpdateRule

    @classmethod
    def at(cls, start: Tensor, rule: UpdateRule, shift: Tensor | None = None) -> "Weight":
        """A weight at `start`, which it takes over."""
        needs_velocity = bool(rule.momentum or rule.pull) or shift is not None
        velocity = torch.zeros_like(start) if needs_velocity else None
        return cls(start, velocity, start * rule.anchor if rule.pull else None, shift, rule)

    def select(self, lanes: slice | list[int]) -> "Weight":
        """The weight of these lanes: a view for a slice, a copy for a list."""
        velocity, anchor, shift = (
            t if t is None else take_lanes(t, lanes) for t in (self.velocity, self.anchor, self.shift)
        )
        return Weight(take_lanes(self.now, lanes), velocity, anchor, shift, self.rule)

    def put(self, other: "Weight", lanes: slice) -> None:
        """Puts the first lanes of another weight into these."""
        count = lanes.stop - lanes.start
        self.now[lanes] = other.now[:count]
        if self.velocity is not None and other.velocity is not None:
            self.velocity[lanes] = other.velocity[:count]

    def step_by_product(self, left: Tensor, right: Tensor) -> None:
        """Takes the step whose gradient is left @ right."""
        if self.velocity is None:
            self.now.baddbmm_(left, right, alpha=-self.rule.lr)
        else:
            self._apply(self.velocity.baddbmm_(left, right, beta=self.rule.momentum))

    def step(self, gradient: Tensor) -> None:
        """Takes the step of this gradient."""
        if self.velocity is None:
            self.now.add_(gradient, alpha=-self.rule.lr)
        else:
            self._apply(self.velocity.mul_(self.rule.momentum).add_(gradient))

    def _apply(self, velocity: Tensor) -> None:
        if self.anchor is not None:
            velocity.add_(self.now - self.anchor, alpha=self.rule.pull)
        if self.shift is not None:
            velocity.add_(self.shift)
        self.now.add_(velocity, alpha=-self.rule.lr)


def take_lanes(t: Tensor, lanes: slice | list[int] | Tensor) -> Tensor:
    """These lanes, laid out in memory as all were: a view for a slice, else a copy."""
    is_transposed = t.dim() == 3 and t.stride(1) < t.stride(2)
    return t.mT[lanes].mT if is_transposed else t[lanes]


Weights = Mapping[str, Weight]
