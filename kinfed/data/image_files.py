"""Image files, and images in the cells of a table, as arrays: [n, channels, height, width].

Pillow, which reads them, comes with the extra `hub`.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinfed.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
GREY = ("1", "L", "LA")  # Pillow's modes of one channel
DEEP = ("I", "F")  # how those begin whose numbers are larger or finer than bytes
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ImageForm:
    """What images are made to be, or must be."""

    channels: int | None = None  # 1 or 3; None: 3 where any image has colours
    size: tuple[int, int] | None = None  # height and width; None: as the first image has them
    resize: bool = False  # to that size; else others are refused
    remedy: str = "give images of one size"  # where they are refused

    @classmethod
    def of_shape(
        cls, shape: tuple[int, ...], resize: bool = False, remedy: str = "scale them beforehand"
    ) -> "ImageForm":
        """Images of this shape; DataError where no image has such a one."""
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise DataError(f"samples are of shape {list(shape)}, which images cannot be; give a samples.npz")
        return cls(shape[0], (shape[1], shape[2]), resize, remedy)


def list_images(folder: Path) -> list[Path]:
    """The image files of a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def read_images(sources: Sequence[Path | bytes], form: ImageForm) -> Pixels:
    """Images of files, or of bytes of files: uint8 [n, channels, height, width]."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise DataError("images need Pillow: pip install 'kinfed[hub]', or give a samples.npz") from error
    size, found = form.size, list[Pixels]()
    for at, source in enumerate(sources):
        name = str(source) if isinstance(source, Path) else f"the image of sample {at}"
        pixels = read_image(source, name, form.channels, size if form.resize else None)
        size = size or pixels.shape[1:]
        if pixels.shape[1:] != size:
            (high, wide), (wanted_high, wanted_wide) = pixels.shape[1:], size
            raise DataError(f"{name} has {high}x{wide} pixels, wanted {wanted_high}x{wanted_wide}: {form.remedy}")
        found.append(pixels)
    channels = max(len(pixels) for pixels in found)
    return np.stack([pixels.repeat(channels // len(pixels), 0) for pixels in found])


def read_image(source: Path | bytes, name: str, channels: int | None, size: tuple[int, int] | None) -> Pixels:
    """One image: [channels, height, width]."""
    from PIL import Image

    if isinstance(source, Path) and not source.is_file():  # to open a pipe would wait for its other end
        raise DataError(f"{name} cannot be read as an image: it is no file")
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as image:
            if image.mode.startswith(DEEP):
                raise ValueError(f"its pixels are '{image.mode}', wanted bytes: scale them to 0..255")
            grey = image.mode in GREY if channels is None else channels == 1
            plain = image.convert("L" if grey else "RGB")
            pixels = np.asarray(plain.resize((size[1], size[0])) if size else plain, np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # a broken PNG is a SyntaxError
        raise DataError(f"{name} cannot be read as an image: {error}") from error
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def list_by_class(folder: Path, class_names: Sequence[str], classes: int) -> tuple[list[Path], npt.NDArray[np.int64]]:
    """The images of one client, as FOLDER/class/image.png, and their labels; DataError for an unknown class.

    Where classes have no names, folders are called 0, 1, …: a client that lacks a class must not shift the others.
    """
    known = tuple(class_names) or tuple(str(label) for label in range(classes))
    folders = sorted(path for path in folder.glob("*/") if path.is_dir() and list_images(path))
    if unknown := [path.name for path in folders if path.name not in known]:
        named = f"known: {', '.join(known[:20])}" if class_names else f"wanted 0 to {classes - 1}, or class_names"
        raise DataError(f"{folder / unknown[0]} has images of a class that the server does not know; {named}")
    files = [(file, known.index(path.name)) for path in folders for file in list_images(path)]
    return [file for file, _ in files], np.array([label for _, label in files], np.int64)
