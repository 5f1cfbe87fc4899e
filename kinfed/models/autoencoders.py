"""FLT's auto-encoders as plain torch modules; each has the parts `encoder` and `decoder`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from kinfed.models.networks import Shape


class ConvAE(nn.Module):
    """`decoder(encoder(x))`."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))  # type: ignore[no-any-return]


class Affine(nn.Linear):
    """A linear layer whose bias is a column of its weights.

    Below a transposed convolution, torch sums a bias' gradient in an order that depends on how many clients train side
    by side; as a matrix product it does not.
    """

    def forward(self, input: Tensor) -> Tensor:
        ones = input.new_ones(input.shape[0], 1)
        return torch.cat([input, ones], 1) @ torch.cat([self.weight, self.bias[:, None]], 1).T


class Windows(nn.Conv2d):
    """A convolution with stride 1 that keeps an image's size; on a GPU, a product with the image's windows.

    Clients that tune side by side have a weight each, and torch's convolution of so many groups is slow there.
    """

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input) if input.is_cuda else super().forward(input)

    def product(self, input: Tensor) -> Tensor:
        """The same as a product."""
        bias = self.weight.new_zeros(self.out_channels) if self.bias is None else self.bias
        matrix = torch.cat([self.weight.permute(2, 3, 1, 0).flatten(0, 2), bias[None]])
        made, _ = _Product.apply(input.movedim(1, -1), matrix, self.kernel_size[0])  # type: ignore[no-untyped-call]
        return made.movedim(-1, 1)  # type: ignore[no-any-return]


class _Product(torch.autograd.Function):
    """Windows times a matrix of weights whose last row is the bias; what flows back is a product with windows, too."""

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
    def backward(ctx: Any, slope: Tensor, _: None) -> tuple[Tensor | None, Tensor, None]:
        matrix, seen = ctx.saved_tensors
        size, out = ctx.size, slope.shape[-1]
        by_weight = seen.flatten(0, 2).T @ slope.flatten(0, 2)
        if not ctx.needs_input_grad[0]:
            return None, by_weight, None
        turned = matrix[:-1].unflatten(0, (size, size, -1)).flip(0, 1).transpose(2, 3).flatten(0, 2)
        by_image = _windows(slope, size)[..., : size * size * out].flatten(0, 2) @ turned
        return by_image.unflatten(0, slope.shape[:3]), by_weight, None


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
        return tiles.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)  # type: ignore[no-any-return]


def _affine(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The channels of every pixel times the weight, plus the bias: [b, height, width, out]."""
    pixels = images.movedim(1, -1)
    flat = pixels.flatten(0, 2)
    if bias is not None:
        flat, weight = torch.cat([flat, flat.new_ones(len(flat), 1)], 1), torch.cat([weight, bias[None]])
    return (flat @ weight).unflatten(0, pixels.shape[:3])  # type: ignore[no-any-return]


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
        return x + self.back(self.wide(x.relu()).relu())  # type: ignore[no-any-return]


def residual_ae(shape: Shape, latent: int = 128) -> nn.Module:
    """FLT's residual auto-encoder for colour images; its BatchNorm makes clients tune it one by one."""
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
