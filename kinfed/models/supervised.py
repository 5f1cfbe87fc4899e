"""REPA's supervised auto-encoder: one encoder, and on its embedding a head that classifies and one that gives back."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from kinfed.client import Batch
from kinfed.errors import ConfigError
from kinfed.models.autoencoder import Encoding
from kinfed.models.networks import Shape

WIDTHS = (16, 32, 64, 96)
PADDINGS = {28: (1, 0, 1, 0), 32: (1, 0, 0, 0)}  # of the decoder's layers, by side, as published


@dataclass(frozen=True)
class SupervisedAutoEncoder(Encoding):
    """Trained by λ · mean squared error + (1 - λ) · cross-entropy; its output is all pixels, then all logits."""

    classes: int = 10
    reconstruction: float = 0.1  # λ; 0: a classifier alone (CLF), 1: an auto-encoder alone (AE)

    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        images, loss = self.inputs(batch.x).flatten(1), torch.zeros_like(output[:, 0])
        if self.reconstruction > 0:
            error = (output[:, : images.shape[1]] - images).square().mean(1)
            loss = loss + self.reconstruction * error
        if self.reconstruction < 1:
            surprise = cross_entropy(output[:, -self.classes :], batch.y, reduction="none")
            loss = loss + (1 - self.reconstruction) * surprise
        return loss


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


def supervised_ae(shape: Shape, classes: int, reconstruction: float = 0.1) -> nn.Module:
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
