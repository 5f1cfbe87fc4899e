"""UMAP: centroids of all clients as points in the plane. The one file that imports umap-learn."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kinfed.errors import ConfigError

if TYPE_CHECKING:
    from umap import UMAP

Rows = npt.NDArray[np.float32]


def project(points: Tensor, dimensions: int, neighbours: int, min_dist: float, seed: int) -> Tensor:
    """Points in R^e as points in R^u: [n, e] -> [n, u]."""
    reducer = _fitted(points.cpu().numpy().tobytes(), points.shape[1], dimensions, neighbours, min_dist, seed)
    return torch.from_numpy(np.array(reducer.embedding_)).to(points.device)


def project_more(points: Tensor, more: Tensor, dimensions: int, neighbours: int, min_dist: float, seed: int) -> Tensor:
    """Further points in the plane that `points` were projected into: [m, e] -> [m, u]."""
    reducer = _fitted(points.cpu().numpy().tobytes(), points.shape[1], dimensions, neighbours, min_dist, seed)
    with threads_kept():
        return torch.from_numpy(np.array(reducer.transform(more.cpu().numpy()))).to(points.device)


@contextmanager
def threads_kept() -> Iterator[None]:
    """Torch has as many threads after this as before: UMAP's own library gives torch all cores too."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=4)
def _fitted(points: bytes, width: int, dimensions: int, neighbours: int, min_dist: float, seed: int) -> "UMAP":
    """UMAP fitted on these points; fitting is seeded, so nothing of it needs to be kept with a run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP
    except ImportError as error:
        raise ConfigError(
            "centroids are projected by the package umap-learn, which is not here: install it, or set "
            "relatedness.distance = 'kernel', which needs no projection"
        ) from error
    rows: Rows = np.frombuffer(points, dtype=np.float32).reshape(-1, width)
    few = max(2, min(neighbours, len(rows) - 1))
    init = "spectral" if len(rows) > dimensions + 2 else "random"  # the spectral start needs more points than axes
    umap = UMAP(few, dimensions, min_dist=min_dist, random_state=seed, init=init, n_jobs=1)
    with threads_kept(), warnings.catch_warnings():  # it warns of islands among the points, which are what we look for
        warnings.simplefilter("ignore")
        return umap.fit(rows)
