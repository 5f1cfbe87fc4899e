"""A user's arrays, whatever they are made of, as numpy arrays that fit together; what does not is a DataError."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from kinfed.data.sampling import Index
from kinfed.errors import DataError

Pixels = npt.NDArray[np.uint8]


def channels_first(x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Images [n, h, w], [n, h, w, c] or [n, c, h, w] as [n, c, h, w]; c is 1 or 3."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return x
    raise DataError(f"images have shape {list(x.shape)}, wanted [n, height, width] or [n, height, width, 1 or 3]")


Array = npt.ArrayLike | torch.Tensor
Plain = npt.NDArray[np.generic]


def array_of(values: Array, name: str) -> Plain:
    """The values as a numpy array; DataError where they are none, as with samples of different lengths."""
    if isinstance(values, torch.Tensor):
        own = values.detach().cpu()
        return (own.float() if own.dtype == torch.bfloat16 else own).numpy()
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"{name}: wanted an array, every sample of the same shape, got {type(values).__name__}"
        ) from error


def stack_arrays(samples: Iterable[Array], name: str) -> Plain:
    """Samples one by one as one array."""
    arrays = [array_of(sample, name) for sample in samples]
    check_alike(arrays, name)
    return np.stack(arrays)


def check_alike(samples: Sequence[Plain], name: str) -> None:
    """Raise DataError unless samples have one shape, and all are bytes or none are: bytes are 0..255, others seldom."""
    shapes = sorted({sample.shape for sample in samples})
    if len(shapes) > 1:
        raise DataError(f"{name} must have one shape, got {' and '.join(str(list(shape)) for shape in shapes[:3])}")
    kinds = sorted({str(sample.dtype) for sample in samples})
    if len(kinds) > 1 and "uint8" in kinds:
        raise DataError(f"{name} must be of one kind, uint8 images or other numbers, got {' and '.join(kinds)}")


def as_features(x: Array) -> Plain:
    """uint8 images with channels first; anything else as float32."""
    array = array_of(x, "x")
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return channels_first(array).copy()  # the user may go on changing theirs
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_) or array.ndim == 0:
        raise DataError(f"x is {array.dtype} {list(array.shape)}, wanted numbers of one shape a sample")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite then
        return array.astype(np.float32)


def check_finite(x: Plain) -> None:
    """Raise DataError where samples have a NaN or an infinity in them."""
    if x.dtype == np.uint8 or not x.size or (np.isfinite(x.min()) and np.isfinite(x.max())):  # no table as large as x
        return
    sick = np.flatnonzero([not np.isfinite(sample).all() for sample in x])
    raise DataError(f"{len(sick)} of {len(x)} samples of x have a NaN or an infinity, the first is sample {sick[0]}")


def as_labels(y: Array) -> Index:
    """Labels as int64; other types are refused, since rounding them would hide a mistake."""
    array = array_of(y, "y")
    if array.dtype.kind not in "iub" or array.ndim != 1:
        raise DataError(f"y is {array.dtype} {list(array.shape)}, wanted integers [n]")
    return array.astype(np.int64)


def as_owners(client: Array) -> Index:
    """Whose each sample is, as the place of its client's id among all ids in their order."""
    array = array_of(client, "client")
    if array.ndim != 1:
        raise DataError(f"client has shape {list(array.shape)}, wanted [n]: one id a sample")
    lost = sum(one is None or one != one for one in array.tolist()) if array.dtype == object else (array != array).sum()
    if lost:
        raise DataError(f"client has no id for {lost} of {len(array)} samples, wanted one for each")
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.int64).reshape(-1)
    except TypeError as error:
        kinds = sorted({type(one).__name__ for one in array})
        raise DataError(f"client has ids of kinds {', '.join(kinds)}, which have no order; wanted one kind") from error
