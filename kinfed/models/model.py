"""A classifier as pure functions of its weights."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kinfed.client import Batch
from kinfed.errors import ModelError
from kinfed.models.layers import Layers, layers_of
from kinfed.models.network import Network
from kinfed.models.on_gpu import has_kernels
from kinfed.models.stages import Stage, stages_of
from kinfed.params import Params


@dataclass(frozen=True)
class Model(Network):
    """A classifier into `classes` classes, trained by cross-entropy."""

    classes: int = 10

    def logits(self, params: Params, x: Tensor) -> Tensor:
        """Scores of the classes: [b, classes]."""
        return self.apply(params, x)

    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(output, batch.y, reduction="none")

    @cached_property
    def layers(self) -> Layers | None:
        """The network as plain layers, if it is that: such a network trains the quick way on a CPU."""
        return layers_of(self._training) if self._is_usual else None

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The network as stages, if it is that: such a network trains the quick way on a GPU."""
        return stages_of(self._training) if self._is_usual else ()

    def is_quick_on(self, device: torch.device) -> bool:
        """Whether it can train the quick way there."""
        if device.type == "cuda":
            return bool(self.stages) and has_kernels()
        return device.type == "cpu" and self.layers is not None

    @property
    def _is_usual(self) -> bool:
        own = type(self)
        return own.loss_of is Model.loss_of and own.forward is Network.forward and own.gradient is Network.gradient

    @property
    def way(self) -> str:
        """How clients train it side by side on a CPU, in words."""
        if self.refuses:
            return f"client by client: {self.refuses}"
        if self.layers is None:
            return "general: one vmap of autograd for a block"
        return "quick, one client after the other" if self.layers.alone else "quick, a block in the same products"

    def check(self, x: Tensor) -> None:
        """Raises unless the network takes such rows, each for itself, and its output fits the classes."""
        try:
            shape = tuple(self.logits(self.init(), x[:2]).shape)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ModelError(f"the model does not take rows of shape {tuple(x.shape[1:])}: {error}") from error
        if shape != (len(x[:2]), self.classes):
            raise ModelError(
                f"the model's output for 2 rows has shape {shape}, wanted (2, {self.classes}): "
                f"the data has {self.classes} classes"
            )
        if self.layers is None:  # plain layers do keep rows apart
            self.need_rows_apart(x)

    def parameters(self) -> int:
        """The number of weights."""
        return sum(w.numel() for w in self.init().values())


def hits(logits: Tensor, batch: Batch) -> Tensor:
    """Which real rows are classified rightly: [b] bool."""
    return (logits.argmax(1) == batch.y) & batch.mask & torch.isfinite(logits).all(1)
