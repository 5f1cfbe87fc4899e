"""Roles: which clients never train, have no labels, come later, leave, or resemble another client (look-alikes)."""

from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kinfed.checks import at_least, fraction
from kinfed.data.partitions.split import Index
from kinfed.data.population import LATER, NO_SAMPLES, UNCHANGED, Population, Role, View, copy_variants
from kinfed.data.shifts import see
from kinfed.errors import ConfigError, DataError
from kinfed.targets import forget_targets


class RoleColumns(NamedTuple):
    """What roles say, column by column, for questions that are asked in every round."""

    roles: tuple[Role, ...]
    turns: tuple[int, ...]  # the rounds in which somebody comes or goes, in their order
    joins: Tensor  # [clients], the round each enters
    leaves: Tensor  # [clients], the round from which on each is gone
    trains: Tensor  # [clients] bool
    labelled: Tensor
    real: Tensor  # not a look-alike

    @classmethod
    def of(cls, roles: tuple[Role, ...]) -> "RoleColumns":
        """The columns of these roles."""
        real = [role.look_alike_of is None for role in roles]
        traits = [role.trains for role in roles], [role.labelled for role in roles], real
        joins, leaves = (torch.tensor([getattr(role, name) for role in roles]) for name in ("joins", "leaves"))
        turns = tuple(torch.cat([joins, leaves]).unique().tolist())
        return cls(roles, turns, joins, leaves, *(torch.tensor(t) for t in traits))


@dataclass(frozen=True)
class RoleSettings:
    """Fractions of the clients that have a role other than training from the start, and clients made to be placed."""

    holdout: float = 0.0  # share of the clients that never train
    unlabelled: float = 0.0  # share that have no labels, and never train
    late: float = 0.0  # share that enter at join_round
    join_round: int = LATER  # LATER: after training
    leaving: float = 0.0  # share that train from the start and are gone from leave_round on
    leave_round: int = LATER  # LATER: nobody leaves
    look_alikes: int = 0  # of every training client, to measure robustness
    look_alike_scale: tuple[float, float] = (0.2, 1.4)  # their samples, as shares of the original's
    unlabelled_twins: bool = False  # each training client once more, after training: its test samples without labels

    def __post_init__(self) -> None:
        fraction(holdout=self.holdout, unlabelled=self.unlabelled, late=self.late, leaving=self.leaving)
        at_least(1, join_round=self.join_round, leave_round=self.leave_round)
        at_least(0, look_alikes=self.look_alikes)
        if not 0 < self.look_alike_scale[0] <= self.look_alike_scale[1] < inf:
            raise ConfigError(f"look_alike_scale must be two shares 0 < low <= high, got {self.look_alike_scale}")
        total = self.holdout + self.unlabelled + self.late + self.leaving
        if total > 1:
            raise ConfigError(f"holdout + unlabelled + late + leaving must be at most 1, got {total:g}")
        if self.leaving and self.leave_round == LATER:
            raise ConfigError(f"leaving is {self.leaving:g}: set leave_round, the round from which on they are gone")

    def counts(self, clients: int) -> tuple[int, ...]:
        """How many clients are holdout, unlabelled and late, and how many leave."""
        return tuple(round(share * clients) for share in (self.holdout, self.unlabelled, self.late, self.leaving))


def assign_roles(population: Population, settings: RoleSettings, rng: np.random.Generator) -> Population:
    """The population with roles, spread evenly over its planted clusters."""
    counts = settings.counts(population.clients)
    if sum(counts) == 0:
        return population
    if sum(counts) >= population.clients:
        raise ConfigError(
            f"{sum(counts)} of {population.clients} clients would not train from start to end; leave at least one"
        )
    kinds = (
        Role(holdout=True),
        Role(labelled=False),
        Role(joins=settings.join_round),
        Role(leaves=settings.leave_round),
    )
    roles = [Role()] * population.clients
    order = iter(spread_over_clusters(population, rng))
    for kind, count in zip(kinds, counts, strict=True):
        for _ in range(count):
            roles[next(order)] = kind
    return without_labels(replace(population, roles=tuple(roles)))


def spread_over_clusters(population: Population, rng: np.random.Generator) -> list[int]:
    """All clients in a random order of which every stretch has each cluster's share."""
    clusters = (
        np.zeros(population.clients, np.int64) if population.true_clusters is None else population.true_clusters.numpy()
    )
    shuffled = rng.permutation(population.clients)
    place = np.empty(population.clients)
    for cluster in np.unique(clusters):
        members = shuffled[clusters[shuffled] == cluster]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    ordered: Index = shuffled[np.argsort(place[shuffled], kind="stable")]
    return [int(client) for client in ordered]


def without_labels(population: Population) -> Population:
    """The population whose unlabelled clients train on copies of their samples that have no label."""
    variants = [UNCHANGED if role.labelled else 0 for role in population.roles]
    return copy_variants(population, variants, lambda _, x, y: (x, forget_targets(y)), tests=False)


