"""What an encoder is trained on."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kinfed.errors import ConfigError
from kinfed.models import make_autoencoder
from kinfed.signatures import Pretraining, parse_sources
from kinfed.signatures import pretraining as module
from kinfed.signatures.pretraining import Source


def store(folder: Path, name: str, labels: list[int], pixel: int) -> None:
    x, y = np.full((len(labels), 8, 8), pixel, np.uint8), np.array(labels, np.uint8)
    np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def test_a_source_is_one_dataset_or_several_with_some_of_their_labels():
    assert parse_sources("mnist") == [Source("mnist")]
    assert parse_sources("cifar10+cifar100[11, 20]") == [Source("cifar10"), Source("cifar100", (11, 20))]


@pytest.mark.parametrize("text", ["", "mnist+", "mnist[]", "mnist[a]", "mnist 2"])
def test_a_source_that_cannot_be_read_is_refused(text):
    with pytest.raises(ConfigError, match="wanted datasets as in mnist"):
        parse_sources(text)


def test_only_rows_of_the_labels_are_taken(tmp_path):
    store(tmp_path, "letters", [0, 1, 2, 1, 3], 5)
    assert len(Source("letters", (1, 3)).load(str(tmp_path))) == 3
    assert len(Source("letters").load(str(tmp_path))) == 5


def test_an_encoder_is_trained_on_all_parts_and_at_most_so_many_rows(tmp_path, monkeypatch):
    store(tmp_path, "one", [0, 1] * 10, 5)
    store(tmp_path, "two", [0, 1] * 10, 200)
    monkeypatch.setattr(module, "cache_folder", lambda kind: tmp_path / kind)
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(Pretraining, "_train", lambda self, network, x: seen.append(x) or network.init())
    settings = Pretraining("one+two[1]", str(tmp_path), samples=10)
    settings(make_autoencoder("conv_ae", (1, 8, 8), 4), torch.zeros(0, 1, 8, 8))
    assert seen[0][:, 0, 0, 0].tolist() == [5] * 7 + [200] * 3  # every third of 20 + 10 rows


@pytest.mark.parametrize(("shape", "dataset"), [((1, 8, 8), "fashion_mnist"), ((3, 8, 8), "cifar100")])
def test_flts_encoders_are_named_and_their_datasets_follow_from_the_channels(shape, dataset):
    found = Pretraining("enc2").name_datasets(torch.Size(shape))
    assert parse_sources(found.source)[0].name == dataset
    assert len(parse_sources(Pretraining("enc1").name_datasets(torch.Size((3, 32, 32))).source)[1].labels) == 10
    assert Pretraining("mnist").name_datasets(torch.Size(shape)).source == "mnist"


@pytest.mark.parametrize("shape", [(2, 8, 8), (12,)])
def test_flts_encoders_are_refused_for_other_samples_than_images(shape):
    with pytest.raises(ConfigError, match="encoder 'enc1' is for images of one or three channels, got samples of"):
        Pretraining("enc1")(make_autoencoder("conv_ae", (1, 8, 8), 4), torch.zeros(0, *shape))
