"""What is learnt by cross-entropy: one class a sample, the next token, any number of labels."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid

from kinfed.errors import ConfigError, DataError
from kinfed.learning_tasks.learning_task import MOST, LearningTask
from kinfed.learning_tasks.own_metrics import OwnMetrics
from kinfed.quality import (
    ACCURACY,
    LABEL_ACCURACY,
    PERPLEXITY,
    Metric,
    area_under_curve,
    calibration_error,
    count_confusions,
    drop_undefined,
)
from kinfed.targets import Array, as_classes, as_numbers, is_known

MANY, FEW_EACH = 20, 5  # more classes than this, and fewer samples of each: they may be no classes


@dataclass(frozen=True)
class Classification(OwnMetrics, LearningTask):
    """One class a sample: cross-entropy; accuracy, macro-F1, AUROC, balanced accuracy, calibration error."""

    label_smoothing: float = 0.0  # share of the target that is spread evenly over all classes
    class_weights: tuple[float, ...] = ()  # factor of the loss of each class; none: 1 for all

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing must be a share from 0 to below 1, got {self.label_smoothing}")
        if any(not isfinite(weight) or weight < 0 for weight in self.class_weights):
            raise ConfigError(f"class_weights must be finite and at least 0, got {list(self.class_weights)}")

    def metric(self) -> Metric:
        return ACCURACY

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        each = cross_entropy(output, y, reduction="none", label_smoothing=self.label_smoothing)
        if not self.class_weights:
            return each
        weights = torch.stack([each.new_full((), weight) for weight in self.class_weights])  # no copy to the device
        return each * weights[y]

    def scores(self, output: Tensor, y: Tensor) -> Tensor:
        return (output.argmax(1) == y) & torch.isfinite(output).all(1)

    def compare(self, outputs: Tensor, y: Tensor) -> Tensor:
        return torch.stack([self.scores(output, y) for output in outputs])

    def predict(self, output: Tensor) -> Tensor:
        return output.softmax(1)

    def mix_outputs(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_logs(outputs.log_softmax(-1), shares)

    def measure(self, output: Tensor, y: Tensor) -> dict[str, float]:
        confusion = count_confusions(output, y)
        right, named, held = confusion.diagonal(), confusion.sum(0)[:-1], confusion.sum(1)
        recall, f1 = right / held, 2 * right / (named + held)
        ranked = output.double().log_softmax(1)  # logits of different samples differ by any shift
        areas = [area_under_curve(ranked[:, c], y == c) for c in range(output.shape[1])]
        found = {
            "macro_f1": f1[held > 0].mean(),
            "balanced_accuracy": recall[held > 0].mean(),
            "auroc": torch.tensor([area for area in areas if area is not None]).double().mean(),
            "calibration_error": calibration_error(output, y),
        }
        return super().measure(output, y) | drop_undefined(found)

    def measured(self) -> tuple[str, ...]:
        return ("accuracy", "macro_f1", "balanced_accuracy", "auroc", "calibration_error")

    def check_output(self, shape: tuple[int, ...], outputs: int) -> str:
        if len(self.class_weights) not in (0, outputs):
            return f"task.class_weights has {len(self.class_weights)} numbers, and the data has {outputs} classes"
        return super().check_output(shape, outputs)

    def doubt_targets(self, y: Tensor) -> str:
        labels = y[is_known(y)]
        classes = len(labels.unique())
        if len(labels) >= FEW_EACH * classes or classes <= MANY:
            return doubt_gaps(labels)
        return (
            f"{classes} classes in {len(labels)} samples: where targets are numbers, such as ages or prices, set "
            "task.name = regression"
        )

    def has_classes(self) -> bool:
        return True

    def is_plain(self) -> bool:
        is_own = type(self).losses is not Classification.losses  # of a subclass
        return not self.label_smoothing and not self.class_weights and not is_own


@dataclass(frozen=True)
class NextToken(OwnMetrics, LearningTask):
    """The next token, or that after each token of a sequence: cross-entropy; accuracy, perplexity."""

    main: Literal["accuracy", "perplexity"] = "accuracy"  # main metric

    def metric(self) -> Metric:
        return ACCURACY if self.main == "accuracy" else PERPLEXITY

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        each = cross_entropy(output.movedim(-1, 1), y, reduction="none")
        return each if each.dim() == 1 else each.flatten(1).mean(1)

    def scores(self, output: Tensor, y: Tensor) -> Tensor:
        if self.main == "perplexity":
            return self.losses(output, y)
        right = (output.argmax(-1) == y) & torch.isfinite(output).all(-1)
        return right if right.dim() == 1 else right.float().flatten(1).mean(1)

    def finish(self, mean: Tensor) -> Tensor:
        return perplexity_of(mean) if self.main == "perplexity" else mean

    def most(self) -> float:
        return MOST if self.main == "perplexity" else 1.0

    def predict(self, output: Tensor) -> Tensor:
        return output.softmax(-1)

    def mix_outputs(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_logs(outputs.log_softmax(-1), shares)

    def measure(self, output: Tensor, y: Tensor) -> dict[str, float]:
        loss = self.losses(output, y).double().mean()
        accuracy = NextToken("accuracy").scores(output, y).double().mean()
        return {"accuracy": float(accuracy), **drop_undefined({"perplexity": perplexity_of(loss)})}

    def measured(self) -> tuple[str, ...]:
        return ("accuracy", "perplexity")

    def targets(self, y: Array) -> Array:
        return as_classes(y, "y", most_dims=2)

    def make_targets(self, output: Tensor) -> Tensor:
        return torch.arange(output[..., 0].numel(), device=output.device).view(output.shape[:-1]) % output.shape[-1]

    def check_output(self, shape: tuple[int, ...], outputs: int) -> str:
        if len(shape) in (2, 3) and shape[0] == 2 and shape[-1] == outputs:
            return ""
        return f"wanted (2, {outputs}) or (2, length, {outputs}): the data has {outputs} tokens"

    def has_classes(self) -> bool:
        return True

    def is_plain(self) -> bool:
        return type(self).losses is NextToken.losses


@dataclass(frozen=True)
class MultiLabel(OwnMetrics, LearningTask):
    """Any number of labels a sample: binary cross-entropy; label accuracy, exact match, macro-F1, AUROC."""

    def metric(self) -> Metric:
        return LABEL_ACCURACY

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(output, y, reduction="none").mean(1)

    def scores(self, output: Tensor, y: Tensor) -> Tensor:
        return (((output > 0) == (y > 0.5)) & torch.isfinite(output)).float().mean(1)

    def compare(self, outputs: Tensor, y: Tensor) -> Tensor:
        return torch.stack([self.scores(output, y) for output in outputs])

    def predict(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def mix_outputs(self, outputs: Tensor, shares: Tensor) -> Tensor:
        return mix_logs(logsigmoid(outputs), shares) - mix_logs(logsigmoid(-outputs), shares)

    def measure(self, output: Tensor, y: Tensor) -> dict[str, float]:
        said, held = output > 0, y > 0.5
        f1 = 2 * (said & held).sum(0).double() / (said.sum(0) + held.sum(0))
        areas = [area_under_curve(output[:, c], held[:, c]) for c in range(output.shape[1])]
        found = {
            "exact_match": ((said == held) & torch.isfinite(output)).all(1).double().mean(),
            "macro_f1": f1[held.any(0)].mean(),
            "auroc": torch.tensor([area for area in areas if area is not None]).double().mean(),
        }
        return super().measure(output, y) | drop_undefined(found)

    def measured(self) -> tuple[str, ...]:
        return ("label_accuracy", "exact_match", "macro_f1", "auroc")

    def targets(self, y: Array) -> Array:
        numbers = as_numbers(y, "y")
        if numbers.ndim != 2 or not np.isin(numbers, (0, 1)).all():
            raise DataError(
                f"y is {y.dtype} {list(y.shape)}, wanted 0 or 1 for each label: [n, labels]; of a table, target names "
                "several columns"
            )
        return numbers

    def make_targets(self, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    def count_outputs(self, y: Array) -> int:
        return int(y.shape[1])


def perplexity_of(loss: Tensor) -> Tensor:
    """The perplexity of this mean loss; an infinite one counts as half of MOST, which float32 rounds up."""
    return loss.exp().clamp(max=MOST / 2)


def mix_logs(logs: Tensor, shares: Tensor) -> Tensor:
    """Logarithms of mixed probabilities, from those of each network [K, ...] and their shares [K]."""
    return (logs + shares.log().view(-1, *(1,) * (logs.dim() - 1))).logsumexp(0)


def doubt_gaps(labels: Tensor) -> str:
    """What is doubtful where most classes from 0 to the largest have no sample; empty: nothing."""
    classes, used = int(labels.max()) + 1 if len(labels) else 0, len(labels.unique())
    if classes <= MANY or 2 * used >= classes:
        return ""
    return (
        f"{classes - used} of {classes} classes (labels 0 to {classes - 1}) have no sample, and each is an output of "
        "the network: number labels 0, 1, 2, …, as by np.unique(y, return_inverse=True)[1], or give them as text"
    )
