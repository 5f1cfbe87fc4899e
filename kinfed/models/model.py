"""Models of a task, and encoders, as pure functions of their weights."""

import logging
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from kinfed.client import Batch
from kinfed.errors import ModelError
from kinfed.learning_tasks import FAR, Classification, LearningTask, OwnMetrics, check_task, is_built_in
from kinfed.models.batch_operations import BatchOperations
from kinfed.models.evaluation import in_evaluation
from kinfed.models.inputs import TOKENS, count_tokens
from kinfed.models.module_checks import NO_WEIGHTS
from kinfed.models.network import Gradient, GradientFn, Network
from kinfed.params import Params
from kinfed.ranges import SLACK
from kinfed.targets import is_known

log = logging.getLogger(__name__)
LOOKED_AT = 1000  # samples whose size is measured
TRIED = 100  # samples whose scores are looked at before the first round
NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # the first: batch and instance norms


@dataclass(frozen=True)
class Model(Network):
    """A network for a task; of a classifier, `classes` are its classes, of a regression the numbers it predicts."""

    classes: int = 10
    task: LearningTask = Classification()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_task(self.task)

    @property
    def target_groups(self) -> int:
        """Groups that signatures tell targets apart by: classes; for numbers one each, and one for what is left."""
        return self.classes if self.task.has_classes() else self.classes + 1

    def logits(self, params: Params, x: Tensor) -> Tensor:
        """Scores of the classes, or whatever the task's loss is of: [b, classes]."""
        return self.apply(params, x)

    def features(self, params: Params, x: Tensor) -> Tensor:
        """What the last layer that has weights takes, for samples x: [b, e]; the mean over places where it has some."""
        taken: list[Tensor] = []
        with self.borrow(self.evaluation_template) as module, in_evaluation():
            layer = module.get_submodule(layer_of(self.weights[-1]))
            hook = layer.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
            try:
                self.forward(module, params, x)
            finally:
                hook.remove()
        if not taken:
            raise ModelError(
                "the network uses the weights of its last layer, but does not call it, so it has no features: call "
                "the layer in forward"
            )
        return taken[-1].flatten(1, -2).mean(1) if taken[-1].dim() > 2 else taken[-1]

    def features_width(self) -> int:
        """Numbers of a sample's features."""
        layer = self.template.get_submodule(layer_of(self.weights[-1]))
        weights = cast(Tensor, layer.weight)  # no parameter where it is parametrised
        if weights.dim() != 2:
            raise ModelError(f"features are what a linear last layer takes, got weights of shape {list(weights.shape)}")
        return weights.shape[1]

    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        return self.task.losses(output, batch.y)

    def scores_of(self, output: Tensor, batch: Batch) -> Tensor:
        """What each real sample adds to the task's main metric: [b]."""
        scores = self.task.scores(output, batch.y)
        return scores & batch.mask if scores.dtype == torch.bool else torch.where(batch.mask, scores, 0.0)

    def check(self, x: Tensor) -> None:
        """Raises unless the network takes such samples, each independently, and its output fits the classes."""
        if (kind := (x[:2].shape, x.dtype)) not in self._checked:
            self._check(x[:2].clone())  # a forward pass may write into its samples
            self._checked.add(kind)

    @cached_property
    def _checked(self) -> set[tuple[torch.Size, torch.dtype]]:
        return set()

    def _check(self, x: Tensor) -> None:
        if not any(w.requires_grad for w in self.evaluation_template.parameters()):
            raise ModelError(NO_WEIGHTS)
        weights = self.init()
        try:
            output = self.logits(weights, x[:2])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            hint = explain_type(self.inputs(x[:1]).dtype, weights, f"{error}")
            raise ModelError(f"the model does not take samples of shape {tuple(x.shape[1:])}{hint}: {error}") from error
        if not isinstance(output, Tensor):
            raise ModelError(f"the network returns a {type(output).__name__}, wanted one tensor: return that alone")
        shape = tuple(output.shape)
        if reason := self.task.check_output((2, *shape[1:]), self.classes):
            raise ModelError(f"the model's output for 2 samples has shape {shape}, {reason}")
        if self.task.has_classes() and self.classes > 1 and are_probabilities(output):
            log.warning("the network's outputs sum to 1, as after a softmax, and the loss takes logits: leave it out")
        self.check_independence(x)
        self.check_ownership(x)
        if self.probe_evaluation(x).draws_always:
            log.warning(
                "the network draws random numbers when it is evaluated, too, which engines do not alike: have them "
                "drawn in training alone, as in F.dropout(x, p, self.training)"
            )
        if len(x) and (single := tuple(self.logits(weights, x[:1]).shape)) != (1, *shape[1:]):
            raise ModelError(
                f"the model's output for 1 sample has shape {single}, wanted {(1, *shape[1:])}: squeeze() drops the "
                "axis of the samples as well, squeeze(-1) and flatten(1) do not"
            )

    def check_sequences(self, x: Tensor, y: Tensor) -> None:
        """Raises unless a network for the token after each gets targets of each, and one for the next those alone."""
        if x.dtype != torch.int64 or y.is_floating_point():
            return
        shape = tuple(self.logits(self.init(), x[:2].clone()).shape)
        if y.dim() == 2 and len(shape) == 2:
            raise ModelError(
                f"the targets are the token after each of {y.shape[1]}, and the model's output for 2 samples has shape "
                f"{shape}, of the next alone: take char_lstm_each, a model of your own, or targets of the next token"
            )
        if y.dim() == 1 and len(shape) == 3:
            raise ModelError(
                f"the targets are the next token alone, and the model's output for 2 samples has shape {shape}: take "
                "char_lstm or char_cnn, or targets after each token"
            )

    def check_scores(self, x: Tensor, y: Tensor) -> None:
        """Raises where scores of a task of one's own are out of its range, or a metric of one's own fails.

        Replies with such scores would be refused; a metric is else called after the last round alone.
        """
        x, y = x[:TRIED], y[:TRIED]
        if not is_built_in(self.task) and bool((known := is_known(y)).any()):
            self.check_range(self.task.scores(self.logits(self.init(), x[known]), y[known]))
        if isinstance(self.task, OwnMetrics) and self.task.metrics and bool((known := is_known(y)).any()):
            self.task.measure_own(self.logits(self.init(), x[known]), y[known])

    def check_range(self, scores: Tensor) -> None:
        """Raises where one of these scores, or means of scores, is out of the range of a task of one's own."""
        low, high, least, most = float(scores.min()), float(scores.max()), self.task.least(), self.task.most()
        is_inside = low >= least - SLACK * abs(least) and high <= most + SLACK * abs(most)  # rounded
        if not is_built_in(self.task) and not is_inside:
            raise ModelError(
                f"{type(self.task).__name__} gives scores from {low:.4g} to {high:.4g}, and least() and most() allow "
                f"{least:.4g} to {most:.4g}: what lies outside is refused; let them return the range of scores"
            )

    def doubt_samples(self, x: Tensor, names: Sequence[str] = ()) -> str:
        """What is doubtful about the size of samples that are numbers; empty: nothing. Names are those of columns."""
        if not x.is_floating_point() or not len(x) or is_normalisation(self, self.weights[0]):
            return ""
        some = self.inputs(x[:: max(1, len(x) // LOOKED_AT)]).double().square()
        sizes = (some.nanmean(0) if some.dim() == 2 else some.nanmean()[None]).nan_to_num(0.0).sqrt()  # without gaps
        largest, column = float(sizes.max()), int(sizes.argmax())
        if 1 / FAR <= largest <= FAR or not largest:
            return ""
        is_table = some.dim() == 2
        name = f"'{names[column]}'" if len(names) == len(sizes) else str(column)
        return (
            f"samples are {largest:.2g} in size{f' (column {name})' if is_table else ''}, and a network learns from "
            "numbers of about 1: it may diverge, or learn slowly or nothing; scale "
            f"{'columns' if is_table else 'samples'} to mean 0 and deviation 1"
        )

    def parameters(self) -> int:
        """The number of weights."""
        return sum(w.numel() for w in self.init().values())


def explain_type(samples: torch.dtype, weights: Params, error: str) -> str:
    """What may be wrong with the type of samples that a network does not take; empty where nothing is known."""
    if not samples.is_floating_point:
        return ", which are token ids (take char_cnn or char_lstm; numbers of a table: data.options.tokens = false)"
    types = sorted({f"{w.dtype}" for w in weights.values()})
    if f"{samples}" in types or "type" not in error:
        return ""
    return f", which are {samples} where its weights are {', '.join(types)} (convert one of them)"


def are_probabilities(output: Tensor) -> bool:
    """Whether each row of an output holds numbers from 0 on that sum to 1; without a row nobody knows."""
    return len(output) > 0 and bool((output >= 0).all()) and bool(((output.sum(-1) - 1).abs() < 1e-5).all())


def is_last_layer(network: Network, name: str, layers: int = 1) -> bool:
    """Whether this weight, or statistic, belongs to one of the network's last so many layers that have weights."""
    order = list(dict.fromkeys(map(layer_of, network.weights)))
    return layer_of(name) in order[-layers:]


def is_normalisation(network: Network, name: str) -> bool:
    """Whether this weight, or statistic, belongs to a normalisation layer."""
    return isinstance(network.template.get_submodule(layer_of(name)), NORMALISATIONS)


def layer_of(name: str) -> str:
    """The layer that a weight belongs to; what parametrises a weight is a part of its layer."""
    owner, is_parametrised, _ = f".{name}".partition(".parametrizations.")
    return owner[1:] if is_parametrised else name.rpartition(".")[0]


def fix_weights(gradient: GradientFn, fixed: Mapping[str, Tensor]) -> GradientFn:
    """The gradient of some weights where the others are fixed; where there are none, the gradient itself."""
    return FixedGradient(gradient, fixed) if fixed else gradient


@dataclass(frozen=True)
class FixedGradient:
    """The gradient of some weights where the others are fixed."""

    gradient: GradientFn
    fixed: Mapping[str, Tensor]

    def __call__(self, params: Params, batch: Batch) -> Gradient:
        weights, buffers = self.gradient({**self.fixed, **params}, batch)
        free, moved = ({name: w for name, w in part.items() if name in params} for part in (weights, buffers))
        return Gradient(free, moved)


@dataclass(frozen=True)
class EncoderNetwork(Network, ABC):
    """A module with a part `encoder`, whose output is a sample's embedding; it takes token ids as frequencies."""

    def inputs(self, x: Tensor) -> Tensor:
        return count_tokens(x) if x.dtype in TOKENS else super().inputs(x).float()  # whatever the model's precision

    def embed(self, params: Params, x: Tensor, alone: bool = False) -> Tensor:
        """Samples in latent space: [b, e]. Needs the encoder's weights alone.

        With `alone` BatchNorm normalises each sample by its own statistics over positions, not by running ones.
        """
        own = {name.removeprefix("encoder."): w for name, w in encoder_of(params).items()}
        return self.in_parts(partial(self._embed, alone), own, x)

    def _embed(self, alone: bool, own: Params, x: Tensor) -> Tensor:
        operations = BatchOperations(alone=True) if alone else in_evaluation()
        with self.borrow(self.evaluation_template) as module, operations:
            embedding: Tensor = functional_call(module.get_submodule("encoder"), own, (self.inputs(x),))
            return embedding


@dataclass(frozen=True)
class AutoEncoder(EncoderNetwork):
    """A module with parts `encoder` and `decoder`, trained to give its input back (mean squared error)."""

    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        return (output - self.inputs(batch.x)).square().flatten(1).mean(1)

    def check(self, x: Tensor, latent: int) -> None:
        """Raises ModelError unless it embeds such samples as so many numbers, and gives them back in their shape."""
        weights = self.init()
        got = [tuple(each(weights, x).shape) for each in (self.embed, self.apply)]
        wanted = [(len(x), latent), tuple(self.inputs(x).shape)]
        for part, shape, needed in zip(("encoder", "whole"), got, wanted, strict=True):
            if shape != needed:
                raise ModelError(
                    f"the auto-encoder's output ({part}) for {len(x)} samples has shape {shape}, wanted {needed}"
                )


@dataclass(frozen=True)
class SupervisedAutoEncoder(EncoderNetwork):
    """Trained by λ · mean squared error + (1 - λ) · the task's loss; its output is all pixels, then all logits."""

    classes: int = 10
    reconstruction: float = 0.1  # λ; 0: a classifier alone (CLF), 1: an auto-encoder alone (AE)
    task: LearningTask = Classification()

    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        images, loss = self.inputs(batch.x).flatten(1), torch.zeros_like(output[:, 0])
        if self.reconstruction > 0:
            error = (output[:, : images.shape[1]] - images).square().mean(1)
            loss = loss + self.reconstruction * error
        if self.reconstruction < 1:
            loss = loss + (1 - self.reconstruction) * self.task.losses(output[:, -self.classes :], batch.y)
        return loss


def encoder_of(params: Params) -> Params:
    """The encoder's share of a network's weights."""
    return {name: w for name, w in params.items() if name.startswith("encoder.")}
