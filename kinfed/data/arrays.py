"""A user's arrays as numpy arrays that fit together, the kind of samples they hold, and the file a dataset lives in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from numbers import Real
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.data.partitions.split import Index
from kinfed.data.population import NO_SAMPLES, Population, Role, check_classes
from kinfed.errors import DataError, FileError
from kinfed.files import Arrays, read_arrays, write_arrays
from kinfed.learning_tasks import Classification, LearningTask, NextToken

Pixels = npt.NDArray[np.uint8]
CLASSIFICATION = Classification()


def channels_first(x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Images [n, h, w], [n, h, w, c] or [n, c, h, w] as [n, c, h, w]; c is 1 or 3."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return x
    raise DataError(f"images have shape {list(x.shape)}, wanted [n, height, width] or [n, height, width, 1 or 3]")


@runtime_checkable
class Sparse(Protocol):
    """What we use of scipy's sparse matrices; scipy takes long to load."""

    def toarray(self) -> npt.NDArray[np.generic]: ...


Array = npt.ArrayLike | torch.Tensor
Plain = npt.NDArray[np.generic]
NUMBERS = (Real, np.bool_)


def array_of(values: Array, name: str) -> Plain:
    """The values as a numpy array; DataError where they are none, as with samples of different lengths."""
    if np.ma.is_masked(values):
        raise DataError(f"{name} has masked values: fill them, or leave such samples out")
    try:
        if isinstance(values, torch.Tensor):
            return to_numpy(values)
        return np.asarray(values.toarray() if isinstance(values, Sparse) else values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"{name}: wanted an array, every sample of the same shape, got {type(values).__name__}: "
            "pad or cut series to one length"
        ) from error


def to_numpy(values: Tensor) -> Plain:
    """A tensor of any device, layout and precision as a numpy array."""
    dense = values.detach().cpu().to_dense()
    return (dense.float() if dense.is_floating_point() and dense.itemsize < 4 else dense).numpy(force=True)


def stack_arrays(samples: Iterable[Array], name: str) -> Plain:
    """Samples one by one as one array."""
    arrays = [array_of(sample, name) for sample in samples]
    check_alike(arrays, name)
    return np.stack(arrays)


def check_alike(samples: Sequence[Plain], name: str) -> None:
    """Raise DataError unless samples have one shape, and all are bytes or none are: bytes are 0..255, others seldom."""
    shapes = sorted({sample.shape for sample in samples})
    if len(shapes) > 1:
        raise DataError(
            f"{name} must have one shape, got {' and '.join(str(list(shape)) for shape in shapes[:3])}: pad or cut them"
        )
    kinds = sorted({str(sample.dtype) for sample in samples})
    if len(kinds) > 1 and "uint8" in kinds:
        raise DataError(f"{name} must be of one kind, uint8 images or other numbers, got {' and '.join(kinds)}")


def as_features(x: Array, tokens: bool = False) -> Plain:
    """uint8 images with channels first; anything else as float32, or token ids as int64."""
    array = unbox(array_of(x, "x"))
    if 0 in array.shape[1:]:
        raise DataError(f"x has shape {list(array.shape)}, wanted at least one number a sample")
    if tokens:
        is_whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool((array % 1 == 0).all()))
        if not is_whole or array.ndim == 0 or (array.size and int(array.min()) < 0):
            raise DataError(f"x is {array.dtype} {list(array.shape)}{show_range(array)}, wanted token ids: 0, 1, 2, …")
        return array.astype(np.int64)
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return channels_first(array).copy()  # the user may go on changing theirs
    if array.dtype.kind not in "biuf" or array.ndim == 0:  # complex numbers would lose half
        raise DataError(f"x is {array.dtype} {list(array.shape)}, wanted numbers of one shape a sample")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite then
        return array.astype(np.float32)


def labels_array(y: Array | Sequence[Array], name: str) -> Plain:
    """Labels or ids as a numpy array; of a list of text each as it is, for numpy makes text of a NaN among them."""
    array = array_of(cast(Array, y), name)
    return np.array(y, object) if array.dtype.kind == "U" and isinstance(y, list | tuple) else array


def unbox(array: Plain) -> Plain:
    """Objects as numbers: a list or array in each, or numbers of several kinds, as a DataFrame has them."""
    if array.dtype != object or not array.size or not array.ndim:
        return array
    boxed = stack_arrays(array, "samples of x") if array.ndim == 1 else array
    if boxed.dtype != object:
        return boxed
    strange = ((i, cell) for i, row in enumerate(boxed) for cell in np.ravel(row) if not isinstance(cell, NUMBERS))
    for sample, cell in strange:
        raise DataError(
            f"sample {sample} of x has a {type(cell).__name__} in it, {cell!r:.40}, wanted numbers: encode text and "
            "dates as numbers, fill what is missing, or leave such columns out"
        )
    return boxed.astype(np.float64)


def show_range(array: Plain) -> str:
    """From which to which number an array goes, as a message has it; nothing where it has none."""
    return f" from {array.min()} to {array.max()}" if array.dtype.kind in "iuf" and array.size else ""


