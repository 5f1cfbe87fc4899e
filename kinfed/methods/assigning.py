"""Who is served which model: first states, and states in which clients were given relatives or a cluster."""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from kinfed.aggregation import mix, one_hot
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import ConfigError
from kinfed.federation import Federation
from kinfed.keys import base_key
from kinfed.methods.cluster_models import GroupState, Stale
from kinfed.models import Model
from kinfed.params import Stack, each_leaf, put, repeat, select, stack

S = TypeVar("S", bound=GroupState)


def first_state(model: Model, stale: Stale, fed: Federation, clusters: int = 1) -> GroupState:
    """The same first model for every cluster; all who train are served the first cluster's."""
    check_clusters(clusters, fed)
    first = select(inits(model, 1, fed.device), 0)
    labels = torch.full((fed.count,), -1, device=fed.device).index_fill(0, fed.clients, 0)
    slots = repeat(first, fed.count) if stale == "last_local" else {}
    return GroupState(
        repeat(first, clusters), labels, one_hot(labels, clusters).bool(), slots, Dendrogram.none(fed.device)
    )


def check_clusters(clusters: int, fed: Federation) -> None:
    """Raise ConfigError where there are more clusters than clients that train, or none."""
    if not 1 <= clusters <= len(fed.clients):
        raise ConfigError(f"clusters must be 1..{len(fed.clients)}, the clients that train, got {clusters}")


def inits(model: Model, number: int, device: torch.device, attempt: int = 0) -> Stack:
    """Independent first models, others at each attempt; the very first is the one that every method starts from."""
    seeds = [base_key("init", model.seed, i, attempt) % 2**32 for i in range(number)]
    first = [model.seed, *seeds[1:]] if attempt == 0 else seeds
    return each_leaf(lambda w: w.to(device), stack([model.init(seed) for seed in first]))


def seat(state: S, who: Tensor, related: Tensor | NeighbourSets | Dendrogram, fed: Federation) -> S:
    """The state in which `who` are related, or were merged, like this; other training clients stay by themselves."""
    if isinstance(related, Dendrogram):
        return seat(replace(state, tree=related), who, NeighbourSets.of_clusters(related.clusters()), fed)
    sets = (
        related.to(fed.device)
        if isinstance(related, NeighbourSets)
        else NeighbourSets.of_matrix(related.to(fed.device))
    )
    alone = fed.clients[torch.isin(fed.clients, who, invert=True)]
    rows = torch.zeros(len(sets.rows) + len(alone), fed.count, dtype=torch.bool, device=fed.device)
    further = len(sets.rows) + torch.arange(len(alone), device=fed.device)
    rows[: len(sets.rows), who] = sets.rows
    rows[further, alone] = True
    rows &= torch.isin(fed.everyone, fed.clients)  # nobody hears a client that does not train
    return reseat(state, NeighbourSets(rows, torch.cat([sets.whose, further])), torch.cat([who, alone]), fed.sizes)


def placed(state: S, newcomers: Tensor, answered: Tensor, labels: Tensor, fed: Federation) -> S:
    """The state in which those who answered have these labels, and the other newcomers that of the largest group."""
    joined = state.labels.index_fill(0, newcomers, -1).index_copy(0, answered, labels)
    silent = newcomers[torch.isin(newcomers, answered, invert=True)]
    joined = joined.index_copy(0, silent, one_hot(joined, len(state.hears)).sum(1).argmax().repeat(len(silent)))
    trains = torch.isin(newcomers, fed.clients)
    hears = state.hears.index_copy(1, newcomers, one_hot(joined[newcomers], len(state.hears)).bool() & trains)
    return holding(replace(state, labels=joined, hears=hears), newcomers)


def holding(state: S, newcomers: Tensor) -> S:
    """The state in which newcomers hold, until they train, the model they are served."""
    if not state.slots:
        return state
    return replace(state, slots=put(state.slots, newcomers, select(state.models, state.labels[newcomers])))


def gathered(state: S, clusters: Tensor, sizes: Tensor) -> S:
    """The state with one model for each of these groups ([clients]; -1: in none), which all its clients are served.

    It is the model that hears just this group, where there is one, and else the mean of what its clients were served.
    """
    names = clusters[clusters >= 0].unique()
    hears = clusters == names[:, None]
    weights = (hears * sizes).float() @ one_hot(state.labels, len(state.hears)).T  # [groups, G]
    for cluster, heard in enumerate(hears):
        same = (state.hears == heard).all(1)
        weights[cluster] = torch.where(same.any(), same.float(), weights[cluster])
    models = mix(weights / weights.sum(1, keepdim=True), state.models)
    labels = torch.searchsorted(names, clusters).where(clusters >= 0, -1)
    return replace(state, models=models, labels=labels, hears=hears, slots={})


def reseat(state: S, related: NeighbourSets, placed: Tensor, sizes: Tensor) -> S:
    """The state with one model per different set of relatives of the placed clients.

    A model starts as the mean of what its clients were served before; where all are new, of what their relatives are
    served, and without relatives of what everybody is.
    """
    hears, served = torch.unique(related.rows, dim=0, return_inverse=True)
    labels = torch.full_like(state.labels, -1).index_copy(0, placed, served[related.whose])
    before = one_hot(state.labels, len(state.hears)).T * sizes[:, None]  # [clients, G before]
    weights = before.sum(0).expand(len(hears), -1)
    for nearer in (hears.float() @ before, one_hot(labels, len(hears)) @ before):
        weights = torch.where(nearer.sum(1, keepdim=True) > 0, nearer, weights)
    models = mix(weights / weights.sum(1, keepdim=True), state.models)
    newcomers = placed[state.labels[placed] < 0]
    return holding(replace(state, models=models, labels=labels, hears=hears), newcomers)
