"""How the models that clients trained become one: the weighted mean, or a rule that one liar cannot move at will.

A rule sees updates, what each client changed in the model it was sent, and never the server's own models. Sample
counts are claims too, and are capped. Papers: norm clipping, Sun et al., 2019; median and trimmed mean, Yin et al.,
ICML 2018; geometric median, Pillutla et al., 2022; Krum, Blanchard et al., NeurIPS 2017; centred clipping, Karimireddy
et al., ICML 2021. Deviations: clients weigh by their capped sample counts, the share of liars is one of each model's
contributors, rounded up, and a radius is the median norm of the round where none is given.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from kinfed.checks import above_zero, at_least, within
from kinfed.errors import ConfigError
from kinfed.params import Params, Stack, count, each_leaf, flatten, mix, one_hot, put, repeat, select, subtract
from kinfed.params import unflatten as to_models

ISOLATED = 3.0  # times the usual distance to the nearest other client: an outlier is farther from all others,
REMOTE = 0.5  # and farther than this part of the distance that three quarters of the clients have at most
COPIED = 0.1  # times the usual distance: who is nearer to another client may have copied what it sent
FEW = 4  # clients; of fewer none is an outlier
DOUBTED = 0.1  # share of the clients, rounded up, without whom a decision about all must be the same
AT_ONCE = 2**22  # distances
HALF = 1e-6  # how near to one half a sum of weights is one half
ITERATIONS = 100  # of the geometric median, at most


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
        updates = self.prepare(flatten(subtract(trained, start)))
        return each_leaf(torch.add, start, to_models(updates, trained))

    def mix(self, weights: Tensor, sent: Sent | None, trained: Stack, *held: Stack) -> Stack:
        """Row m: Σₖ weights[m, k] · models[k], where clients trained the first models, and the server holds the others.

        What clients changed is combined by the rule. Without `sent`, what they trained are updates.
        """
        if sent is None:
            return to_models(self._combine_rows(weights, flatten(trained)), trained)
        (own, others), (start, shares) = weights.tensor_split([count(trained)], 1), sent.find_start(trained)
        changes = to_models(self._combine_rows(own, flatten(subtract(trained, start))), trained)
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
        updated = (weights.sum(1) > 0).nonzero()[:, 0]
        if not len(updated):
            return models
        some = weights[updated]
        means = self.mix(some / some.sum(1, keepdim=True), sent, trained, *held)
        return means if len(updated) == len(weights) else put(models, updated, means)

    def _combine_rows(self, weights: Tensor, updates: Tensor) -> Tensor:
        """The update of each row, as large as the row's weights: [m, d]."""
        count_at_all = (weights > 0).any(0)
        prepared, weights = self.prepare(updates[count_at_all]), weights[:, count_at_all].to(updates.dtype)
        rows = updates.new_zeros(len(weights), updates.shape[1])
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


@dataclass(frozen=True)
class NormClipping(Aggregation):
    """The weighted mean of updates that are cut to a common length."""

    bound: float = 0.0  # of an update's norm; 0: adaptive, by the median norm of the round
    factor: float = 2.0  # times the median norm, where the bound is adaptive

    def __post_init__(self) -> None:
        at_least(0, bound=self.bound)
        above_zero(factor=self.factor)
        super().__post_init__()

    def prepare(self, updates: Tensor) -> Tensor:
        return clip(updates, self.bound or self.factor * median_norm(updates))

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        return weights @ updates


@dataclass(frozen=True)
class Median(Aggregation):
    """The weighted median of each coordinate."""

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        return weighted_median(updates, weights)


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """The weighted mean of each coordinate, without its largest and its smallest values."""

    liars: float = 0.1  # share of a model's contributors that is left out at either end, rounded up

    def __post_init__(self) -> None:
        _check_share(self.liars)
        super().__post_init__()

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        values, order = updates.sort(0)
        liars = count_liars(self.liars, len(updates))
        kept = slice(liars, len(updates) - liars)
        there = weights[order[kept]]
        return (there * values[kept]).sum(0) / there.sum(0)


