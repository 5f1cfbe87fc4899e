"""UMAP takes half a minute to compile: what tests project points with in its place, and UMAP itself on demand."""

import numpy as np
import pytest

MARKS = [pytest.mark.on_demand, pytest.mark.umap, pytest.mark.xdist_group("umap")]  # one process compiles it
UMAP = pytest.param("umap", marks=MARKS)


class PrincipalDirections:
    """The first principal directions of the points, with what kinfed calls of UMAP."""

    def __init__(self, n_neighbors, n_components, *, min_dist, random_state, init, n_jobs):
        assert n_neighbors >= 2 and init in ("spectral", "random") and n_jobs == 1
        self.dimensions = n_components

    def fit(self, rows):
        self.middle = rows.mean(0)
        self.axes = np.linalg.svd(rows - self.middle, full_matrices=False)[2][: self.dimensions].T
        self.embedding_ = self.transform(rows)
        return self

    def transform(self, rows):
        return (rows - self.middle) @ self.axes
