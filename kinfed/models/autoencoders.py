"""FLT's auto-encoders and REPA's supervised one as plain torch modules; each has a part `encoder`."""

from collections.abc import Callable
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from kinfed.errors import ConfigError
from kinfed.models.networks import SeriesConv, Shape, Sizes

WIDTHS = (16, 32, 64, 96)  # channels of REPA's encoder
PADDINGS = {28: (1, 0, 1, 0), 32: (1, 0, 0, 0)}  # of its decoder's layers, by side, as published


class ConvAE(nn.Module):
    """`decoder(encoder(x))`."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        images: Tensor = self.decoder(self.encoder(x))
        return images


class Affine(nn.Linear):
    """A linear layer whose bias is a column of its weights.

    Below a transposed convolution, torch sums a bias' gradient in an order that depends on how many clients train in a
    block; as a matrix product it does not.
    """

    def forward(self, input: Tensor) -> Tensor:
        ones = input.new_ones(input.shape[0], 1)
        return torch.cat([input, ones], 1) @ torch.cat([self.weight, self.bias[:, None]], 1).T


class Windows(nn.Conv2d):
    """A convolution with stride 1 that keeps an image's size; on a GPU, a product with the image's windows.

    The clients of a block have a weight each, and torch's convolution of so many groups is slow there.
    """

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input) if input.is_cuda else super().forward(input)

    def product(self, input: Tensor) -> Tensor:
        """The same as a product."""
        bias = self.weight.new_zeros(self.out_channels) if self.bias is None else self.bias
        matrix = torch.cat([self.weight.permute(2, 3, 1, 0).flatten(0, 2), bias[None]])
        apply = cast("Callable[..., tuple[Tensor, Tensor]]", _Product.apply)
        return apply(input.movedim(1, -1), matrix, self.kernel_size[0])[0].movedim(-1, 1)


class _Product(torch.autograd.Function):
    """Windows times a matrix of weights whose last row is the bias; its gradient is a product with windows, too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(image: Tensor, matrix: Tensor, size: int) -> tuple[Tensor, Tensor]:
        seen = _windows(image, size)
        return (seen.flatten(0, 2) @ matrix).unflatten(0, image.shape[:3]), seen

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
        ctx.size = inputs[2]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[1], output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, Tensor, None]:
        matrix, seen = ctx.saved_tensors
        size, out = ctx.size, gradient.shape[-1]
        by_weight = seen.flatten(0, 2).T @ gradient.flatten(0, 2)
        if not ctx.needs_input_grad[0]:
            return None, by_weight, None
        turned = matrix[:-1].unflatten(0, (size, size, -1)).flip(0, 1).transpose(2, 3).flatten(0, 2)
        by_image = _windows(gradient, size)[..., : size * size * out].flatten(0, 2) @ turned
        return by_image.unflatten(0, gradient.shape[:3]), by_weight, None