@dataclass(frozen=True)
class GeometricMedian(Aggregation):
    """The point with the least weighted sum of distances to all updates (Weiszfeld iteration, by Vardi and Zhang)."""

    tolerance: float = 1e-6  # a step shorter than this share of the median norm ends the iteration

    def __post_init__(self) -> None:
        above_zero(tolerance=self.tolerance)
        super().__post_init__()

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        centre = weighted_median(updates, weights)
        small = max(self.tolerance * median_norm(updates), torch.finfo(torch.float).tiny)
        for _ in range(ITERATIONS):
            apart = norms(updates - centre)
            pull = weights / apart.clamp(min=small)
            moved = (pull / pull.sum()).to(updates.dtype) @ updates
            if bool((here := apart <= small).any()):
                moved = leave_point(centre, updates - centre, torch.where(here, 0, pull), float(weights[here].sum()))
            if norms((moved - centre)[None]) <= small:
                return moved
            centre = moved
        return centre


@dataclass(frozen=True)
class Krum(Aggregation):
    """The weighted mean of the updates that are nearest to their neighbours: Multi-Krum, or Krum where one is kept."""

    liars: float = 0.1  # share of a model's contributors that may lie, rounded up
    keep: int = 0  # updates that are averaged; 1: Krum; 0: all but the liars

    def __post_init__(self) -> None:
        _check_share(self.liars)
        at_least(0, keep=self.keep)
        super().__post_init__()

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        number, liars = len(updates), count_liars(self.liars, len(updates))
        apart = torch.cdist(updates.double(), updates.double()).square().sort(1).values[:, 1:]  # without itself
        score = apart[:, : max(1, number - liars - 2)].sum(1)
        kept = score.argsort(stable=True)[: min(self.keep or number, number - liars)]
        return weights[kept] / weights[kept].sum() @ updates[kept]


@dataclass(frozen=True)
class CentredClipping(Aggregation):
    """The point that moves by the mean of all updates' clipped distances to it, a few times, from no update on."""

    radius: float = 0.0  # of the clipping; 0: the median norm of the contributors' updates
    iterations: int = 3  # of clipping around the last point

    def __post_init__(self) -> None:
        at_least(0, radius=self.radius)
        within(1, 10_000, iterations=self.iterations)
        super().__post_init__()

    def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
        radius, centre = self.radius or median_norm(updates), torch.zeros_like(updates[0])
        for _ in range(self.iterations):
            centre = centre + weights @ clip(updates - centre, radius)
        return centre


AGGREGATIONS: dict[str, type[Aggregation]] = {
    "mean": Mean,
    "norm_clipping": NormClipping,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "geometric_median": GeometricMedian,
    "krum": Krum,
    "centred_clipping": CentredClipping,
}
MEAN, DEPLOYED = Mean(), NormClipping()  # the defaults of simulation and of deployment


def leave_point(centre: Tensor, steps: Tensor, pull: Tensor, weight: float) -> Tensor:
    """The next centre where one is at an update of this weight, which pulls nowhere; the same if the others pull less.

    Vardi and Zhang 2000: there Weiszfeld's iteration would stay, though the update need not be the median.
    """
    force = pull @ steps.to(pull.dtype)
    strength = float(force.norm())
    return centre if strength <= weight else centre + ((1 - weight / strength) / pull.sum() * force).to(centre.dtype)


def norms(updates: Tensor) -> Tensor:
    """The norm of each update, in double: the square of 1e30 is no float."""
    found: Tensor = torch.linalg.vector_norm(updates, dim=1, dtype=torch.double)
    return found


def median_norm(updates: Tensor) -> float:
    """The median norm of these updates; of an even number the smaller one."""
    return float(norms(updates).median()) if len(updates) else 0.0


def clip(updates: Tensor, bound: float) -> Tensor:
    """The same updates, longer ones cut to this norm."""
    scale = (bound / norms(updates).clamp(min=torch.finfo(torch.float).tiny)).clamp(max=1.0)
    return updates * scale.to(updates.dtype)[:, None]


def weighted_median(updates: Tensor, weights: Tensor) -> Tensor:
    """The median of each coordinate: half of the weight is below it; between two values their middle."""
    values, order = updates.sort(0)
    below = weights.double()[order].cumsum(0)
    low, high = (below < 0.5 - HALF).sum(0), (below <= 0.5 + HALF).sum(0).clamp(max=len(updates) - 1)
    lower, upper = (values.gather(0, at[None])[0] for at in (low, high))
    return lower / 2 + upper / 2  # halves: no sum overflows


