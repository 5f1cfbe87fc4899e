import pytest
import torch
from torch import nn

from kinfed.config import load_config
from kinfed.config.assembly import make_population, model_for
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import FedAvg
from kinfed.models import Model
from kinfed.models.inputs import Inputs, augment, shift_samples
from kinfed.training import LocalTraining
from tests.problems import assert_close, fit, tiny_population

ALL = Inputs(augment=("crop", "flip", "noise"), crop=2)
REFLECTED = Inputs(augment=("crop",), crop=2, padding="reflect")


def test_a_shifted_image_is_a_window_of_the_padded_one():
    torch.manual_seed(0)
    x = torch.arange(1.0, 33.0).view(2, 1, 4, 4)
    shifted = shift_samples(x.repeat(50, 1, 1, 1), 1)
    seen = {tuple(image.flatten().tolist()) for image in shifted}
    assert tuple(x[0].flatten().tolist()) in seen and 9 < len(seen) <= 18
    assert all(set(image) <= {0.0, *x.flatten().tolist()} for image in seen)
    assert shift_samples(torch.ones(2, 9, 128), 4).shape == (2, 9, 128)


def test_reflected_edges_are_torchs():
    torch.manual_seed(0)
    x = torch.arange(1.0, 41.0).view(2, 1, 4, 5)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="reflect")
    wanted = {
        tuple(image[:, i : i + 4, j : j + 5].flatten().tolist()) for image in padded for i in range(5) for j in range(5)
    }
    shifted = shift_samples(x.repeat(400, 1, 1, 1), 2, "reflect")
    assert {tuple(image.flatten().tolist()) for image in shifted} == wanted


def test_noise_has_its_deviation_and_flips_are_half_of_the_images():
    torch.manual_seed(0)
    noisy = augment(torch.zeros(20, 1, 20, 20), Inputs(augment=("noise",), noise=0.5))
    assert float(noisy.std()) == pytest.approx(0.5, abs=0.02) and float(noisy.mean()) == pytest.approx(0, abs=0.02)
    row = torch.arange(3.0).view(1, 1, 1, 3).repeat(400, 1, 1, 1)
    flipped = augment(row, Inputs(augment=("flip",)))[:, 0, 0, 0] == 2
    assert 150 < int(flipped.sum()) < 250


@pytest.mark.parametrize("inputs", [ALL, REFLECTED], ids=["all", "reflected"])
def test_engines_agree_on_augmented_samples_and_evaluation_has_none(inputs):
    build = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))  # noqa: E731
    model = Model(lambda: inputs.wrap(build), classes=3)
    method, population = FedAvg(model, LocalTraining(2, 5, 0.05)), tiny_population()
    slow, fast = (fit(method, engine, population, 2)[0].params for engine in (Sequential, Vectorised))
    assert_close(slow, fast)
    plain = Model(build, classes=3)
    x = population.x[:4]
    assert list(model.init()) == list(plain.init())
    assert torch.equal(model.apply(slow, x), plain.apply(slow, x))
    without, _ = fit(FedAvg(plain, method.local), Vectorised, population, 2)
    assert not torch.allclose(without.params["1.weight"], fast["1.weight"], atol=1e-4)


def test_a_config_normalises_and_augments():
    options = ["data.name=digits", "inputs.mean=[0.5]", "inputs.std=[0.25]", 'inputs.augment=["crop"]', "inputs.crop=1"]
    config = load_config(None, options)
    model = model_for(config, make_population(config))
    assert model.mean == (0.5,) and float(model.inputs(torch.full((1, 1, 8, 8), 255, dtype=torch.uint8)).max()) == 2


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"mean": (0.5,)}, "as many mean as std"),
        ({"augment": ("turn",)}, "augment must be some of crop, flip, noise, got 'turn'"),
        ({"padding": "mirror"}, "padding must be one of zeros, reflect"),
        ({"augment": ("flip",)}, "'flip' is for images"),
        ({"mean": (0.1, 0.2), "std": (1.0, 1.0)}, "inputs.mean has 2 numbers"),
    ],
)
def test_what_does_not_fit_is_refused(inputs, expected):
    with pytest.raises(ConfigError, match=expected):
        Inputs(**inputs).check((13,))
