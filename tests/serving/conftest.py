"""Small runs with unseen clients, each made once, and folders of a client's samples."""

from pathlib import Path

import numpy as np
import pytest

from kinfed.config import DEMO, load_config
from kinfed.progress import Silence
from kinfed.runs import Place, start

TINY = [
    "partition.clients=15",
    "rounds=2",
    "roles.holdout=0.3",
    "data.public=0.1",
    "training.lr=0.1",
    "evaluation.every=2",
    "evaluation.metrics=main",
]
QUICK = {
    "flt_kernel": ["methods.flt_kernel.signature.latent=16", "methods.flt_kernel.signature.tuning=none"],
    "repa": ["methods.repa.clusters=5", "methods.repa.signature.encoder_rounds=1"],
    "pca_km_hc": ["methods.pca_km_hc.k=2", "methods.pca_km_hc.threshold=0.1"],  # two digits each: k-means is sure
    "ifca": ["methods.ifca.clusters=5"],
    "flis_hc": ["methods.flis_hc.beta=0.2"],
    "flhc": ["methods.flhc.rounds_before=1"],
    "cfl": ["methods.cfl.after=1", "methods.cfl.rule.mean_below=9", "methods.cfl.rule.some_above=0.1"],
}


@pytest.fixture(scope="package")
def runs(tmp_path_factory):
    """Makes each run once."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run(method: str, *more: str) -> Path:
        name = (method, *more)
        if name not in made:
            config = load_config(DEMO, [f"method={method}", *TINY, *QUICK.get(method, []), *more])
            made[name] = start(config, Place(folder / str(len(made))), Silence())
        return made[name]

    return run


@pytest.fixture
def folder_of(tmp_path):
    """Writes the samples of one client into a folder."""

    def write(population, client: int, labelled: bool) -> Path:
        train, test = population.train[client], population.test[client]
        arrays = {"x": population.x[train], "test_x": population.x[test], "test_y": population.y[test]}
        arrays |= {"y": population.y[train]} if labelled else {}
        folder = tmp_path / f"client-{client}"
        folder.mkdir()
        np.savez(folder / "samples.npz", **{name: t.numpy() for name, t in arrays.items()})
        return folder

    return write
