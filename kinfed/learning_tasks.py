"""What is learnt: the loss, the predictions and the metrics of classification, regression, next tokens and labels.

A model has a task. The main metric is what tables, reports and model selection compare; a client sends its sum over
test samples. All metrics of a task (`measure`) are of the whole test set of a client, after the last round.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid

from kinfed.errors import ConfigError, DataError
from kinfed.quality import (
    ACCURACY,
    KINDS,
    LABEL_ACCURACY,
    MAE,
    PERPLEXITY,
    RMSE,
    Metric,
    area_under_curve,
    calibration_error,
    count_confusions,
    drop_undefined,
    is_number_of_run,
)
from kinfed.registry import import_function
from kinfed.targets import Array, as_classes, as_columns, as_numbers, is_known

MANY, FEW_EACH = 20, 5  # more classes than this, and fewer samples of each: they may be no classes
FAR = 10.0  # times larger or smaller than 1: targets that a network reaches badly, samples that it learns from badly
MOST = 1e30  # of a sum of (squared) errors in any unit; one that is not finite counts as this


@runtime_checkable
class LearningTask(Protocol):
    """What a model learns. A task of one's own inherits from it, as a frozen dataclass, and so has all defaults."""

    @abstractmethod
    def metric(self) -> Metric:
        """The main metric."""

    @abstractmethod
    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample: [b]. A pure tensor program."""

    @abstractmethod
    def scores(self, output: Tensor, y: Tensor) -> Tensor:
        """What each sample adds to the main metric: [b], from `least` to `most`. A pure tensor program."""

    def finish(self, mean: Tensor) -> Tensor:
        """The main metric from the mean of the scores."""
        return mean

    def least(self) -> float:
        """The least score that a sample can have."""
        return 0.0

    def most(self) -> float:
        """The largest score that a sample can have."""
        return 1.0

    def compare(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How good each candidate's output [candidates, b, ...] is beside the first: [candidates, b], 0 to 1."""
        losses = torch.stack([self.losses(output, y) for output in outputs])
        return 0.5 + 0.5 * ((losses[:1] - losses) / (losses[:1].abs() + losses.abs())).nan_to_num(0.0)

    def predict(self, output: Tensor) -> Tensor:
        """What a user is given for an output: [b, ...]."""
        return output

    def mix_outputs(self, outputs: Tensor, shares: Tensor) -> Tensor:
        """The output of a mixture of networks [K, b, ...] with these shares [K]: its prediction is theirs, mixed."""
        return torch.einsum("k,k...->...", shares, outputs)

    def measure(self, output: Tensor, y: Tensor) -> dict[str, float]:
        """All metrics of a test set, by name; those that it does not define are left out."""
        mean = self.scores(output, y).double().mean()
        return {self.metric().name: float(self.finish(mean))}

    def measured(self) -> tuple[str, ...]:
        """The names of all metrics that `measure` may find."""
        return (self.metric().name,)

    def targets(self, y: Array) -> Array:
        """Targets as the pool holds them; DataError where they cannot be this task's."""
        return as_classes(y, "y")

    def scale_targets(self, y: Tensor) -> Tensor:
        """Targets in the units that the network learns them in."""
        return y

    def make_targets(self, output: Tensor) -> Tensor:
        """Some targets that fit this output, for a dry run: [b], or numbers as the output [b, k] has them."""
        if self.targets(np.zeros(2, np.int64)).dtype.kind == "f":
            return torch.zeros_like(output[:, 0] if output.shape[1] == 1 else output)
        return torch.arange(len(output), device=output.device) % output.shape[-1]

    def doubt_targets(self, y: Tensor) -> str:
        """Why models may learn these targets badly, and what to do; empty where nothing is known."""
        return ""

    def count_outputs(self, y: Array) -> int:
        """How many outputs a model needs for these targets: its classes, or numbers."""
        return int(y.max()) + 1 if y.size else 1

    def check_output(self, shape: tuple[int, ...], outputs: int) -> str:
        """Why an output of this shape for 2 samples does not fit; empty where it does."""
        return "" if shape == (2, outputs) else f"wanted (2, {outputs}): the data has {outputs} classes"

    def has_classes(self) -> bool:
        """Whether a target is one of some classes: whether clients' labels can be counted and compared."""
        return False

    def is_plain(self) -> bool:
        """Whether the loss is plain cross-entropy of one class a sample, which the fast path knows."""
        return False


@dataclass(frozen=True)
class OwnMetrics:
    """What a task has beside its own metrics: functions of the user's, each of a client's outputs and targets."""

    metrics: tuple[str, ...] = field(default=(), kw_only=True)  # more, each your module:function(output, y) -> number

    def __post_init__(self) -> None:
        for path in self.metrics:
            if ":" not in path:
                raise ConfigError(f"metrics: wanted package.module:function, got '{path}'")
            import_function(path, "metric")
        known: tuple[str, ...] = getattr(self, "measured", tuple)()
        names = [*self.metric_names, *known, *(f"{name}_{kind}" for name in known for kind in KINDS)]
        if twice := [name for name in self.metric_names if names.count(name) > 1 or is_number_of_run(name)]:
            raise ConfigError(f"metrics: '{twice[0]}' is the name of another metric; rename the function")

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the functions: what the metrics are called in summary.json and in tables."""
        return tuple(path.partition(":")[2] for path in self.metrics)

    def measure_own(self, output: Tensor, y: Tensor) -> dict[str, float]:
        """The user's metrics of a test set, by name; those that it does not define (None, NaN) are left out."""
        found = {}
        for name, path in zip(self.metric_names, self.metrics, strict=True):
            value = _call_metric(path, output, y)
            if value is not None:
                found[name] = value
        return drop_undefined(found)