def check_finite(x: Plain) -> None:
    """Raise DataError where samples have a NaN or an infinity in them."""
    if x.dtype == np.uint8 or not x.size or (np.isfinite(x.min()) and np.isfinite(x.max())):  # no table as large as x
        return
    sick = np.flatnonzero([not np.isfinite(sample).all() for sample in x])
    raise DataError(
        f"{len(sick)} of {len(x)} samples of x have a NaN or an infinity, the first is sample {sick[0]}: fill them, or "
        "leave them out"
    )


def as_owners(client: Array) -> Index:
    """Whose each sample is, as the place of its client's id among all ids in their order."""
    array = labels_array(client, "client")
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


LARGEST_SAMPLE = 2**26  # numbers
DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "int64": torch.int64}  # the last: token ids


@dataclass(frozen=True)
class ServerSamples:
    """The server's own samples, maybe none at all: they say what clients' samples look like."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n]
    classes: int
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()

    def population(self, clients: int) -> Population:
        """So many clients of which nothing is known yet."""
        empty, public = (NO_SAMPLES,) * clients, torch.arange(len(self.y))
        roles = (Role(holdout=True),) * clients
        return Population(
            self.x, self.y, empty, empty, self.classes, roles=roles, public=public, class_names=self.class_names,
            feature_names=self.feature_names,
        )  # fmt: skip


@dataclass(frozen=True)
class SampleKind:
    """The shape and type of a sample, and how many classes there are."""

    shape: tuple[int, ...]
    dtype: str
    classes: int

    @classmethod
    def read(cls, table: object) -> "SampleKind":
        """The kind in a bundle or a checkpoint; KeyError, TypeError or ValueError where it is none."""
        if not isinstance(table, dict):
            raise TypeError(f"wanted a table, got {table!r}")
        if table["dtype"] not in DTYPES:
            raise ValueError(f"dtype {table['dtype']!r}")
        shape = tuple(int(n) for n in table["shape"])
        if not all(n > 0 for n in shape) or prod(shape) > LARGEST_SAMPLE:
            raise ValueError(f"shape {list(shape)[:9]}")
        check_classes(int(table["classes"]))
        return cls(shape, table["dtype"], int(table["classes"]))

    def nothing(self) -> Tensor:
        """No samples: [0, ...]."""
        return torch.empty(0, *self.shape, dtype=DTYPES[self.dtype])

    def nobody(self) -> Population:
        """One client without samples, and two blank samples to try a model on."""
        blank = torch.zeros(2, *self.shape, dtype=DTYPES[self.dtype])
        return ServerSamples(blank, torch.zeros(2).long(), self.classes).population(1)

    def check(self, x: Array, y: Array | None, what: str, task: LearningTask = CLASSIFICATION) -> tuple[Tensor, Tensor]:
        """Samples and targets (-1 or NaN where there are none); raises where a model cannot take them."""
        samples = torch.from_numpy(as_features(x, tokens=self.dtype == "int64"))
        labels = self.targets(y, len(samples), task)
        if tuple(samples.shape[1:]) != self.shape or samples.dtype != DTYPES[self.dtype]:
            got = f"{str(samples.dtype).removeprefix('torch.')} {list(samples.shape[1:])}"
            raise DataError(f"{what} are {got}, wanted samples as in training: {self.dtype} {list(self.shape)}")
        if not len(samples):
            raise DataError(f"{what}: there are none, wanted at least one")
        if not bool(torch.isfinite(samples).all()):
            raise DataError(f"{what} have a NaN or an infinity in them; leave such samples out")
        refuse_unknown_tokens(samples, self.classes, what, task)
        if labels.is_floating_point() and len(labels) == len(samples):
            return samples, labels
        if len(labels) != len(samples) or not -1 <= int(labels.min()) <= int(labels.max()) < self.classes:
            got = f"{len(labels)} labels" + (f" {int(labels.min())}..{int(labels.max())}" if len(labels) else "")
            raise DataError(f"{what}: wanted a label 0..{self.classes - 1} for each of {len(samples)}, got {got}")
        return samples, labels

    def targets(self, y: Array | None, samples: int, task: LearningTask) -> Tensor:
        """Targets of this task; without any, as many unknown ones as there are samples."""
        if y is not None:
            given = array_of(y, "y")
            if given.dtype.kind == "f" and bool(np.isnan(given).all()):
                return torch.from_numpy(given.astype(np.float32))
            if task.has_classes() or given.ndim != 1 or not bool((given == -1).all()):  # -1: no target
                return self._check_width(torch.from_numpy(task.targets(given)))
        return torch.full((samples,), -1) if task.has_classes() else torch.full((samples, self.classes), torch.nan)

    def _check_width(self, y: Tensor) -> Tensor:
        """The same; raises DataError where numbers are not as many a sample as the model's outputs."""
        width = 1 if y.dim() == 1 else y.shape[1]
        if y.is_floating_point() and width != self.classes:
            raise DataError(f"y has {width} numbers a sample, wanted {self.classes}: as many as the model has outputs")
        return y


