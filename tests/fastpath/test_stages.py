import pytest
import torch
from torch import nn

from kinfed.fastpath import parse
from kinfed.fastpath.stages import parse_stages, shape_stages
from kinfed.kernels.layout import (
    PaddedImages,
    block_columns,
    block_tile,
    gradient_tile,
    precision,
    product_tile,
    window_tile,
)
from kinfed.models import MODELS, Model, make_model
from tests.problems import assert_same_bits


def lanes_of(model: Model, lanes: int = 3) -> dict[str, torch.Tensor]:
    drawn = [model.init(seed) for seed in range(lanes)]
    return {name: torch.stack([params[name] for params in drawn]) for name in drawn[0]}


OTHERS = {
    "resnet9",
    "har_cnn",
    "char_cnn",
    "char_lstm",
    "char_lstm_each",
    "lenet5_dropout",
    "resnet20",
    "resnet18",
    "vit",
    "lstm",
}  # by autograd


@pytest.mark.parametrize("name", sorted(set(MODELS) - OTHERS))
def test_weights_come_back_as_they_were_packed(name):
    model = make_model(name, (3, 32, 32), 5)
    start, ends = lanes_of(model), {}
    for shaped in shape_stages(parse(model).stages, (32, 32, 3)):
        ends |= shaped.unpack(shaped.pack(start))
    assert_same_bits({key: ends[key] for key in start}, start)


def test_a_stage_is_a_layer_with_its_relu_and_pooling():
    parts = nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    conv, dense = shape_stages(parse_stages(nn.Sequential(*parts)), (8, 8, 1))
    assert (conv.output, conv.pooled, conv.stage.relu, conv.stage.pool) == ((8, 8, 4), (4, 4, 4), True, 2)
    assert (dense.input, dense.pooled, dense.stage.relu, dense.stage.is_linear) == ((4, 4, 4), (1, 1, 3), False, True)


def test_a_packed_convolution_is_the_product_with_windows_of_an_image():
    model = Model(lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 4)), classes=4)
    start = lanes_of(model, 1)
    shaped = shape_stages(parse(model).stages, (3, 3, 2))[0]
    image = torch.arange(18.0).view(1, 2, 3, 3)
    window = image[0, :, 1:3, 0:2].permute(1, 2, 0).flatten()  # height, width, channels
    expected = nn.functional.conv2d(image, start["0.weight"][0], start["0.bias"][0])[0, :, 1, 0]
    torch.testing.assert_close(torch.cat([window, torch.ones(1)]) @ shaped.pack(start)[0], expected)


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
        nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, 3)),  # of the samples themselves
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout()),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(), nn.Dropout(), nn.Linear(3, 3)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Dropout2d(), nn.Linear(36, 3)),
        nn.Sequential(*([nn.Linear(3, 3)] * 2)),
        nn.Conv2d(1, 4, 3),
    ],
)
def test_what_is_not_a_sequence_of_stages_is_not_supported(module):
    assert parse_stages(module) == ()


def test_padded_images_are_filled_without_touching_the_padding():
    inner = torch.arange(1.0, 25).view(1, 2, 2, 3, 2)
    padded = PaddedImages.of(torch.empty(1, 2), (2, 3, 2), pad=2)
    assert (padded.images.shape, padded.size, padded.pixels) == ((1, 2, 6, 7, 2), (2, 3), 12)
    padded.fill(PaddedImages(inner))
    assert torch.equal(padded.images[:, :, 2:4, 2:5], inner) and padded.images.sum() == inner.sum()
    plain = PaddedImages.of(torch.empty(1, 2), (2, 3, 2))
    plain.fill(PaddedImages(inner))
    assert torch.equal(plain.images, inner)
    assert plain.flat().images.shape == (1, 2, 1, 1, 12) and plain.flat().pixels == 2


def test_padding_of_gradients():
    parts = nn.Conv2d(1, 4, 5, padding=1), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    assert [shaped.margin for shaped in shape_stages(parse_stages(nn.Sequential(*parts)), (8, 8, 1))] == [3, 2, 0]


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("out", [1, 6, 10, 32, 47, 64, 512])
@pytest.mark.parametrize("pixels", [1, 16, 100, 1960, 7840])
def test_tiles_are_what_a_kernel_can_multiply(pixels, out, tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    assert precision() == ("tf32" if tf32 else "tf32x3")
    tiles = [product_tile(pixels, depth, out) for depth in (25, 60, 800)]
    tiles += [gradient_tile(pixels, total, out, lanes) for total in (26, 151, 801) for lanes in (1, 100)]
    for sides, warps, ahead in tiles:
        assert all(side >= 16 and side & (side - 1) == 0 for side in sides)
        assert sides[1] >= min(out, 64 if pixels > 16 else 32) and warps in (2, 4, 8) and ahead >= 1


@pytest.mark.parametrize("channels", [1, 6, 8])
@pytest.mark.parametrize(("seen", "image"), [(9, (14, 14)), (25, (1, 1)), (100, (14, 14)), (128, (30, 70))])
def test_tiles_of_few_channels_hold_whole_rows_of_pixels_and_of_the_weight(channels, seen, image):
    sides, _, _ = block_tile(4 * seen, block_columns(channels))
    assert all(side >= 16 and side & (side - 1) == 0 for side in sides) and sides[1] >= 4 * channels
    (rows, span, deep), images = window_tile(seen, channels, image)
    assert span >= image[1] and rows % span == 0 and deep >= seen and images >= 1
