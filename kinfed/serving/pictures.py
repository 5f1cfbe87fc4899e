"""A client's rows as a folder of pictures; Pillow, which reads them, comes with the extra `hub`."""

from pathlib import Path

import numpy as np

from kinfed.data.images import Pixels
from kinfed.errors import DataError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS) if folder.is_dir() else []


def read_pictures(paths: list[Path], shape: tuple[int, ...]) -> Pixels:
    """Pictures as rows of this shape, grey or in colour as it wants; none is resized: [n, channels, height, width]."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("pictures need Pillow: pip install 'kinfed[hub]', or give a rows.npz") from error
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"rows are of shape {list(shape)}, which pictures cannot be; give a rows.npz")
    rows = []
    for path in paths:
        try:
            with Image.open(path) as picture:
                pixels = np.asarray(picture.convert("L" if shape[0] == 1 else "RGB"), np.uint8)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read as a picture: {error}") from error
        if pixels.shape[:2] != shape[1:]:
            raise DataError(f"{path} has {pixels.shape[0]}x{pixels.shape[1]} pixels, wanted {shape[1]}x{shape[2]}")
        rows.append(pixels.reshape(*shape[1:], shape[0]).transpose(2, 0, 1))
    return np.stack(rows)
