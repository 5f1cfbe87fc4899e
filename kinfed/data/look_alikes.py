"""Look-alikes: new clients that resemble a training client, to find out whether a method would place them beside it.

After REPA's robustness: label counts of the original times a random number, rows drawn from the dataset's test rows,
the original's shifts applied to them. They join after training, have no test rows and are never scored.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kinfed.data.population import LATER, NO_SAMPLES, Population, Role, View
from kinfed.data.repointing import UNCHANGED, with_variants
from kinfed.data.roles import RoleSettings
from kinfed.data.sampling import Index
from kinfed.data.views import see
from kinfed.errors import DataError

FEW = 8  # a look-alike with so few rows is drawn again (the author's number)
TRIES = 100


def with_look_alikes(
    population: Population, plain: Population, settings: RoleSettings, rng: np.random.Generator
) -> Population:
    """The population with look-alikes of its training clients behind them; `plain` is the same before any shift."""
    roles = [population.role(client) for client in range(population.clients)]
    originals = [client for client, role in enumerate(roles) if role.trains and role.joins < LATER]
    twice = [client for client in originals for _ in range(settings.look_alikes)]
    rows = [alike_rows(plain, client, settings.look_alike_scale, rng) for client in twice]
    nowhere = torch.full((len(twice),), -1)
    bigger = replace(
        population,
        train=population.train + tuple(rows),
        test=population.test + (NO_SAMPLES,) * len(twice),
        roles=(*roles, *(Role(LATER, holdout=True, look_alike_of=client) for client in twice)),
        true_clusters=None if population.true_clusters is None else torch.cat([population.true_clusters, nowhere]),
        views=population.views and population.views + tuple(population.views_of(client) for client in twice),
    )
    return seen_alike(bigger, population.clients, rng)


def seen_alike(population: Population, first: int, rng: np.random.Generator) -> Population:
    """The population whose clients from the `first` one on have their rows as their views show them."""
    newcomers = [population.views_of(client) for client in range(first, population.clients)]
    chains: list[tuple[View, ...]] = [views for views in dict.fromkeys(newcomers) if views]
    streams = rng.spawn(len(chains))
    variants = [UNCHANGED] * first + [chains.index(views) if views else UNCHANGED for views in newcomers]
    return with_variants(population, variants, lambda v, x, y: see(chains[v], x, y, streams[v]), tests=False)


def alike_rows(plain: Population, client: int, scale: tuple[float, float], rng: np.random.Generator) -> Tensor:
    """Rows of the held-out ones, each once, with about the label shares of this client."""
    labels = plain.y[plain.held_out].numpy()
    held = np.bincount(plain.y[last_rows(plain, client)].numpy(), minlength=plain.classes)
    counts = alike_counts(held, np.bincount(labels, minlength=plain.classes), scale, rng)
    if not counts.sum():
        raise DataError(
            f"a look-alike of client {client} would have no rows: {held.sum()} times {scale[1]:g} of the "
            f"{len(labels)} held-out rows; raise roles.look_alike_scale, or set roles.look_alikes = 0"
        )
    places = [rng.choice(np.flatnonzero(labels == label), n, replace=False) for label, n in enumerate(counts) if n]
    return plain.held_out[torch.from_numpy(np.sort(np.concatenate(places)))]


def alike_counts(held: Index, available: Index, scale: tuple[float, float], rng: np.random.Generator) -> Index:
    """Rows of each label: those held times a number from `scale`, all fewer where a label has not enough."""
    usable = np.where(available > 0, held, 0)
    most = min((available[usable > 0] / usable[usable > 0]).tolist(), default=0.0)
    for number in (*rng.uniform(*scale, TRIES), scale[1]):  # the largest, where none of the draws was enough
        counts: Index = np.round(min(number, most) * usable).astype(np.int64)
        if counts.sum() > FEW:
            break
    return counts


def last_rows(population: Population, client: int) -> Tensor:
    """The rows that a client trains on after all changes."""
    rows = population.train[client]
    for change in sorted(population.changes, key=lambda change: change.round):
        for changed, train in zip(change.clients.tolist(), change.train, strict=True):
            rows = train if changed == client else rows
    return rows
