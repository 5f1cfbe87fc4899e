"""Look-alikes: new clients that resemble a training client, to find out whether a method assigns both to one cluster.

After REPA's robustness: label counts of the original times a random number, samples of the dataset's test set with
the original's shifts. They join after training, have no test samples and are never scored.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kinfed.data.population import LATER, NO_SAMPLES, UNCHANGED, Population, Role, View, copy_variants
from kinfed.data.roles import RoleSettings
from kinfed.data.sampling import Index
from kinfed.data.shifts import see
from kinfed.errors import DataError

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
