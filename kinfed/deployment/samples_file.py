"""A client's own samples as an .npz file in its own folder."""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from kinfed.data.arrays import as_features, as_labels
from kinfed.engines.flower.node import ClientData
from kinfed.errors import DataError

FILE, OLD_FILE = "samples.npz", "rows.npz"


def load_folder(folder: Path) -> ClientData:
    """The samples in the folder's `samples.npz`."""
    if not has_samples(folder) and (folder / OLD_FILE).exists():
        raise DataError(f"{OLD_FILE} was renamed {FILE}: rename {folder / OLD_FILE}")
    return load_file(folder / FILE)


def has_samples(folder: Path) -> bool:
    """Whether a folder has a `samples.npz`."""
    return (folder / FILE).exists()


def load_file(path: Path) -> ClientData:
    """The samples in an .npz file: x and test_x, and y and test_y where there are labels.

    Images are uint8 [n, h, w], [n, h, w, 3] or [n, 3, h, w], other samples are taken as float32. Without `y` a client
    wants a model and does not train; without `test_x` it is not evaluated.
    """
    arrays = read_arrays(path)
    x = torch.from_numpy(as_features(arrays["x"]))
    y = torch.from_numpy(as_labels(arrays["y"])) if "y" in arrays else torch.full((len(x),), -1)
    if len(alone := {"test_x", "test_y"} & set(arrays)) == 1:
        raise DataError(f"{path} has {alone.pop()} alone; wanted test_x and test_y, or neither")
    if "test_x" not in arrays:
        return ClientData(x, y, x[:0], y[:0])
    test_x, test_y = as_features(arrays["test_x"]), as_labels(arrays["test_y"])
    return ClientData(x, y, torch.from_numpy(test_x), torch.from_numpy(test_y))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, among them x."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:  # given a name it may leave it open
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, TypeError, BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}; wanted an .npz of arrays x, y, test_x, test_y") from error
    if "x" not in arrays:
        raise DataError(f"{path} has no array x, only {', '.join(arrays) or 'nothing'}")
    return arrays


def save_folder(folder: Path, arrays: dict[str, Tensor]) -> None:
    """Writes samples as `load_folder` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / FILE, allow_pickle=False, **{name: t.numpy() for name, t in arrays.items()})
