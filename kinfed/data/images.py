"""One layout for images: [n, channels, height, width]."""

import numpy as np
import numpy.typing as npt

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
