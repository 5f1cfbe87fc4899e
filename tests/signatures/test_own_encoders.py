"""Encoders of a user's own: what is wrong with one shows in one line, before a run has a folder."""

from math import prod
from pathlib import Path

import pytest
from torch import nn

import kinfed
from kinfed.errors import KinfedError

HERE = "tests.signatures.test_own_encoders"


class Encoder(nn.Module):
    """Embeds samples as `width` numbers, and gives back `pixels`."""

    def __init__(self, shape: tuple[int, ...], width: int, pixels: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width))
        self.decoder = nn.Sequential(nn.Linear(width, prod(pixels)), nn.Unflatten(1, pixels))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def fits(shape: tuple[int, ...], latent: int) -> nn.Module:
    return Encoder(shape, latent, shape)


def too_wide(shape: tuple[int, ...], latent: int) -> nn.Module:
    return Encoder(shape, latent + 1, shape)


def other_pixels(shape: tuple[int, ...], latent: int) -> nn.Module:
    return Encoder(shape, latent, (1, 2, 2))


def bare(shape: tuple[int, ...], latent: int) -> nn.Module:
    return nn.Linear(3, latent)


def fails(shape: tuple[int, ...], latent: int) -> nn.Module:
    raise RuntimeError("no such weights")


WRONG = {
    f"{HERE}:too_wide": r"output \(encoder\) for 2 samples has shape \(2, 9\), wanted \(2, 8\)",
    f"{HERE}:other_pixels": r"output \(whole\) for 2 samples has shape \(2, 1, 2, 2\), wanted \(2, 1, 8, 8\)",
    f"{HERE}:bare": "parts encoder and decoder, got a Linear",
    f"{HERE}:fails": f"auto-encoder '{HERE}:fails' failed on samples of shape .* no such weights",
    f"{HERE}:fit": "did you mean 'fits'",
    "conv_aee": "did you mean 'conv_ae'",
}


def run(name: str, out: Path, **signature: object) -> kinfed.RunResult:
    table = {"methods": {"flt": {"signature": {"autoencoder": name, "latent": 8, **signature}}}}
    clients = {"partition": {"clients": 10}, "rounds": 1, "quiet": True, "force": True}
    return kinfed.run("flt", "digits", out=out, **clients, **table)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_encoder_is_one_line_and_leaves_the_folder_as_it_was(name: str, tmp_path: Path):
    with pytest.raises(KinfedError, match=WRONG[name]):
        run(name, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_weights_of_an_encoder_leave_the_folder_as_it_was(tmp_path: Path):
    with pytest.raises(KinfedError, match="no encoder at"):
        run("auto", tmp_path / "run", pretraining={"source": str(tmp_path / "none.safetensors")})
    repa = {"repa": {"signature": {"encoder": str(tmp_path / "none.safetensors")}}}
    with pytest.raises(KinfedError, match="no encoder at"):
        kinfed.run("repa", "digits", out=tmp_path / "run", rounds=1, quiet=True, methods=repa)
    assert not (tmp_path / "run").exists()


def test_an_encoder_of_ones_own_is_used(tmp_path: Path):
    result = run(f"{HERE}:fits", tmp_path / "run", pretraining={"epochs": 1, "least_steps": 1})
    assert result.summary["accuracy"] > 0
