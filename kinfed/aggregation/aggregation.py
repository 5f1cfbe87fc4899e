"""The contract of a rule of aggregation, and the weighted mean, in which every client is believed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from kinfed.aggregation.outliers import find_usual_distance, measure_isolation, pass_over_copies
from kinfed.checks import at_least
from kinfed.params import Params, Stack, count, each_leaf, flatten, mix, one_hot, put_mixes, repeat, select, subtract
from kinfed.params import unflatten as to_models

ISOLATED = 3.0  # times the usual distance to the nearest other client: an outlier is farther from all others,
REMOTE = 0.5  # and farther than this part of the distance that three quarters of the clients have at most
COPIED = 0.1  # times the usual distance: who is nearer to another client may have copied what it sent
FEW = 4  # clients; of fewer none is an outlier
DOUBTED = 0.1  # share of the clients, rounded up, without whom a decision about all must be the same


class Sent(NamedTuple):
    """What clients were sent before they trained."""

    models: Stack  # [C]
    which: Tensor | None  # [K] the model of each; None: each selected one itself, the nearest to what it trained
    shares: Tensor | None = None  # [K, C] of each model, where clients started from means of several

    def find_start(self, trained: Stack) -> tuple[Stack, Tensor]:
        """What each client started from [K], and how much of it is of each model: [K, C]."""
        if self.shares is not None:
            return mix(self.shares, self.models), self.shares
        which = self.which
        if which is None:
            which = torch.cdist(flatten(trained).double(), flatten(self.models).double()).argmin(1)
        return select(self.models, which), one_hot(which, count(self.models)).T


@dataclass(frozen=True)
class Aggregation(ABC):
    """A rule that makes one update of many. A plug-in inherits from it, and says how to `combine`."""

    sample_cap: float = field(default=1.0, kw_only=True)  # times the median that a client's samples count; 0: no cap
    is_robust: ClassVar[bool] = True  # some clients may lie: outliers form no clusters, copies count for none

    def __post_init__(self) -> None:
        at_least(0, sample_cap=self.sample_cap)

    @abstractmethod
    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        """One update [d] from those of a model's contributors [n, d], whose weights [n] add up to 1."""

    def prepare(self, updates: Tensor) -> Tensor:
        """The updates of all clients of a round [K, d], before those of each model are combined."""
        return updates

    def prepare_models(self, updates: Stack) -> Tensor:
        """The same of what clients changed in models, each as one long vector: [K, d]."""
        return self.prepare(flatten(updates))

    def find_outliers(self, points: Tensor, there: Tensor | None = None) -> Tensor:
        """Clients that may form no cluster, by their points ([m, k, d], or one each), of those that count: bool [m]."""
        if not self.is_robust or len(points) < FEW:
            return torch.zeros(len(points), dtype=torch.bool, device=points.device)
        points = points if points.dim() == 3 else points[:, None]
        nearest, remote = measure_isolation(points, there)
        usual = find_usual_distance(nearest, points, there)
        nearest = pass_over_copies(nearest, COPIED * usual, points, there)
        return (nearest > ISOLATED * usual) & (nearest > REMOTE * remote.median())

    def find_copies(self, points: Tensor) -> Tensor:
        """Clients so near to another one that one of both may have copied its points [m, d] from it: bool [m]."""
        if not self.is_robust or len(points) < FEW:
            return torch.zeros(len(points), dtype=torch.bool, device=points.device)
        nearest = measure_isolation(points[:, None], None)[0]
        return nearest < COPIED * find_usual_distance(nearest, points[:, None], None)

    def count_doubted(self, clients: int) -> int:
        """How many of so many clients a decision about all of them must not hang on."""
        return count_liars(DOUBTED, clients) if self.is_robust and clients >= FEW else 0

    def limit_reported(self, reported: Tensor, groups: Tensor) -> Tensor:
        """What clients report of themselves [m, ...]: no number above the upper quartile of those of its group ([m]).

        In a group of fewer than four, above that of all clients.
        """
        if not self.is_robust or len(reported) < FEW:
            return reported
        limited = reported.clone()
        for group in groups.unique():
            own = groups == group
            among = reported[own] if int(own.sum()) >= FEW else reported
            most = among.abs().quantile(0.75, 0, interpolation="lower")
            limited[own] = reported[own].clamp(-most, most)
        return limited

    def limit_losses(self, losses: Tensor) -> Tensor:
        """Losses [m, C] of which none counts for more than what all clients but those in doubt report at most.

        A client that says that no model fits it tells nothing, however large a number it says so by.
        """
        doubted = self.count_doubted(len(losses))
        return losses.clamp(max=losses.amax(1).sort().values[-1 - doubted]) if doubted else losses

    def cap(self, sizes: Tensor, clients: Tensor) -> Tensor:
        """Sample counts as they weigh in averages: none above `sample_cap` times the median of these clients'."""
        if not self.sample_cap or not len(clients):
            return sizes
        return sizes.float().clamp(max=self.sample_cap * float(sizes[clients].float().median()))

    def clean(self, sent: Sent, trained: Stack) -> Stack:
        """The models that clients trained, each changed no more than the rule believes."""
        start, _ = sent.find_start(trained)
        updates = self.prepare_models(subtract(trained, start))
        return each_leaf(torch.add, start, to_models(updates, trained))

    def mix(self, weights: Tensor, sent: Sent | None, trained: Stack, *held: Stack) -> Stack:
        """Row m: Σₖ weights[m, k] · models[k], where clients trained the first models, and the server holds the others.

        What clients changed is combined by the rule. Without `sent`, what they trained are updates.
        """
        if sent is None:
            return to_models(self._combine_rows(weights, trained), trained)
        (own, others), (start, shares) = weights.tensor_split([count(trained)], 1), sent.find_start(trained)
        changes = to_models(self._combine_rows(own, subtract(trained, start)), trained)
        served = torch.cat([own @ shares.to(own.dtype), others], 1)
        return each_leaf(torch.add, mix(served, sent.models, *held), changes)

    def average(self, trained: Stack, weights: Tensor, sent: Params | None = None) -> Params:
        """One model from those that clients trained, all from the same; without `sent`, from updates."""
        start = None if sent is None else Sent(repeat(sent, 1), torch.zeros_like(weights, dtype=torch.long))
        return select(self.mix((weights / weights.sum())[None], start, trained), 0)

    def average_numbers(self, numbers: Tensor, weights: Tensor) -> Tensor:
        """One number from one of each client ([K])."""
        return self.average({"number": numbers}, weights)["number"]

    def sum(self, updates: Stack) -> Params:
        """As much as all these updates together: their number times what the rule makes of them."""
        number = count(updates)
        return each_leaf(lambda w: number * w, self.average(updates, torch.ones(number, device=_device(updates))))

    def mix_contributors(self, models: Stack, weights: Tensor, sent: Sent, trained: Stack, *held: Stack) -> Stack:
        """Models replaced by the mix of their contributors' ones; one without contributors stays as it is."""
        return put_mixes(models, weights, lambda shares: self.mix(shares, sent, trained, *held))

    def _combine_rows(self, weights: Tensor, updates: Stack) -> Tensor:
        """The update of each row, as large as the row's weights: [m, d]."""
        count_at_all = (weights > 0).any(0)
        prepared = self.prepare_models(select(updates, count_at_all))
        weights, rows = weights[:, count_at_all].to(prepared.dtype), prepared.new_zeros(len(weights), prepared.shape[1])
        for row, each in enumerate(weights):
            there, share = each > 0, each.sum()
            if share > 0:
                rows[row] = share * self.combine(prepared[there], each[there] / share)
        return rows


@dataclass(frozen=True)
class Mean(Aggregation):
    """The weighted mean of all clients, each of which is believed: FedAvg's."""

    sample_cap: float = field(default=0.0, kw_only=True)  # times the median that a client's samples count; 0: no cap
    is_robust = False

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        return weights @ updates

    def clean(self, sent: Sent, trained: Stack) -> Stack:
        return trained

    def mix(self, weights: Tensor, sent: Sent | None, trained: Stack, *held: Stack) -> Stack:
        return mix(weights, trained, *held)  # without a detour over updates, which would change last bits

    def average_numbers(self, numbers: Tensor, weights: Tensor) -> Tensor:
        return (weights * numbers).sum() / weights.sum()

    def sum(self, updates: Stack) -> Params:
        return each_leaf(lambda w: w.sum(0), updates)


def count_liars(share: float, contributors: int) -> int:
    """How many of a model's contributors may lie: the share, rounded up, and fewer than half of them."""
    return min(ceil(share * contributors), (contributors - 1) // 2)


def _device(models: Stack) -> torch.device:
    return next(iter(models.values())).device
