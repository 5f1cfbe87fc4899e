"""A client's own rows, read from its own folder."""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from kinfed.data.arrays import as_features, as_labels
from kinfed.engines.flower.site import Holding
from kinfed.errors import DataError

FILE = "rows.npz"


def from_folder(folder: Path) -> Holding:
    """The rows in the folder's `rows.npz`."""
    return from_file(folder / FILE)


def from_file(path: Path) -> Holding:
    """The rows in an .npz file: x and test_x, and y and test_y where there are labels.

    Images are uint8 [n, h, w], [n, h, w, 3] or [n, 3, h, w], other rows are taken as float32. Without `y` a client
    wants a model and does not train; without `test_x` it is not evaluated.
    """
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:  # given a name it may leave it open
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, TypeError, BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}; wanted an .npz of arrays x, y, test_x, test_y") from error
    if "x" not in arrays:
        raise DataError(f"{path} has no array x, only {', '.join(arrays) or 'nothing'}")
    x = torch.from_numpy(as_features(arrays["x"]))
    y = torch.from_numpy(as_labels(arrays["y"])) if "y" in arrays else torch.full((len(x),), -1)
    if len(tested := {"test_x", "test_y"} & set(arrays)) == 1:
        raise DataError(f"{path} has {tested.pop()} alone; wanted test_x and test_y, or neither")
    if "test_x" not in arrays:
        return Holding(x, y, x[:0], y[:0])
    return Holding(x, y, torch.from_numpy(as_features(arrays["test_x"])), torch.from_numpy(as_labels(arrays["test_y"])))