def add_unlabelled_twins(population: Population) -> Population:
    """The population with each training client once more, after training: its test samples, without labels (FLUX)."""
    if population.changes:
        raise ConfigError("unlabelled_twins are of clients whose samples stay the same: leave change and drift out")
    roles = [population.role(client) for client in range(population.clients)]
    originals = [client for client, role in enumerate(roles) if role.trains and role.joins < LATER]
    tests, clusters = tuple(population.test[client] for client in originals), population.true_clusters
    copied, first = torch.cat(tests), len(population.y)
    unlabelled = (first + torch.arange(len(copied))).split([len(samples) for samples in tests])
    return replace(
        population,
        x=torch.cat([population.x, population.x[copied]]),
        y=torch.cat([population.y, forget_targets(population.y[copied])]),
        origin=torch.cat([population.origins, population.origins[copied]]),
        train=population.train + tuple(unlabelled),
        test=population.test + tests,
        roles=(*roles, *[Role(LATER, labelled=False)] * len(originals)),
        true_clusters=None if clusters is None else torch.cat([clusters, clusters[originals]]),
        views=population.views and population.views + tuple(population.views_of(client) for client in originals),
    )


FEW = 8  # a look-alike with so few samples is drawn again (the author's number)
TRIES = 100


def add_look_alikes(
    population: Population, plain: Population, settings: RoleSettings, rng: np.random.Generator
) -> Population:
    """The population with look-alikes of its training clients behind them; `plain` is the same before any shift."""
    roles = [population.role(client) for client in range(population.clients)]
    originals = [client for client, role in enumerate(roles) if role.trains and role.joins < LATER]
    twice = [client for client in originals for _ in range(settings.look_alikes)]
    samples = [alike_samples(plain, client, settings.look_alike_scale, rng) for client in twice]
    nowhere = torch.full((len(twice),), -1)
    bigger = replace(
        population,
        train=population.train + tuple(samples),
        test=population.test + (NO_SAMPLES,) * len(twice),
        roles=(*roles, *(Role(LATER, holdout=True, look_alike_of=client) for client in twice)),
        true_clusters=None if population.true_clusters is None else torch.cat([population.true_clusters, nowhere]),
        views=population.views and population.views + tuple(population.views_of(client) for client in twice),
    )
    return apply_own_views(bigger, population.clients, rng)


def apply_own_views(population: Population, first: int, rng: np.random.Generator) -> Population:
    """The population whose clients from the `first` one on have their samples as their views show them."""
    look_alikes = [population.views_of(client) for client in range(first, population.clients)]
    chains: list[tuple[View, ...]] = [views for views in dict.fromkeys(look_alikes) if views]
    streams = rng.spawn(len(chains))
    variants = [UNCHANGED] * first + [chains.index(views) if views else UNCHANGED for views in look_alikes]
    return copy_variants(population, variants, lambda v, x, y: see(chains[v], x, y, streams[v]), tests=False)


def alike_samples(plain: Population, client: int, scale: tuple[float, float], rng: np.random.Generator) -> Tensor:
    """Samples of the held-out ones, each once, with about the label shares of this client."""
    if not plain.has_classes:
        raise DataError("look-alikes have the label shares of a client, and the targets are no classes; leave them out")
    labels = plain.y[plain.held_out].numpy()
    held = np.bincount(plain.y[last_samples(plain, client)].numpy(), minlength=plain.classes)
    counts = alike_counts(held, np.bincount(labels, minlength=plain.classes), scale, rng)
    if not counts.sum():
        raise DataError(
            f"a look-alike of client {client} would have no samples: {held.sum()} times {scale[1]:g} of the "
            f"{len(labels)} held-out samples; raise roles.look_alike_scale, or set roles.look_alikes = 0"
        )
    places = [rng.choice(np.flatnonzero(labels == label), n, replace=False) for label, n in enumerate(counts) if n]
    return plain.held_out[torch.from_numpy(np.sort(np.concatenate(places)))]


def alike_counts(held: Index, available: Index, scale: tuple[float, float], rng: np.random.Generator) -> Index:
    """Samples of each label: those held times a number from `scale`, all fewer where a label has not enough."""
    usable = np.where(available > 0, held, 0)
    most = min((available[usable > 0] / usable[usable > 0]).tolist(), default=0.0)
    for number in (*rng.uniform(*scale, TRIES), scale[1]):  # the largest, where none of the draws was enough
        counts: Index = np.round(min(number, most) * usable).astype(np.int64)
        if counts.sum() > FEW:
            break
    return counts


def last_samples(population: Population, client: int) -> Tensor:
    """The samples that a client trains on after all changes."""
    samples = population.train[client]
    for change in sorted(population.changes, key=lambda change: change.round):
        for changed, train in zip(change.clients.tolist(), change.train, strict=True):
            samples = train if changed == client else samples
    return samples
