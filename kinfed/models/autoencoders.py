"""FLT's auto-encoders as plain torch modules; each has the parts `encoder` and `decoder`."""

import torch
from torch import Tensor, nn

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


def conv_ae(shape: Shape, latent: int = 128) -> nn.Module:
    """FLT's auto-encoder for one channel: two small convolutions; 28x28 as published, 8x8 by the same rule."""
    channels, height, width = shape
    inner = (4, height // 4, width // 4)
    flat = inner[0] * inner[1] * inner[2]
    encoder = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, latent),
    )  # fmt: skip
    decoder = nn.Sequential(
        Affine(latent, flat), nn.Unflatten(1, inner),
        nn.ConvTranspose2d(4, 16, 2, stride=2), nn.ReLU(),
        nn.ConvTranspose2d(16, channels, 2, stride=2), nn.Sigmoid(),
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