def _windows(image: Tensor, size: int) -> Tensor:
    """What each pixel sees, tap by tap and channel by channel, and a one: [b, height, width, taps * channels + 1]."""
    high, wide = image.shape[1:3]
    wider = pad(image, (0, 0, *(size // 2,) * 4))
    taps = [wider[:, i : i + high, j : j + wide] for i in range(size) for j in range(size)]
    return torch.cat([*taps, image.new_ones(*image.shape[:3], 1)], -1)


class Tiles(nn.ConvTranspose2d):
    """A transposed convolution whose stride is its size: each pixel becomes a tile; on a GPU, by a product."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return self.product(input) if input.is_cuda else super().forward(input, output_size)

    def product(self, input: Tensor) -> Tensor:
        """The same as a product."""
        size = self.kernel_size[0]
        bias = None if self.bias is None else self.bias.repeat_interleave(size * size)
        tiles = _affine(input, self.weight.flatten(1), bias).unflatten(-1, (self.out_channels, size, size))
        images: Tensor = tiles.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        return images


def _affine(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The channels of every pixel times the weight, plus the bias: [b, height, width, out]."""
    pixels = images.movedim(1, -1)
    flat = pixels.flatten(0, 2)
    if bias is not None:
        flat, weight = torch.cat([flat, flat.new_ones(len(flat), 1)], 1), torch.cat([weight, bias[None]])
    made: Tensor = (flat @ weight).unflatten(0, pixels.shape[:3])
    return made


def conv_ae(shape: Shape, latent: int = 128) -> nn.Module:
    """FLT's auto-encoder for one channel: two small convolutions; 28x28 as published, 8x8 by the same rule."""
    channels, height, width = shape
    inner = (4, height // 4, width // 4)
    flat = inner[0] * inner[1] * inner[2]
    encoder = nn.Sequential(
        Windows(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        Windows(16, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, latent),
    )  # fmt: skip
    decoder = nn.Sequential(
        Affine(latent, flat), nn.Unflatten(1, inner),
        Tiles(4, 16, 2, stride=2), nn.ReLU(),
        Tiles(16, channels, 2, stride=2), nn.Sigmoid(),
    )  # fmt: skip
    return ConvAE(encoder, decoder)


class ResidualLayer(nn.Module):
    """x + conv1x1(relu(conv3x3(relu(x)))), without biases."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, hidden, 3, padding=1, bias=False)
        self.back = nn.Conv2d(hidden, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.back(self.wide(x.relu()).relu())
        return x + residual


def residual_ae(shape: Shape, latent: int = 128) -> nn.Module:
    """FLT's residual auto-encoder for colour images."""
    channels, height, width = shape
    inner = (8, height // 4, width // 4)
    flat = inner[0] * inner[1] * inner[2]
    encoder = nn.Sequential(
        nn.Conv2d(channels, 64, 4, 2, 1), nn.ReLU(), nn.BatchNorm2d(64),
        nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(), nn.BatchNorm2d(128),
        nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128),
        ResidualLayer(128, 32), ResidualLayer(128, 32), nn.ReLU(),
        nn.Conv2d(128, 64, 1), nn.ReLU(), nn.BatchNorm2d(64), nn.Conv2d(64, 8, 1), nn.ReLU(), nn.BatchNorm2d(8),
        nn.Flatten(), nn.Linear(flat, latent),
    )  # fmt: skip
    decoder = nn.Sequential(
        Affine(latent, flat), nn.Unflatten(1, inner),
        nn.ConvTranspose2d(8, 64, 1), nn.ReLU(), nn.ConvTranspose2d(64, 128, 1), nn.ReLU(),
        ResidualLayer(128, 32), ResidualLayer(128, 32), nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, channels, 4, 2, 1),
    )  # fmt: skip
    return ConvAE(encoder, decoder)


def vector_ae(shape: Sizes, latent: int = 128) -> nn.Module:
    """An auto-encoder for samples of any shape, of numbers around 0: one hidden layer either way."""
    return ConvAE(_dense(shape, latent), _dense_back(shape, latent))


def series_ae(shape: Sizes, latent: int = 128) -> nn.Module:
    """An auto-encoder for series [channels, length]: two convolutions over time, and one hidden layer back."""
    return ConvAE(_over_time(shape, latent), _dense_back(shape, latent))


def repa_series(shape: Sizes, outputs: int, reconstruction: float = 0.1, latent: int = 64) -> nn.Module:
    """REPA's encoder with its heads for what is no image: convolutions for series, else one hidden layer."""
    encoder = _over_time(shape, latent) if is_series(shape) else _dense(shape, latent)
    head = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, outputs))
    return TwoHeads(
        encoder, _dense_back(shape, latent) if reconstruction > 0 else None, head if reconstruction < 1 else None
    )


def is_series(shape: Sizes) -> bool:
    """Whether samples are [channels, length] with a length that convolutions over time are worth."""
    return len(shape) == 2 and shape[1] >= 28


def _over_time(shape: Sizes, latent: int) -> nn.Sequential:
    flat = 32 * (((shape[1] - 8) // 2 - 8) // 2)
    return nn.Sequential(
        SeriesConv(shape[0], 16, 9), nn.ReLU(), nn.MaxPool1d(2),
        SeriesConv(16, 32, 9), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(flat, latent),
    )  # fmt: skip


def _dense(shape: Sizes, latent: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 2 * latent), nn.ReLU(), nn.Linear(2 * latent, latent))


def _dense_back(shape: Sizes, latent: int) -> nn.Sequential:
    return nn.Sequential(Affine(latent, 2 * latent), nn.ReLU(), Affine(2 * latent, prod(shape)), nn.Unflatten(1, shape))


class TwoHeads(nn.Module):
    """`decoder(encoder(x))` and `classifier(encoder(x))` side by side, flat; a head may be missing."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module | None, classifier: nn.Module | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        embedding = self.encoder(x)
        return torch.cat([head(embedding).flatten(1) for head in (self.decoder, self.classifier) if head], 1)


def repa_ae(shape: Shape, classes: int, reconstruction: float = 0.1) -> nn.Module:
    """REPA's encoder of four 3x3 convolutions with both heads, or the one that the loss needs.

    28x28 and 32x32 as published; for other even sides a layer halves what is above 2, and the decoder mirrors that.
    """
    if min(shape[1:]) < 4 or shape[1] % 2 or shape[2] % 2:
        raise ConfigError(f"REPA's encoder needs even image sides of at least 4, got {shape[1]}x{shape[2]}")
    ways = [_sides(side) for side in shape[1:]]
    inner = (WIDTHS[-1], ways[0][-1], ways[1][-1])
    flat = inner[0] * inner[1] * inner[2]
    classifier = nn.Sequential(nn.Linear(flat, 64), nn.ReLU(), nn.Linear(64, classes))
    return TwoHeads(
        nn.Sequential(*_down(shape[0], ways), nn.Flatten()),
        nn.Sequential(nn.Unflatten(1, inner), *_up(shape[0], ways)) if reconstruction > 0 else None,
        classifier if reconstruction < 1 else None,
    )


def _sides(side: int) -> list[int]:
    """The side of an image before, between and after the encoder's layers."""
    sides = [side]
    for _ in WIDTHS:
        sides.append(-(-sides[-1] // 2) if sides[-1] > 2 else sides[-1])
    return sides


def _down(channels: int, ways: list[list[int]]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(zip((channels, *WIDTHS), WIDTHS, strict=False)):
        high, wide = (2 if way[i] > way[i + 1] else 1 for way in ways)
        layers += [nn.Conv2d(before, after, 3, (high, wide), 1), nn.ReLU()]
    return layers


def _up(channels: int, ways: list[list[int]]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(zip(WIDTHS[::-1], (*WIDTHS[-2::-1], channels), strict=True)):
        (h, hp, ho), (w, wp, wo) = (_step(way, i) for way in ways)
        layers.append(nn.ConvTranspose2d(before, after, 4 if i == 3 else 3, (h, w), (hp, wp), (ho, wo)))
    return layers


def _step(way: list[int], layer: int) -> tuple[int, int, int]:
    """Stride, padding and output padding with which a decoder's layer undoes the encoder's; the last is 4 wide."""
    if way[0] in PADDINGS:
        return 2, PADDINGS[way[0]][layer], 0
    target, source = way[-layer - 2], way[-layer - 1]
    stride = 2 if target > source else 1
    return stride, 1, 1 if layer < 3 and target == 2 * source else 0