def measure_isolation(points: Tensor, there: Tensor | None) -> tuple[Tensor, Tensor]:
    """How far each client's points are from the nearest of any other client, on average, and from a remote one's."""
    clients, k, _ = points.shape
    counts = torch.ones(clients, k, dtype=torch.bool, device=points.device) if there is None else there
    everything, some = points.double(), max(1, AT_ONCE // (k * k * clients))
    found = [_isolate(i, everything, counts) for i in torch.arange(clients, device=points.device).split(some)]
    nearest, remote = zip(*found, strict=True)
    return torch.cat(nearest), torch.cat(remote)


def find_usual_distance(nearest: Tensor, points: Tensor, there: Tensor | None) -> float:
    """How far a client usually is from the nearest other one: the upper median, where equal clients count once.

    So who copies others does not make the rest look far away; near copies do, where they and the copied are over half.
    """
    different, whose = points.flatten(1).unique(dim=0, return_inverse=True)
    if 1 < len(different) < len(points):
        everybody = torch.arange(len(points), device=points.device)
        kept = everybody[: len(different)].scatter_reduce(0, whose, everybody, "amin", include_self=False)
        nearest = measure_isolation(points[kept], None if there is None else there[kept])[0]
    return float(nearest.sort().values[len(nearest) // 2])


def pass_over_copies(nearest: Tensor, radius: float, points: Tensor, there: Tensor | None) -> Tensor:
    """The distances to the nearest other client that is not one of a few within this radius.

    Liars that send the same are near each other, and as far from all others as one of them would be. A quarter of the
    clients are a cluster, however near to each other.
    """
    near, few = (nearest <= radius).nonzero()[:, 0], (len(points) - 1) // 4
    if few < 2 or not 1 < len(near) <= len(points) // 2:
        return nearest
    kept, whose = keep_one_of_each(points[near], None if there is None else there[near], radius, few)
    everybody = torch.arange(len(points), device=points.device)
    rest, place = everybody.index_copy(0, near, near[kept[whose]]).unique(return_inverse=True)
    return measure_isolation(points[rest], None if there is None else there[rest])[0][place]


def keep_one_of_each(points: Tensor, there: Tensor | None, radius: float, few: int) -> tuple[Tensor, Tensor]:
    """Of each few clients within this radius of each other the first, of more all; who stands for each: [kept], [m]."""
    counts = torch.ones_like(points[..., 0], dtype=torch.bool) if there is None else there
    everybody, some = torch.arange(len(points), device=points.device), max(1, AT_ONCE // counts.numel())
    parts = (_measure_apart(part, points.double(), counts) for part in everybody.split(some))
    alike = torch.cat([_average_points(*part) <= radius for part in parts])
    alike &= (alike.sum(1) <= few)[:, None]
    first = torch.where(alike.any(1), alike.to(torch.uint8).argmax(1).minimum(everybody), everybody)
    for _ in range(few):
        first = first[first]
    kept, whose = first.unique(return_inverse=True)
    return kept, whose


def _isolate(some: Tensor, points: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The same for some of the clients."""
    apart, own = _measure_apart(some, points, counts)
    others = some[:, None, None] != torch.arange(len(points), device=points.device)
    ordered = apart.where(others, torch.inf).sort(2).values
    nearest, upper = (_average_points(ordered[..., at, None], own)[:, 0] for at in (0, 3 * (len(points) - 2) // 4))
    return nearest, upper


def _average_points(apart: Tensor, own: Tensor) -> Tensor:
    """The mean over each client's own points [some, k, n], by their weights [some, k]: [some, n]."""
    return (own[..., None] * apart.where(own[..., None] > 0, 0.0)).sum(1)


def _measure_apart(some: Tensor, points: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """How far each point of some clients is from the nearest of each client [some, k, clients], and its weight."""
    apart = torch.cdist(points[some].flatten(0, 1), points.flatten(0, 1)).view(len(some), -1, *counts.shape)
    own = counts[some].double() / counts[some].sum(1, keepdim=True).clamp(min=1)
    return apart.where(counts, torch.inf).amin(3), own


def count_liars(share: float, contributors: int) -> int:
    """How many of a model's contributors may lie: the share, rounded up, and fewer than half of them."""
    return min(ceil(share * contributors), (contributors - 1) // 2)


def _check_share(liars: float) -> None:
    if not 0 <= liars < 0.5:
        raise ConfigError(f"liars must be a share from 0 to below 0.5, got {liars}")


def _device(models: Stack) -> torch.device:
    return next(iter(models.values())).device
