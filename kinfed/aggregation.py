"""Aggregation is one matrix product: FedAvg is one row, clusters are blocks, FLT is its related-clients matrix."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kinfed.params import Params, Stack, count, each_leaf, put, select, to_matrix


def mix(weights: Tensor, *stacks: Stack) -> Stack:
    """Weighted sums of models: row m is Σₖ weights[m, k] · models[k], where the models are those of all stacks."""
    parts = weights.split([count(stack) for stack in stacks], 1)
    return each_leaf(lambda *leaves: _mixed(parts, leaves), *stacks)


def _mixed(weights: Sequence[Tensor], leaves: Sequence[Tensor]) -> Tensor:
    """The same for one tensor of each stack; they are many and large, so none is copied."""
    total = weights[0].to(leaves[0].dtype) @ to_matrix(leaves[0])
    for part, leaf in zip(weights[1:], leaves[1:], strict=True):
        total.addmm_(part.to(leaf.dtype), to_matrix(leaf))
    return total.reshape(len(total), *leaves[0].shape[1:])


def average(models: Stack, sizes: Tensor) -> Params:
    """The mean of all models, weighted by `sizes`."""
    return select(mix((sizes / sizes.sum())[None], models), 0)


def mix_contributors(models: Stack, weights: Tensor, *replies: Stack) -> Stack:
    """Models replaced by the weighted mean of their contributors' ones; one without contributors stays as it is."""
    updated = (weights.sum(1) > 0).nonzero()[:, 0]
    if not len(updated):
        return models
    some = weights[updated]
    means = mix(some / some.sum(1, keepdim=True), *replies)
    return means if len(updated) == len(weights) else put(models, updated, means)


def one_hot(labels: Tensor, clusters: int) -> Tensor:
    """Membership as a matrix: [clusters, len(labels)], 1 where the label is the row."""
    return (labels[None] == torch.arange(clusters, device=labels.device)[:, None]).float()
