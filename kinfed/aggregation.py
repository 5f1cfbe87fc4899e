"""Aggregation is one matrix product: FedAvg is one row, clusters are blocks, FLT is its related-clients matrix."""

import torch
from torch import Tensor

from kinfed.params import Params, Stack, each_leaf, put, rows


def mix(weights: Tensor, models: Stack) -> Stack:
    """Weighted sums of models: row m of the result is Σₖ weights[m, k] · models[k]."""
    return each_leaf(
        lambda w: (
            (weights.to(w.dtype) @ w.flatten(1)).unflatten(1, w.shape[1:]) if w.dim() > 1 else weights.to(w.dtype) @ w
        ),
        models,
    )


def average(models: Stack, sizes: Tensor) -> Params:
    """The mean of all models, weighted by `sizes`."""
    return rows(mix((sizes / sizes.sum())[None], models), 0)


def mix_heard(models: Stack, weights: Tensor, replies: Stack) -> Stack:
    """Models replaced by the weighted mean of the replies they listen to; one that hears nobody stays as it is."""
    heard = (weights.sum(1) > 0).nonzero()[:, 0]
    if not len(heard):
        return models
    listening = weights[heard]
    return put(models, heard, mix(listening / listening.sum(1, keepdim=True), replies))


def one_hot(labels: Tensor, groups: int) -> Tensor:
    """Membership as a matrix: [groups, len(labels)], 1 where the label is the row."""
    return (labels[None] == torch.arange(groups, device=labels.device)[:, None]).float()
