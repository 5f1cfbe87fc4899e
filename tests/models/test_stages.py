import pytest
import torch
from torch import nn

from kinfed.models import MODELS, Model, make_model
from kinfed.models.stages import Framed, fitted, stages_of
from tests.problems import assert_same_bits


def lanes_of(model: Model, lanes: int = 3) -> dict[str, torch.Tensor]:
    drawn = [model.init(seed) for seed in range(lanes)]
    return {name: torch.stack([params[name] for params in drawn]) for name in drawn[0]}


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"resnet9"}))
def test_weights_come_back_as_they_were_packed(name):
    model = make_model(name, (3, 32, 32), 5)
    start, ends = lanes_of(model), {}
    for fit in fitted(model.stages, (32, 32, 3)):
        ends |= fit.unpacked(fit.packed(start))
    assert_same_bits({key: ends[key] for key in start}, start)


def test_a_stage_is_a_layer_with_its_relu_and_pooling():
    parts = nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    conv, dense = fitted(stages_of(nn.Sequential(*parts)), (8, 8, 1))
    assert (conv.makes, conv.leaves, conv.stage.relu, conv.stage.pool) == ((8, 8, 4), (4, 4, 4), True, 2)
    assert (dense.sees, dense.leaves, dense.stage.relu, dense.stage.is_linear) == ((4, 4, 4), (1, 1, 3), False, True)


def test_a_packed_convolution_is_the_product_with_windows_of_an_image():
    model = Model(lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 4)), classes=4)
    start = lanes_of(model, 1)
    fit = fitted(model.stages, (3, 3, 2))[0]
    image = torch.arange(18.0).view(1, 2, 3, 3)
    window = image[0, :, 1:3, 0:2].permute(1, 2, 0).flatten()  # height, width, channels
    expected = nn.functional.conv2d(image, start["0.weight"][0], start["0.bias"][0])[0, :, 1, 0]
    torch.testing.assert_close(torch.cat([window, torch.ones(1)]) @ fit.packed(start)[0], expected)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.Flatten(), nn.Linear(36, 3)),
        nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(36, 3)),
        nn.Sequential(nn.Conv2d(1, 4, (3, 1)), nn.Flatten(), nn.Linear(36, 3)),
        nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), nn.Flatten(), nn.Linear(36, 3)),
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=3), nn.Flatten(), nn.Linear(36, 3)),  # windows that see only zeros
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(36, 3)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(6, 3)),
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
        nn.Sequential(*([nn.Linear(3, 3)] * 2)),
        nn.Conv2d(1, 4, 3),
    ],
)
def test_what_is_not_a_sequence_of_stages_takes_the_general_way(module):
    assert stages_of(module) == ()


def test_images_in_a_frame_are_filled_without_touching_it():
    inner = torch.arange(1.0, 25).view(1, 2, 2, 3, 2)
    framed = Framed.of(torch.empty(1, 2), (2, 3, 2), frame=2)
    assert (framed.images.shape, framed.inner, framed.rows) == ((1, 2, 6, 7, 2), (2, 3), 12)
    framed.fill(Framed(inner))
    assert torch.equal(framed.images[:, :, 2:4, 2:5], inner) and framed.images.sum() == inner.sum()
    plain = Framed.of(torch.empty(1, 2), (2, 3, 2))
    plain.fill(Framed(inner))
    assert torch.equal(plain.images, inner)
    assert plain.flat().images.shape == (1, 2, 1, 1, 12) and plain.flat().rows == 2


def test_how_far_windows_reach_on_the_way_back():
    parts = nn.Conv2d(1, 4, 5, padding=1), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    assert [fit.reach for fit in fitted(stages_of(nn.Sequential(*parts)), (8, 8, 1))] == [3, 2, 0]
