"""Encoders that are trained on other datasets, also when several processes want one at once."""

import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from kinfed.client import Batch
from kinfed.data.datasets import cache_folder
from kinfed.errors import ConfigError
from kinfed.models import make_autoencoder
from kinfed.signatures import Pretraining
from kinfed.signatures.pretraining import AdamTrainer
from tests.problems import assert_same_bits


def train(folder: str) -> None:
    """What each process does; a training of half a second leaves a file."""

    def slow(self: Pretraining, network: object, x: torch.Tensor) -> dict[str, torch.Tensor]:
        Path(folder, f"trained-{time.monotonic_ns()}").touch()
        time.sleep(0.5)
        return autoencoder.init()

    Pretraining._train = slow  # type: ignore[method-assign]
    autoencoder = make_autoencoder("conv_ae", (1, 8, 8), 4)
    Path(folder, f"ready-{time.monotonic_ns()}").touch()
    while len(list(Path(folder).glob("ready-*"))) < 2:
        time.sleep(0.001)
    Pretraining("letters", folder)(autoencoder, torch.zeros(0, 1, 8, 8))


@pytest.mark.slow
def test_two_processes_that_want_the_same_encoder_train_it_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x, y = np.zeros((4, 8, 8), np.uint8), np.zeros(4, np.uint8)
    np.savez(tmp_path / "letters.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    spawn = multiprocessing.get_context("spawn")
    both = [spawn.Process(target=train, args=(str(tmp_path),)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    assert len(list(tmp_path.glob("trained-*"))) == 1
    assert sorted(path.suffix for path in cache_folder("encoders").iterdir()) == [".lock", ".safetensors"]


def test_an_encoder_is_cached_by_what_its_dataset_holds_wherever_that_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    autoencoder = make_autoencoder("conv_ae", (1, 8, 8), 4)

    def encoders_after(folder: str, first: int) -> tuple[int, dict[str, torch.Tensor]]:
        x, y = np.full((4, 8, 8), 7, np.uint8), np.zeros(4, np.uint8)
        x[0, 0, 0] = first
        (tmp_path / folder).mkdir(exist_ok=True)
        np.savez_compressed(tmp_path / folder / "letters.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        pretraining = Pretraining("letters", str(tmp_path / folder), epochs=1, least_steps=2)
        weights = pretraining(autoencoder, torch.zeros(0, 1, 8, 8))
        return len(list(cache_folder("encoders").glob("*.safetensors"))), weights

    one, weights = encoders_after("one", first=7)
    moved, same = encoders_after("two", first=7)
    changed, others = encoders_after("two", first=255)
    assert (one, moved, changed) == (1, 1, 2)
    assert_same_bits(weights, same)
    assert any(not torch.equal(weights[name], others[name]) for name in weights)


def test_a_source_of_another_image_size_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x, y = np.zeros((4, 12, 12), np.uint8), np.zeros(4, np.uint8)
    np.savez(tmp_path / "letters.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(ConfigError, match=r"'letters' has samples of shape \[1, 12, 12\].* of shape \[1, 8, 8\]"):
        Pretraining("letters", str(tmp_path))(make_autoencoder("conv_ae", (1, 8, 8), 4), torch.zeros(0, 1, 8, 8))


def test_a_step_that_a_cuda_graph_captures_takes_tensors_alone(monkeypatch):
    network, x = make_autoencoder("conv_ae", (1, 8, 8), 4), torch.rand(6, 1, 8, 8)
    batch = Batch(x, torch.zeros(6, dtype=torch.long), torch.ones(6, dtype=torch.bool), torch.tensor(True), exact=True)
    trainers = [AdamTrainer(network, network.module_with(network.init()), 0.01) for _ in range(2)]
    given = {}
    monkeypatch.setattr(trainers[0], "on_gpu", True)
    monkeypatch.setattr(trainers[0].graphs, "run", lambda key, take, inputs: given.update(inputs) or take(inputs))
    for trainer in trainers:
        trainer.step(batch)
    assert set(given) == {"x", "y", "mask", "live"} and all(isinstance(t, torch.Tensor) for t in given.values())
    assert_same_bits(*(dict(trainer.module.named_parameters()) for trainer in trainers))
