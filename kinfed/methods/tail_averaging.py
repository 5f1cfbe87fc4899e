"""The mean of the models of the last rounds, for models that have settled.

Polyak and Juditsky 1992: around an optimum the mean of SGD's models is better than the last one. Where a model still
learns fast, the mean lags behind. Pflug 1990 (Chee and Toulis 2018) tells these apart: the sum of the inner products of
successive updates is negative where noise is undone by the next update, positive where updates go on in one direction.
Here the updates are the server's, so that the noise is also that of who takes part in a round.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfed.params import Stack, each_leaf, interpolate, subtract, to_matrix


@dataclass(frozen=True)
class TailAverage:
    """The mean of each model over the last rounds, and whether the model still drifts."""

    mean: Stack  # [models]; empty before the last rounds
    update: Stack  # [models] the latest change of each; empty: none was watched
    drift: Tensor  # [models] the sum of the inner products of successive updates

    @staticmethod
    def none(models: int, device: torch.device) -> "TailAverage":
        """No model was watched yet."""
        return TailAverage({}, {}, torch.zeros(models, device=device))

    def clear(self) -> "TailAverage":
        """The same for as many models, of which none was watched yet."""
        return TailAverage.none(len(self.drift), self.drift.device)

    def watch(self, before: Stack, after: Stack, weights: Iterable[str]) -> "TailAverage":
        """With one more update, of these weights; that of a model which nobody trained is none."""
        update = subtract({name: after[name] for name in weights if name in after}, before)
        if not self.update:
            return replace(self, update=update)
        latest = choose_models(sum_products(update, update) > 0, update, self.update)
        return replace(self, update=latest, drift=self.drift + sum_products(self.update, update))

    def add(self, models: Stack, rounds: int) -> "TailAverage":
        """With one more round in the mean, of which there were so many before; below 0: it is not one of the last."""
        mean = interpolate(self.mean or models, models, 1 / (rounds + 1)) if rounds >= 0 else {}
        return replace(self, mean=mean)

    def serve(self, models: Stack) -> Stack:
        """The mean of each model that has settled, and else the last one, which these are."""
        return choose_models(self.drift < 0, self.mean, models) if self.mean else models


def choose_models(first: Tensor, one: Stack, other: Stack) -> Stack:
    """By model ([models] bool) that of one stack or of the other."""
    return each_leaf(lambda a, b: torch.where(first.view(-1, *[1] * (a.dim() - 1)), a, b), one, other)


def sum_products(one: Stack, other: Stack) -> Tensor:
    """The inner product of each model of a stack with that of the other: [models]."""
    return torch.stack(
        [(to_matrix(w) * to_matrix(other[name])).sum(1, dtype=torch.float) for name, w in one.items()]
    ).sum(0)
