"""Targets of samples: classes and tokens are int64 with -1 for none, numbers float32 with NaN for none."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.errors import DataError

Array = npt.NDArray[np.generic]


def as_classes(y: Array, name: str, most_dims: int = 1) -> Array:
    """Classes or tokens as int64; other types are refused, since rounding them would hide a mistake."""
    if y.dtype.kind not in "iub" or not 1 <= y.ndim <= most_dims:
        wanted = "integers [n]" if most_dims == 1 else "integers [n] or [n, length]"
        hint = (
            "; for numbers, set task.name = 'regression', in Python OwnSettings(task='regression')"
            if y.dtype.kind == "f"
            else ""
        )
        raise DataError(f"{name} is {y.dtype} {list(y.shape)}, wanted {wanted}{hint}")
    if y.size and int(y.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{name} has a label {int(y.max())}; number labels 0, 1, 2, …")
    return y.astype(np.int64)


def as_numbers(y: Array, name: str) -> Array:
    """Numbers as float32 [n] or [n, k], all finite."""
    if y.dtype.kind not in "iubf" or y.ndim not in (1, 2):
        raise DataError(f"{name} is {y.dtype} {list(y.shape)}, wanted numbers [n] or [n, k]")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite then
        numbers = y.astype(np.float32)
    if not np.isfinite(numbers).all():
        sick = np.flatnonzero(~np.isfinite(numbers.reshape(len(numbers), -1)).all(1))
        raise DataError(
            f"{len(sick)} of {len(y)} targets are a NaN or an infinity, the first is that of sample {sick[0]}; leave "
            "these samples out"
        )
    return numbers


def is_known(y: Tensor) -> Tensor:
    """Which samples have a target: [b] bool; -1 stands for no class, NaN for no number."""
    known = ~y.isnan() if y.is_floating_point() else y >= 0
    return known if y.dim() == 1 else known.flatten(1).all(1)


def require_targets(y: Tensor, what: str, or_none: bool = True) -> None:
    """Raise DataError where some samples have no target; with `or_none` all of them may have none."""
    unknown = (~is_known(y)).nonzero().flatten()
    if not len(unknown) or (or_none and len(unknown) == len(y)):
        return
    remedy = "leave them out" + (", or give no sample a label" if or_none else "")
    raise DataError(
        f"{what}: {len(unknown)} of {len(y)} have no label (-1, of numbers NaN), the first is sample "
        f"{int(unknown[0])}; {remedy}"
    )


def fill_unknown(y: Tensor) -> Tensor:
    """The targets, and 0 where there is none: what a loss can take."""
    return y.nan_to_num(0.0) if y.is_floating_point() else y.clamp(min=0)


def forget_targets(y: Tensor) -> Tensor:
    """As many samples without a target."""
    return torch.full_like(y, torch.nan if y.is_floating_point() else -1)


def as_columns(y: Tensor) -> Tensor:
    """Targets [b] or [b, k] as [b, k]."""
    return y[:, None] if y.dim() == 1 else y


def mark_labels(y: Tensor, mask: Tensor, classes: int) -> Tensor:
    """Whether a real sample has the label: bool [b, classes]; where targets are no classes, all have one: [b, 1]."""
    if y.is_floating_point() or y.dim() > 1:
        return mask[:, None]
    return (y[:, None] == torch.arange(classes, device=y.device)) & mask[:, None]
