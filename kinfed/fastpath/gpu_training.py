"""Mini-batch SGD of several clients at once on a GPU, in kernels of our own.

Nothing in it waits for the GPU or asks it for a number, so a CUDA graph can capture it, whole or a few steps at a time.
Clients of uneven size hardly ever train for the same number of steps twice, so a graph of a whole training would seldom
be replayed; one of a few steps, replayed as often as needed, always is.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from kinfed.cuda_graphs import CudaGraphs
from kinfed.fastpath.stages import SGD, Schedule, ShapedStage, Stage, shape_stages
from kinfed.kernels.layout import Image, PackedWeight, PaddedImages, find_anchor, precision, uses_pooled_gradient
from kinfed.params import Params, Stack
from kinfed.registry import is_installed

AT_ONCE = 2**26  # numbers of images that are prepared at once
GRAPH_STEPS = 16, 64  # steps in a graph: of short trainings, and of long ones
LONG = 128  # steps
WORD = 8  # bytes
MOST = 4  # trainings whose buffers are kept; each holds weights and activations of all its lanes


@cache
def has_kernels() -> bool:
    """Whether Triton is there, which comes with torch for GPUs."""
    return is_installed("triton")


class StagedNetwork(Protocol):
    """A network that is a sequence of stages."""

    @property
    def stages(self) -> tuple[Stage, ...]: ...

    @property
    def kind(self) -> Hashable: ...  # what networks share that compute alike

    def inputs(self, x: Tensor, keys: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LayerBuffers:
    """The activations of a stage and their gradients."""

    shaped: ShapedStage
    x: PaddedImages  # its input; that of the first stage is only a placeholder of its shape
    pooled: PaddedImages  # the next one's input
    argmax: Tensor  # which of its window a pooling took
    output_gradient: PaddedImages
    pooled_gradient: PaddedImages  # the same, unless a pooling or a flattening comes between
    input_is_relu: bool

    @property
    def input(self) -> PaddedImages:
        """Its input, as its layer takes it."""
        return self.x.flat() if self.shaped.stage.is_linear else self.x

    @property
    def uses_pooled_gradient(self) -> bool:
        """Whether its weight's gradient is made of that of what was pooled."""
        stage = self.shaped.stage
        return uses_pooled_gradient(stage, stage.size**2 * self.shaped.input[2])


def allocate_buffers(shaped: list[ShapedStage], like: Tensor) -> list[LayerBuffers]:
    """Buffers of each stage of a network, for lanes and batches as in `like`."""
    buffers: list[LayerBuffers] = []
    inputs = [PaddedImages.of(like, one.input, one.stage.pad) for one in shaped]
    last = PaddedImages.of(like, shaped[-1].pooled)
    for i, (one, pooled) in enumerate(zip(shaped, [*inputs[1:], last], strict=True)):
        pools = one.stage.pool > 1
        argmax = like.new_empty(*like.shape, *one.pooled, dtype=torch.uint8) if pools else like
        gradient = PaddedImages.of(like, one.output, one.margin if i else 0) if one is not shaped[-1] else pooled
        is_same = not pools and (gradient.pad == 0 or not shaped[i + 1].stage.is_linear)
        after = gradient if is_same else PaddedImages.of(like, one.pooled)
        is_relu = i > 0 and shaped[i - 1].stage.relu
        buffers.append(LayerBuffers(one, inputs[i], pooled, argmax, gradient, after, is_relu))
    return buffers


