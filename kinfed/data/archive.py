"""NAME.npz: reading, checking and storing the one file a dataset lives in."""

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinfed.errors import DataError

Arrays = dict[str, npt.NDArray[np.generic]]

REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("writer_train", "writer_test")
IMAGES = "uint8 [n, height, width], [n, height, width, 1 or 3] or [n, 1 or 3, height, width]"
FORMAT = (
    f"x_train, x_test: images, {IMAGES}; y_train, y_test: integer labels [n]; "
    "optional writer_train, writer_test: integers [n]"
)
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError)  # all seen in damaged files


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
    if ("writer_train" in arrays) != ("writer_test" in arrays):
        raise DataError(f"{path} must have both writer_train and writer_test, or neither")
    return arrays


def unpack(path: Path, remedy: str) -> Arrays:
    """All arrays of the file that a dataset may have."""
    try:
        with path.open("rb") as file:
            if file.peek(2)[:2] not in (b"PK", b"\x93N"):  # numpy would take it for a pickle
                raise ValueError("it does not begin as one")
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in (*REQUIRED, *OPTIONAL) if name in archive.files}
    except UNREADABLE as error:
        raise DataError(f"{path} is not a readable .npz file ({error}); {remedy}") from error
    except (AttributeError, TypeError) as error:  # a bare .npy array has neither names nor a context
        raise DataError(f"{path} holds one bare array, wanted an .npz file with {FORMAT}") from error


def check_part(path: Path, arrays: Arrays, part: str) -> None:
    """Raise DataError unless the train or test arrays are of the right type, not empty, and equally long."""
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise DataError(f"{path}: x_{part} is {x.dtype} {list(x.shape)}, wanted {IMAGES}")
    for name in (f"y_{part}", f"writer_{part}"):
        if name in arrays and (not np.issubdtype(arrays[name].dtype, np.integer) or arrays[name].ndim != 1):
            raise DataError(f"{path}: {name} is {arrays[name].dtype} {list(arrays[name].shape)}, wanted integers [n]")
        if name in arrays and len(arrays[name]) != len(x):
            raise DataError(
                f"{path}: x_{part} has {len(x)} samples but {name} has {len(arrays[name])}; they must be equally long"
            )
    if len(y) == 0:
        raise DataError(f"{path}: x_{part} has no samples, wanted at least one")


def store(path: Path, arrays: Arrays) -> None:
    """Write the file whole or not at all: nobody ever sees half of it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        part.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path} ({error}); set KINFED_DATA to a folder that can be written") from error
    finally:
        if part.exists():
            part.unlink()
