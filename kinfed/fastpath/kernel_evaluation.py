"""Evaluation on a GPU of clients that have a plain network each, or compare several: by the kernels of training.

Elsewhere what each window of a convolution sees is gathered first, which takes several times as long; and a client that
compares models has a pass for each of them, which waits for the launches of small kernels.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import cast

import torch
from torch import Tensor
from torch.func import vmap

from kinfed.fastpath.gpu_training import StagedNetwork, frame_images, image_of
from kinfed.fastpath.parsed_networks import ParsedNetwork, parse, supports
from kinfed.fastpath.stages import ShapedStage, shape_stages
from kinfed.kernels.layout import PaddedImages
from kinfed.models import Model, Network
from kinfed.models.evaluation import VMAP, find_transforms, needs_gradient
from kinfed.params import Params, Stack, count, lanes_first, select

LARGEST = 2**27  # numbers of an activation that are computed at once


def compute_logits(model: Model, params: Params, x: Tensor) -> Tensor:
    """The model's output for samples x, in evaluation mode; by kernels inside a vmap whose lanes have own weights."""
    if not _is_for_kernels(model, params, x):
        return model.logits(params, x)
    model.check_weights(params, model.evaluation_template)
    lane = (model.inputs(x)[None], *(w[None] for w in params.values()))
    apply = cast("Callable[..., Tensor]", _Evaluate.apply)
    return apply(parse(model), tuple(params), *lane)[0]


def compute_each(model: Model, models: Stack, x: Tensor) -> Tensor:
    """The outputs of each model for all samples: [models, n, classes]."""
    if count(models) == 1:
        return model.logits(select(models, 0), x)[None]
    outputs: Tensor = vmap(partial(compute_logits, model), in_dims=(0, None))(models, x)
    return outputs


def has_evaluation_kernels(model: Model, x: Tensor) -> bool:
    """Whether there are kernels that evaluate several of these models side by side on samples like these."""
    own = type(model)
    is_usual = own.logits is Model.logits and own.apply is Network.apply and own._evaluate is Network._evaluate
    return x.is_cuda and x.dtype in (torch.uint8, torch.float32) and is_usual and supports(model, x.device)


def _is_for_kernels(model: Model, params: Params, x: Tensor) -> bool:
    """Whether this is inside of vmaps alone, the innermost of which has weights of each lane, all in float32."""
    if not has_evaluation_kernels(model, x) or find_transforms() != {VMAP} or needs_gradient(x, *params.values()):
        return False
    return all(w.dtype == torch.float32 and torch._C._functorch.is_batchedtensor(w) for w in params.values())


class _Evaluate(torch.autograd.Function):
    """Samples [lanes, b, ...] and weights [lanes, ...] to outputs [lanes, b, classes]; a vmap adds lanes.

    Where it has samples of its own for weights that all share, they are further samples of each lane.
    """

    @staticmethod
    def forward(parsed: ParsedNetwork, names: tuple[str, ...], x: Tensor, *weights: Tensor) -> Tensor:
        return compute_outputs(parsed, x, dict(zip(names, weights, strict=True)))

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Nothing is kept: nobody differentiates an evaluation."""

    @staticmethod
    def vmap(
        info: object, dims: tuple[int | None, ...], parsed: ParsedNetwork, names: tuple[str, ...], *lane: Tensor
    ) -> tuple[Tensor, int]:
        apply = cast("Callable[..., Tensor]", _Evaluate.apply)
        if all(dim is None for dim in dims[3:]):
            x = lane[0].movedim(cast("int", dims[2]), 1)  # [lanes, clients, b, ...]
            return apply(parsed, names, x.flatten(1, 2), *lane[1:]).unflatten(1, x.shape[1:3]), 1
        own = lanes_first(info, lane, dims[2:])
        return apply(parsed, names, *(t.flatten(0, 1) for t in own)).unflatten(0, own[0].shape[:2]), 0


def compute_outputs(network: StagedNetwork, x: Tensor, models: Stack) -> Tensor:
    """What each lane's model makes of its samples [lanes, b, ...], scaled already: [lanes, b, classes]."""
    shaped = shape_stages(network.stages, image_of(x[0]))
    of_lane = x.shape[1] * max(math.prod(image) for one in shaped for image in (one.input, one.output))
    at_once = max(1, LARGEST // max(1, of_lane))
    weights = zip(*(one.pack(models).split(at_once) for one in shaped), strict=True)
    parts = [_compute_lanes(shaped, *part) for part in zip(x.split(at_once), weights, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _compute_lanes(shaped: Sequence[ShapedStage], samples: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The same of lanes that are computed at once, by their packed weights."""
    images = frame_images(samples.flatten(0, 1), shaped[0])
    x = PaddedImages(images.view(*samples.shape[:2], *images.shape[1:]), shaped[0].stage.pad)
    for one, after, weight in zip_longest(shaped, shaped[1:], weights):
        x = _apply_stage(one, x, weight, after.stage.pad if after else 0)
    return x.images.flatten(2)


def _apply_stage(shaped: ShapedStage, x: PaddedImages, weight: Tensor, around: int) -> PaddedImages:
    """What goes on from a stage, with so many zeros around."""
    from kinfed.kernels import products as kernels  # Triton's own import is heavy, and needs a GPU

    stage, like = shaped.stage, x.images[:, :, 0, 0, 0]
    y, every = PaddedImages.of(like, shaped.pooled, around), weight.new_ones(len(weight))
    if stage.pool > 1:
        where = like.new_empty(*like.shape, *shaped.pooled, dtype=torch.uint8)
        kernels.convolve_and_pool(stage, x, weight, y, where, every)
    else:
        kernels.convolve(stage, x.flat() if stage.is_linear else x, weight, y, every)
    return y