def _call_metric(path: str, output: Tensor, y: Tensor) -> Tensor | None:
    """What the user's function gives, one number; ConfigError where it fails, or gives anything else."""
    wanted = f"metric '{path}' must be a function (output, y) -> number or None"
    try:
        value = cast("Callable[[Tensor, Tensor], float | None]", import_function(path, "metric"))(output, y)
    except Exception as error:  # code of the user's own may raise anything
        shapes = f"output {list(output.shape)} and y {list(y.shape)}"
        raise ConfigError(f"{wanted}; called with {shapes} it failed: {type(error).__name__}: {error}") from error
    if value is None:
        return None
    try:
        number = torch.as_tensor(value, dtype=torch.double)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{wanted}, got a {type(value).__name__}") from error
    if number.numel() != 1:
        raise ConfigError(f"{wanted}, got {number.numel()} numbers")
    return number.reshape(())


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
class Regression(OwnMetrics, LearningTask):
    """Numbers: squared or absolute error; MAE, RMSE, R²."""

    loss: Literal["squared", "absolute", "huber"] = "squared"  # of which gradients are
    main: Literal["mae", "rmse"] = "mae"  # main metric
    mean: float = 0.0  # the network's output times std plus mean is the prediction
    std: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isfinite(self.mean) and isfinite(self.std) and self.std > 0):
            raise ConfigError(f"wanted a finite mean and a std above 0, got {self.mean} and {self.std}")

    def metric(self) -> Metric:
        return MAE if self.main == "mae" else RMSE

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        error = (output - as_columns(self.scale_targets(y))).abs()
        match self.loss:
            case "absolute":
                each = error
            case "huber":
                each = torch.where(error < 1, error.square() / 2, error - 0.5)
            case _:
                each = error.square()
        return each.mean(1)

    def scores(self, output: Tensor, y: Tensor) -> Tensor:
        error = (self.predict(output) - as_columns(y)).abs()
        return (error if self.main == "mae" else error.square()).mean(1)

    def finish(self, mean: Tensor) -> Tensor:
        return mean if self.main == "mae" else mean.sqrt()

    def most(self) -> float:
        return MOST

    def predict(self, output: Tensor) -> Tensor:
        return output * self.std + self.mean

    def measure(self, output: Tensor, y: Tensor) -> dict[str, float]:
        wanted, said = as_columns(y).double(), self.predict(output).double()
        squares, spread = (said - wanted).square(), (wanted - wanted.mean(0)).square().sum(0)
        explained = (1 - squares.sum(0) / spread)[spread > 0].mean()
        found = {"mae": (said - wanted).abs().mean(), "rmse": squares.mean().sqrt(), "r2": explained}
        return drop_undefined(found)

    def measured(self) -> tuple[str, ...]:
        return ("mae", "rmse", "r2")

    def targets(self, y: Array) -> Array:
        return as_numbers(y, "y")

    def scale_targets(self, y: Tensor) -> Tensor:
        return (y - self.mean) / self.std

    def doubt_targets(self, y: Tensor) -> str:
        numbers = y[is_known(y)].double()
        size = float(((numbers - self.mean) / self.std).square().mean().sqrt()) if len(numbers) else 1.0
        if 1 / FAR <= size <= FAR or not size:
            return ""
        mean, std = float(numbers.mean()), float(numbers.std(correction=0)) or 1.0
        return (
            f"targets are {size:.2g} in size beside the network's outputs, which are about 1: it may diverge or learn "
            f"slowly; set task.mean = {mean:.3g} and task.std = {std:.3g} (errors stay in the targets' units)"
        )

    def count_outputs(self, y: Array) -> int:
        return 1 if y.ndim == 1 else int(y.shape[1])

    def check_output(self, shape: tuple[int, ...], outputs: int) -> str:
        return "" if shape == (2, outputs) else f"wanted (2, {outputs}): the data has {outputs} numbers a sample"


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


TASKS: dict[str, type[LearningTask]] = {
    "classification": Classification,
    "regression": Regression,
    "next_token": NextToken,
    "multi_label": MultiLabel,
}


def doubt_gaps(labels: Tensor) -> str:
    """What is doubtful where most classes from 0 to the largest have no sample; empty: nothing."""
    classes, used = int(labels.max()) + 1 if len(labels) else 0, len(labels.unique())
    if classes <= MANY or 2 * used >= classes:
        return ""
    return (
        f"{classes - used} of {classes} classes (labels 0 to {classes - 1}) have no sample, and each is an output of "
        "the network: number labels 0, 1, 2, …, as by np.unique(y, return_inverse=True)[1], or give them as text"
    )


def check_task(task: object) -> None:
    """Raises ConfigError unless this is a task with a metric."""
    name = type(task).__name__
    if not isinstance(task, LearningTask):
        raise ConfigError(f"task: wanted a LearningTask, as Classification(), got a {name}")
    if not isinstance(found := task.metric(), Metric):
        raise ConfigError(
            f"task '{name}': metric() must return a Metric, as in Metric('pinball', 'pinball loss', "
            f"lower_is_better=True) of kinfed.quality, got a {type(found).__name__}"
        )


def is_built_in(task: LearningTask) -> bool:
    """Whether the task is kinfed's own, whose losses are never negative."""
    return type(task) in TASKS.values()
