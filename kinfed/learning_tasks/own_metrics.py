"""Metrics of the user's own, beside those of a task."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from kinfed.errors import ConfigError
from kinfed.quality import KINDS, drop_undefined, is_number_of_run
from kinfed.registry import import_function


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