def refuse_unknown_tokens(x: Tensor, known: int, what: str, task: LearningTask | None) -> None:
    """Raise DataError where the next token is learnt and samples have token ids that the model does not know."""
    if isinstance(task, NextToken) and x.dtype == torch.int64 and x.numel() and int(x.max()) >= known:
        raise DataError(
            f"{what} have token id {int(x.max())}, and the model knows 0..{known - 1}: map it to one of them"
        )


REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("writer_train", "writer_test")
IMAGES = "uint8 [n, height, width], [n, height, width, 1 or 3] or [n, 1 or 3, height, width]"
FEATURES = "floats [n, ...] or token ids, integers [n, ...]"
FORMAT = (
    f"x_train, x_test: images, {IMAGES}, or {FEATURES}; y_train, y_test: integer labels [n], tokens [n, length], "
    "0 and 1 for each label [n, labels], or numbers [n] or [n, k]; optional writer_train, writer_test: integers [n]"
)


def read(path: Path, remedy: str = "replace it") -> Arrays:
    """The arrays of a NAME.npz, checked one by one and against each other; `remedy` is for one that is damaged."""
    arrays = unpack(path, remedy)
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise DataError(
            f"{path} has no array {', '.join(missing)} (it has: {', '.join(arrays) or 'none'}); wanted {FORMAT}"
        )
    for part in ("train", "test"):
        check_part(path, arrays, part)
    if len(shape := {arrays[f"x_{part}"].shape[1:] for part in ("train", "test")}) > 1:
        raise DataError(f"{path}: images of x_train and x_test must have one shape, got {sorted(shape)}")
    if len(kinds := dict.fromkeys(arrays[f"x_{part}"].dtype for part in ("train", "test"))) > 1:
        raise DataError(f"{path}: x_train and x_test must be of one kind, got {' and '.join(map(str, kinds))}")
    if ("writer_train" in arrays) != ("writer_test" in arrays):
        raise DataError(f"{path} must have both writer_train and writer_test, or neither")
    return arrays


def unpack(path: Path, remedy: str) -> Arrays:
    """All arrays of the file that a dataset may have."""
    with path.open("rb") as file:
        begins_with = file.read(2)
    if begins_with == b"\x93N":
        raise DataError(f"{path} holds one bare array, wanted an .npz file with {FORMAT}")
    if begins_with != b"PK":
        raise DataError(f"{path} is not a readable .npz file (it does not begin as one); {remedy}")
    try:
        arrays = read_arrays(path)
    except FileError as error:
        raise DataError(f"{path} is not a readable .npz file ({error}); {remedy}") from error
    return {name: arrays[name] for name in (*REQUIRED, *OPTIONAL) if name in arrays}


def as_samples(x: Plain) -> Plain:
    """uint8 images with channels first, float32 features, or int64 token ids."""
    if x.dtype == np.uint8:
        return channels_first(x).astype(np.uint8, copy=False)
    with np.errstate(over="ignore"):  # infinite then, which is an error of its own
        return x.astype(np.float32 if x.dtype.kind == "f" else np.int64)


def check_part(path: Path, arrays: Arrays, part: str) -> None:
    """Raise DataError unless the train or test arrays are of the right type, not empty, and equally long."""
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    is_image = x.dtype == np.uint8 and x.ndim in (3, 4)
    if not is_image and (x.dtype.kind not in "fi" or x.ndim < 2):
        raise DataError(f"{path}: x_{part} is {x.dtype} {list(x.shape)}, wanted {IMAGES}, or {FEATURES}")
    if y.dtype.kind == "f" and (y.ndim > 2 or len(y) != len(x)):
        raise DataError(
            f"{path}: y_{part} is {y.dtype} {list(y.shape)}, wanted numbers [n] or [n, k], one for each sample"
        )
    for name in (f"writer_{part}",) if y.dtype.kind == "f" else (f"y_{part}", f"writer_{part}"):
        most = 2 if name == f"y_{part}" else 1  # the next token after each, or 0 and 1 for each label
        if name in arrays and (not np.issubdtype(arrays[name].dtype, np.integer) or not 1 <= arrays[name].ndim <= most):
            raise DataError(f"{path}: {name} is {arrays[name].dtype} {list(arrays[name].shape)}, wanted integers [n]")
        if name in arrays and len(arrays[name]) != len(x):
            raise DataError(
                f"{path}: x_{part} has {len(x)} samples but {name} has {len(arrays[name])}; they must be equally long"
            )
    if len(y) == 0:
        raise DataError(f"{path}: x_{part} has no samples, wanted at least one")


def store(path: Path, arrays: Arrays) -> None:
    """Write the file whole or not at all: nobody ever sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(path, arrays, private=False)
    except (OSError, FileError) as error:
        raise DataError(f"cannot write {path} ({error}); set KINFED_DATA to a folder that can be written") from error
