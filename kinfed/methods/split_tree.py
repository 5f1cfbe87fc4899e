"""CFL's splits: when a cluster is split and how, and the tree of models at which clusters were."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinfed.checks import at_least, fraction
from kinfed.clustering.hierarchy import bipartition
from kinfed.errors import ConfigError
from kinfed.params import Params, Stack, flatten, join, repeat, select

LONGER = 1.25  # times the longest update but for those in doubt: what the longest counts as at most where some may lie


@dataclass(frozen=True)
class SplitRule:
    """A cluster is split when the mean of its clients' updates is short but some client's is long.

    Where clients may lie, the mean may be short without a few of them, and none counts as much longer than all others:
    one that always pushes the model somewhere would keep its cluster whole, or split clients that agree.
    """

    mean_below: float = 0.4  # ε₁, of the norm of the mean update
    some_above: float = 1.6  # ε₂, of the norm of the longest update
    relative: bool = False  # both are shares of the longest update so far: they do not hang on lr, epochs and network
    gap: float = 0.0  # γ_max; 0: every bipartition is accepted

    def __post_init__(self) -> None:
        at_least(0, mean_below=self.mean_below, some_above=self.some_above)
        fraction(gap=self.gap)
        if self.relative and self.some_above >= 1:
            raise ConfigError(f"some_above must be below 1 where it is relative, got {self.some_above}")

    def __call__(self, updates: Tensor, longest: Tensor, doubted: int = 0) -> Tensor | None:
        """Who of these goes right, bool [m]; None where the cluster stays as it is. `longest`: norm of any so far."""
        norms = updates.norm(dim=1)
        unit = torch.cat([longest[None], norms]).max() if self.relative else torch.ones_like(longest)
        if len(updates) <= 2 or find_shortest_mean(updates, doubted) >= self.mean_below * unit:
            return None
        most = torch.minimum(norms.max(), LONGER * norms.sort().values[-1 - doubted]) if doubted else norms.max()
        if most <= self.some_above * unit:
            return None
        right, alike = bipartition(updates)  # alike: α_cross
        return right if self.gap < ((1 - alike) / 2).clamp(min=0).sqrt() else None


def find_shortest_mean(updates: Tensor, doubted: int) -> Tensor:
    """The norm of the mean of these updates, or of those without up to so many, where that is shorter.

    They are left out one by one, each time that one without which the mean of the others is shortest.
    """
    shortest: Tensor = updates.mean(0).norm()
    for _ in range(doubted):
        rest = updates.sum(0) - updates
        updates = updates[torch.arange(len(updates), device=updates.device) != rest.norm(dim=1).argmin()]
        shortest = torch.minimum(shortest, updates.mean(0).norm())
    return shortest


@dataclass(frozen=True)
class SplitTree:
    """How clusters were split, so that unseen clients can be led down to one."""

    nodes: Stack  # [S] the models at the splits; split s made cluster s + 1
    parents: Tensor  # [S] the cluster that was split
    sides: Tensor  # [S, 2, weights] the mean direction of the updates on either side
    longest: Tensor  # norm of the longest update in rounds so far

    @staticmethod
    def whole(models: Stack, compared: Stack) -> "SplitTree":
        """No split yet; `compared` are the weights of models by whose updates clusters are split."""
        nobody = flatten(compared)[:0]
        return SplitTree(select(models, slice(0)), nobody[:, 0].long(), nobody[:, None].repeat(1, 2, 1), nobody.sum())

    def measure(self, updates: Tensor) -> "SplitTree":
        """The tree after a round with these updates [m, parameters]."""
        return replace(self, longest=torch.cat([self.longest[None], updates.norm(dim=1)]).max())

    def split(self, cluster: int, node: Params, updates: Tensor, right: Tensor) -> "SplitTree":
        """The tree in which this cluster, whose model is `node`, was split by its members' updates."""
        directions = normalize(updates, dim=1)
        sides = torch.stack([directions[~right].mean(0), directions[right].mean(0)])
        parents = torch.cat([self.parents, self.parents.new_tensor([cluster])])
        return replace(
            self, nodes=join(self.nodes, repeat(node, 1)), parents=parents, sides=torch.cat([self.sides, sides[None]])
        )

    def goes_right(self, split: int, updates: Tensor) -> Tensor:
        """Whether each of these updates of the split's model is more like those on the right: bool [m]."""
        left, right = (normalize(updates, dim=1) @ self.sides[split].T).unbind(1)
        return right > left
