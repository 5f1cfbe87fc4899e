"""Clusters that share a model: pairs that do better by it on held-out samples; models that are alike."""

from math import inf, nextafter

import torch
from torch import Tensor

from kinfed.clustering.hierarchy import Dendrogram
from kinfed.methods.cluster_models import ClusterModels
from kinfed.methods.held_out import Evidence
from kinfed.params import Stack, count, each_leaf, flatten, mix, one_hot, select


def pair_nearest(models: Stack, chosen: Tensor) -> Tensor:
    """Pairs of the chosen models, model 0 left out, nearest first: each one's partner, or itself. [models]"""
    names, partners = chosen[chosen > 0].unique(), torch.arange(count(models), device=chosen.device)
    points = flatten(select(models, names)).float()
    distances = torch.cdist(points, points).fill_diagonal_(torch.inf)
    for _ in range(len(names) // 2):
        a, b = divmod(int(distances.argmin()), len(names))
        partners[names[a]], partners[names[b]] = names[b], names[a]
        distances[[a, b]] = distances[:, [a, b]] = torch.inf
    return partners


def merge_pairs(served: ClusterModels, partners: Tensor, sizes: Tensor) -> Stack:
    """The mean of each model and its partner ([models]), weighted by their clients' samples ([clients])."""
    own = torch.eye(len(partners), device=sizes.device)
    weights = (own + own[partners]) * (served.contributors * sizes).sum(1).clamp(min=1)
    return mix(weights / weights.sum(1, keepdim=True), served.models)


def share_models(
    served: ClusterModels, partners: Tensor, evidence: Evidence, sizes: Tensor
) -> tuple[ClusterModels, Tensor]:
    """Pairs that do better together, none of the two worse, share the mean of their models from now on.

    Also which model each has now: [models].
    """
    alone = torch.arange(len(partners), device=sizes.device)
    fits, better = evidence.is_no_worse(1), evidence.pool(partners).prefers_merged()
    better = better & fits & fits[partners]
    names = torch.where(better, partners.minimum(alone), alone)
    models = each_leaf(
        lambda both, own: torch.where(better.view(-1, *[1] * (own.dim() - 1)), both, own),
        merge_pairs(served, partners, sizes), served.models,
    )  # fmt: skip
    labels = torch.where(served.assignment >= 0, names[served.assignment], served.assignment)
    return served.serve(labels, models), names


def name_alike(models: int, compared: Tensor, accuracy: Tensor, most: float) -> Tensor:
    """For each model the first of those it merges with, itself where with none: [models].

    Of the models that are `compared`, accuracy[i, j] is that of i on the clients of j; complete linkage merges up to
    `most` by max(aᵢᵢ - aᵢⱼ, aⱼⱼ - aⱼᵢ, 0).
    """
    names = torch.arange(models, device=accuracy.device)
    if len(compared) < 2:
        return names
    worse = accuracy.diagonal()[:, None] - accuracy
    apart = torch.maximum(worse, worse.T).clamp(min=0).fill_diagonal_(0).double()
    groups = Dendrogram.of(compared, apart, "complete", nextafter(most, inf)).clusters()
    for group in groups.unique():
        names[compared[groups == group]] = compared[groups == group].min()
    return names


def merge_named(served: ClusterModels, names: Tensor, uses: Tensor) -> tuple[ClusterModels, Tensor]:
    """One model for each different name ([models]), their mean weighted by use ([models]), and how each was used."""
    kept, number = names.unique(return_inverse=True)
    if len(kept) == len(names):
        return served, uses
    groups = one_hot(number, len(kept))
    weights = groups * uses.clamp(min=1)
    models = mix(weights / weights.sum(1, keepdim=True), served.models)
    labels = torch.where(served.assignment >= 0, number[served.assignment], -1)
    return served.serve(labels, models), groups @ uses
