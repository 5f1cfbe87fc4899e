"""The contract of what a model learns.

The main metric is what tables, reports and model selection compare; a client sends its sum over test samples. All
metrics of a task (`measure`) are of the whole test set of a client, after the last round.
"""

from abc import abstractmethod
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from kinfed.errors import ConfigError
from kinfed.quality import Metric
from kinfed.targets import Array, as_classes

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