class StepBatches(NamedTuple):
    """What all lanes need for some steps."""

    pick: Tensor  # [steps, lanes, b] indices into the pool
    y: Tensor  # [steps, lanes, b]
    sample_weight: Tensor  # [steps, lanes, b] in the batch's mean
    lr: Tensor  # [steps, lanes]; zero: the lane does not move
    key: Tensor  # [steps, lanes]

    def pad_to(self, steps: int) -> "StepBatches":
        """With steps at the end that move nothing, so that there are so many."""
        return StepBatches(*(pad(t, (0, 0) * (t.dim() - 1) + (0, steps - len(t))) for t in self))

    def pad_steps(self, multiple: int) -> "StepBatches":
        """The same, so that there is a multiple of so many."""
        return self.pad_to(-(-len(self.lr) // multiple) * multiple)

    def split_steps(self, steps: int) -> list["StepBatches"]:
        """So many steps at a time; the last part may be shorter."""
        return [StepBatches(*parts) for parts in zip(*(t.split(steps) for t in self), strict=True)]


@dataclass
class TrainingState:
    """A network's weights in all lanes, and the buffers that their training needs."""

    network: StagedNetwork
    x: Tensor  # the pool
    weights: list[PackedWeight]
    buffers: list[LayerBuffers]
    lookahead: list[PackedWeight]  # where the inner step leads, from which the real one is taken; empty: none

    @classmethod
    def of(cls, training: "Training") -> "TrainingState":
        """The state of a training before its first step; it takes the starts over."""
        pull = training.pull if training.terms else None
        weights = [
            PackedWeight.at(start, training.momentum, beside, pull)
            for start, beside in zip_longest(training.starts, training.terms)
        ]
        lookahead = [PackedWeight.at(w.clone()) for w in training.starts if training.looks_ahead]
        like = training.starts[0].new_empty(len(training.starts[0]), training.batches.pick.shape[2])
        return cls(training.network, training.x, weights, allocate_buffers(training.shaped, like), lookahead)

    def reset(self, training: "Training") -> None:
        """Restarts from other weights, where the buffers are."""
        for weight, start, beside in zip_longest(self.weights, training.starts, training.terms):
            weight.reset(start, beside, training.pull)

    def train(self, batches: StepBatches) -> None:
        """Takes these steps."""
        images, weights = self._images(batches.pick, batches.key), self.weights
        for step, (y, sample_weight, lr, keys) in enumerate(zip(*batches[1:], strict=True)):
            if self.lookahead and step % 2 == 0:
                for ahead, weight in zip(self.lookahead, weights, strict=True):
                    ahead.now.copy_(weight.now)
                sgd_step(self.lookahead, self.lookahead, self.buffers, images[step], y, sample_weight, lr, keys)
            else:
                sgd_step(self.lookahead or weights, weights, self.buffers, images[step], y, sample_weight, lr, keys)
                weights = [weight.swap() for weight in weights]
        self.weights = weights  # not before all went well: a capture that fails leaves everything as it was

    def train_on(self, batches: Params) -> Params:
        """The same as a function that a CUDA graph can capture."""
        self.train(StepBatches(**batches))
        return {}

    def _images(self, pick: Tensor, keys: Tensor) -> Tensor:
        """The samples of some steps for the first layer: [steps, lanes, b, height, width, channels], padded."""
        samples = self.network.inputs(gather(self.x, pick.flatten()), keys.flatten())
        images = frame_images(samples, self.buffers[0].shaped)
        return images.view(*pick.shape, *images.shape[1:])


def frame_images(samples: Tensor, first: ShapedStage) -> Tensor:
    """Samples [n, ...] as the first layer takes them: [n, height, width, channels], with zeros around."""
    images = samples.reshape(-1, first.input[2] - first.extra, *first.input[:2]).permute(0, 2, 3, 1)
    return pad(images, (0, first.extra, *(first.stage.pad,) * 4)).contiguous()


def gather(pool: Tensor, pick: Tensor) -> Tensor:
    """These samples of the pool, in words of eight bytes where they consist of such.

    There are fewer of them than bytes, so that a pool of billions of bytes still has indices of 32 bits.
    """
    size, begin = pool[:1].numel() * pool.element_size(), pool.storage_offset() * pool.element_size()
    if not size or size % WORD or begin % WORD or not pool.is_contiguous():
        return pool[pick]
    words = pool.view(len(pool), -1).view(torch.int64).index_select(0, pick)
    return words.view(pool.dtype).view(len(pick), *pool.shape[1:])


def sgd_step(
    at: list[PackedWeight], weights: list[PackedWeight], buffers: list[LayerBuffers], images: Tensor, y: Tensor,
    sample_weight: Tensor, lr: Tensor, keys: Tensor,
) -> None:  # fmt: skip
    """One SGD step of every lane's weights by the gradient at `at`, mostly the weights themselves.

    The images are [lanes, b, height, width, channels], padded.
    """
    from kinfed.kernels import products as kernels  # Triton's own import is heavy, and needs a GPU

    layers = [replace(buffers[0], x=PaddedImages(images, buffers[0].x.pad)), *buffers[1:]]
    factors: list[Tensor | None] = []  # of each layer's dropout
    for layer, here in zip(layers, at, strict=True):
        stage = layer.shaped.stage
        if stage.pool > 1:
            kernels.convolve_and_pool(stage, layer.input, here.now, layer.pooled, layer.argmax, lr)
        else:
            kernels.convolve(stage, layer.input, here.now, layer.pooled, lr)
        factors.append(_apply_drop(layer, keys))
    kernels.cross_entropy_gradient(layers[-1].pooled.images, y, sample_weight)
    for i, layer in reversed(list(enumerate(layers))):
        stage, before = layer.shaped.stage, layers[i - 1] if i else None
        if layer.uses_pooled_gradient and not before:
            pass  # nothing needs the gradient of its output
        elif stage.pool > 1:
            kernels.unpool(stage, layer.pooled_gradient, layer.argmax, layer.output_gradient)
        elif layer.pooled_gradient is not layer.output_gradient:
            layer.output_gradient.fill(layer.pooled_gradient)
        if before:
            onto = before.pooled_gradient.flat() if stage.is_linear else before.pooled_gradient
            relu = layer.input if layer.input_is_relu else None
            kernels.convolve_back(stage, layer.output_gradient, at[i].now, onto, relu, lr)
            if (kept := factors[i - 1]) is not None:
                before.pooled_gradient.inside.mul_(kept)
        if layer.uses_pooled_gradient:
            kernels.update_pooled_weights(stage, layer.input, layer.pooled_gradient, layer.argmax, weights[i], lr)
        else:
            kernels.update_weights(stage, layer.input, layer.output_gradient, weights[i], lr)


def _apply_drop(layer: LayerBuffers, keys: Tensor) -> Tensor | None:
    """The factors of a layer's dropout, by which what goes on has been multiplied: [lanes, b, h, w, c]."""
    drop, images = layer.shaped.stage.drop, layer.pooled.inside
    if drop is None:
        return None
    lanes, b, high, wide, channels = images.shape
    factors = drop.draw(keys, (lanes * b, channels, high, wide), images.dtype)
    kept = factors.view(lanes, b, *factors.shape[1:]).permute(0, 1, 3, 4, 2)
    images.mul_(kept)
    return kept


@dataclass(frozen=True)
class Training:
    """A training of some lanes, its weights and batches as the kernels want them."""

    network: StagedNetwork
    x: Tensor  # the pool
    shaped: list[ShapedStage]
    starts: list[Tensor]  # of each stage: [lanes, ...]
    terms: list[Tensor]  # beside the gradients: what each lane is pulled to, or its shift; empty: no lane has one
    pull: Tensor  # [lanes]; zero: the term is a shift
    batches: StepBatches
    taken: Tensor  # steps that each lane takes: [lanes]; the rest move nothing
    momentum: float
    looks_ahead: bool

    @property
    def kind(self) -> Hashable:
        """What trainings share that run the same kernels, but for the lanes and their terms."""
        own = self.x.shape[1:], self.x.dtype, self.batches.pick.shape[2], self.momentum, self.looks_ahead
        return self.network.kind, *own

    @property
    def steps_at_once(self) -> int:
        """Steps whose samples are prepared at once; even: pairs stay together."""
        return max(2, AT_ONCE // (self.batches.pick[0].numel() * self.x.shape[1:].numel()) // 2 * 2)

    def end(self, state: TrainingState, steps: int) -> list[Tensor]:
        """The weights of all lanes after so many steps, padding included: of each stage [lanes, ...]."""
        return [weight.end(steps - self.taken) for weight in state.weights]

    def run(self) -> list[Tensor]:
        """The weights of all lanes after all steps."""
        state = TrainingState.of(self)
        for part in self.batches.split_steps(self.steps_at_once):
            state.train(part)
        return self.end(state, len(self.batches.lr))


@dataclass
class StepGraphs:
    """Trainings whose buffers are kept, by all that they depend on, and the CUDA graphs of a few steps of each."""

    states: dict[Hashable, TrainingState] = field(default_factory=dict)
    graphs: CudaGraphs = field(default_factory=lambda: CudaGraphs(MOST))

    def run(self, training: Training) -> list[Tensor]:
        """The weights of all lanes after all steps, a few steps at a time."""
        steps, lanes, _ = training.batches.pick.shape
        at_once = min(training.steps_at_once, GRAPH_STEPS[steps > LONG])
        key = training.kind, bool(training.terms), precision(), training.x.data_ptr(), lanes, at_once
        batches = training.batches.pad_steps(at_once)
        self._prepare(key, training)
        for part in batches.split_steps(at_once):
            self.graphs.run(key, self.states[key].train_on, part._asdict())
        return training.end(self.states[key], len(batches.lr))

    def _prepare(self, key: Hashable, training: Training) -> None:
        """Sets the state of this key to a training's start; it is a new one if there is none."""
        state = self.states.pop(key, None)
        if state:
            state.reset(training)
        self.states[key] = state or TrainingState.of(training)
        for old in list(self.states)[:-MOST]:
            del self.states[old]
            self.graphs.discard(old)

    def clear(self) -> None:
        """Gives all memory back."""
        self.states.clear()
        self.graphs.clear()


def train_lanes(
    network: StagedNetwork, schedule: Schedule, lr: Tensor, start: Stack, shift: Stack, sgd: SGD,
    graphs: StepGraphs | None = None,
) -> Stack:  # fmt: skip
    """The weights of all lanes after all their batches; an empty batch moves nothing.

    To every gradient the shift is added, if there is one. With an inner learning rate a batch is a
    pair of mini-batches: the gradient of the second is taken after a step at that rate on the first.
    """
    shaped = shape_stages(network.stages, image_of(schedule.x))
    starts, terms = [one.pack(start) for one in shaped], [one.pack(shift) for one in shaped if shift]
    if sgd.pull:
        terms = [find_anchor(*each, sgd.pull, sgd.anchor) for each in zip_longest(starts, terms)]
    batches, taken = by_step(schedule, lr, sgd.inner_lr), schedule.mask.any(2).sum(1)
    pull, looks_ahead = starts[0].new_full(taken.shape, sgd.pull), bool(sgd.inner_lr)
    training = Training(network, schedule.x, shaped, starts, terms, pull, batches, taken, sgd.momentum, looks_ahead)
    packed = graphs.run(training) if graphs else training.run()
    ends = [one.unpack(weight) for one, weight in zip(shaped, packed, strict=True)]
    return {name: next(end[name] for end in ends if name in end) for name in start}


def image_of(samples: Tensor) -> Image:
    """The shape of these samples [n, ...] as images; what is no image is one pixel of many channels."""
    shape = samples.shape[1:]
    return (shape[1], shape[2], shape[0]) if len(shape) == 3 else (1, 1, shape.numel())


def by_step(schedule: Schedule, lr: Tensor, inner_lr: float) -> StepBatches:
    """All batches, the steps first; with an inner learning rate the two halves of a batch are steps of their own."""
    rates = lr * schedule.mask.any(2)
    if inner_lr:
        schedule = schedule.split_pairs()
        live = schedule.mask.any(2).unflatten(1, (-1, 2))
        rates = torch.stack([inner_lr * live[..., 0], lr * live[..., 1]], 2).flatten(1)
    whole = schedule.pick, schedule.y[schedule.pick].clamp(min=0), schedule.sample_weights(), rates, schedule.keys
    return StepBatches(*(t.transpose(0, 1).contiguous() for t in whole))
