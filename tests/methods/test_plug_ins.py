"""Signatures and clusterers other than the default, and those of a user's own module, run FLT end to end."""

import logging
from pathlib import Path

import pytest

from kinfed.config import DEMO, assemble, load_config
from kinfed.errors import ConfigError

OWN = """
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.client import Client
from kinfed.clustering.kmeans import Centroids
from kinfed.params import Params
from kinfed.relatedness import Clusterer, DisjointClusters
from kinfed.signatures import Signature, Signatures


@dataclass(frozen=True)
class LabelShares(Signature):
    scale: float = 1.0

    def size(self, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
        return 1, 10

    def compute(self, client: Client, encoder: Params, classes: int) -> Centroids:
        counts = torch.zeros(10, device=client.key.device)
        for batch in client.train.in_order():
            counts = counts + (torch.nn.functional.one_hot(batch.y, 10) * batch.mask[:, None]).sum(0)
        return Centroids(self.scale * (counts / counts.sum())[None], torch.ones_like(counts[:1]))


@dataclass(frozen=True)
class NonZero(Clusterer):
    def compare(self, known: Signatures) -> DisjointClusters:
        _, labels = (known.means() > 0.01).unique(dim=0, return_inverse=True)
        return DisjointClusters(labels)


@dataclass(frozen=True)
class Half(Clusterer):
    size: int = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_relatedness.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def run_flt(*settings: str) -> dict[str, float | int | None]:
    base = ["method=flt", "partition.clients=10", "rounds=1", *settings]
    return assemble(load_config(None, base)).run()


@pytest.mark.usefixtures("own")
def test_flt_runs_with_a_signature_and_a_clusterer_of_the_users_own():
    summary = run_flt(
        "methods.flt.signature.name=own_relatedness:LabelShares", "methods.flt.signature.scale=2",
        "methods.flt.relatedness.name=own_relatedness:NonZero", "roles.holdout=0.1",
    )  # fmt: skip
    assert summary["ari"] == 1.0, "the demo's clusters hold different labels"


@pytest.mark.usefixtures("own")
def test_what_is_no_clusterer_is_refused_with_what_it_lacks():
    with pytest.raises(ConfigError, match=r"methods\.flt.*own_relatedness:Half.*compare"):
        run_flt("methods.flt.relatedness.name=own_relatedness:Half")


def test_the_demo_runs_with_calibrated_relatedness(caplog):
    with caplog.at_level(logging.INFO, "kinfed"):
        summary = assemble(load_config(DEMO, ["method=flt", "rounds=1"])).run()
    assert summary["ari"] == 1.0 and summary["clusters"] == 5
    assert "5 clusters, well separated (within-cluster share of variance 0." in caplog.text


CENTROIDS, THRESHOLD = "methods.flt.signature.name=encoder_centroids", "methods.flt.relatedness.name=relatedness"


@pytest.mark.parametrize(
    ("one", "wanted"),
    [(CENTROIDS, "set that, or relatedness.name = 'relatedness'"), (THRESHOLD, "signature.name = 'encoder_centroids'")],
)
def test_calibrated_relatedness_and_part_means_go_together(one, wanted):
    with pytest.raises(ConfigError, match=rf"methods\.flt: .*'part_means'.*{wanted}"):
        load_config(DEMO, ["method=flt", one])
    load_config(DEMO, ["method=flt", CENTROIDS, THRESHOLD])
