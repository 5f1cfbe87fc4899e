"""What is learnt by the size of errors: numbers."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from kinfed.errors import ConfigError
from kinfed.learning_tasks.learning_task import MOST, LearningTask
from kinfed.learning_tasks.own_metrics import OwnMetrics
from kinfed.quality import MAE, RMSE, Metric, drop_undefined
from kinfed.targets import Array, as_columns, as_numbers, is_known

FAR = 10.0  # times larger or smaller than 1: targets that a network reaches badly, samples that it learns from badly


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
