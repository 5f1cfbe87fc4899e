"""What is done to samples before the network: normalisation, and in training augmentation, drawn for each sample anew.

Encoders and signatures take token ids as vectors: how often tokens, and pairs of neighbours, occur in a sample.
Augmentation takes its random bits from a dropout of ones: these hang on a client's key, the step and the sample alone,
in both engines and on Flower.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

from kinfed.checks import at_least, one_of
from kinfed.errors import ConfigError

Augmentation = Literal["crop", "flip", "noise"]
Padding = Literal["zeros", "reflect"]
BITS = 8  # of a random shift
FINE = 16  # bits of a number of noise: binomial, nearly normal
TOKENS = (torch.int16, torch.int32, torch.int64)
SINGLES, PAIRS = 256, 1024  # numbers for tokens, and for pairs; ids beyond share a number
TOKEN_SHAPE = (SINGLES + PAIRS,)
PRIME = 613  # so that pairs of a small vocabulary seldom share a number
DrawBits = Callable[[Tensor, int], Tensor]  # samples [b, ...] and a count -> random bits of each: bool [b, count]


@dataclass(frozen=True)
class Inputs:
    """Normalisation of samples, and their augmentation in training."""

    mean: tuple[float, ...] = ()  # of each channel, after bytes are scaled to 0..1; subtracted
    std: tuple[float, ...] = ()  # of each channel; divided by
    augment: tuple[
        Augmentation, ...
    ] = ()  # in training: crop (a shift of images or series), flip (left and right), noise
    crop: int = 4  # pixels, or samples in time, that a crop shifts by at most
    padding: Padding = "zeros"  # what a crop finds beyond the edge
    noise: float = 0.1  # standard deviation of noise, in normalised units

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or any(not s > 0 for s in self.std):
            raise ConfigError(
                f"wanted as many mean as std, all std above 0, got {list(self.mean)} and {list(self.std)}"
            )
        if unknown := [name for name in self.augment if name not in get_args(Augmentation)]:
            raise ConfigError(f"augment must be some of {', '.join(get_args(Augmentation))}, got '{unknown[0]}'")
        one_of(get_args(Padding), padding=self.padding)
        at_least(1, crop=self.crop)
        at_least(0, noise=self.noise)

    @property
    def draws(self) -> int:
        """How often a forward pass draws for its augmentation, before all dropouts."""
        return len(set(self.augment))

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ConfigError where samples of this shape cannot be normalised or augmented so."""
        if self.mean and len(self.mean) not in (1, shape[0]):
            raise ConfigError(
                f"inputs.mean has {len(self.mean)} numbers, samples of shape {list(shape)} {shape[0]} channels"
            )
        if "flip" in self.augment and len(shape) != 3:
            raise ConfigError(f"inputs.augment = 'flip' is for images, got samples of shape {list(shape)}")
        if "crop" in self.augment and (len(shape) not in (2, 3) or min(shape[1:]) <= self.crop):
            raise ConfigError(
                f"inputs.augment = 'crop' is for images and series longer than inputs.crop = {self.crop}, got samples "
                f"of shape {list(shape)}"
            )

    def wrap(self, build: Callable[[], nn.Module]) -> nn.Module:
        """A new module whose input is augmented in training; its weights have the names they had."""
        module = build()
        module.register_forward_pre_hook(Augmenter(self))
        return module


@dataclass(frozen=True)
class Augmenter:
    """A hook that augments the input of a module in training."""

    inputs: Inputs

    def __call__(self, module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (augment(given[0], self.inputs), *given[1:]) if module.training else None


def draw_bits(x: Tensor, count: int) -> Tensor:
    """Random bits for each sample: bool [b, count]."""
    return dropout(torch.ones(len(x), count, device=x.device), 0.5, training=True) > 0


def augment(x: Tensor, inputs: Inputs, draw: DrawBits = draw_bits) -> Tensor:
    """Samples [b, ...], each shifted, turned round or made noisy at random."""
    if "crop" in inputs.augment:
        x = shift_samples(x, inputs.crop, inputs.padding, draw)
    if "flip" in inputs.augment:
        x = torch.where(draw(x, 1).view(-1, 1, 1, 1), x.flip(-1), x)
    if "noise" in inputs.augment:
        numbers = x[0].numel()
        sums = draw(x, numbers * FINE).view(len(x), numbers, FINE).to(x.dtype).sum(2)
        x = x + inputs.noise * ((sums - FINE / 2) / (FINE / 4) ** 0.5).view(x.shape)
    return x


def shift_samples(x: Tensor, most: int, padding: Padding = "zeros", draw: DrawBits = draw_bits) -> Tensor:
    """Samples padded and cut out again at a random place of each: along time, or both sides of an image."""
    padded = x if padding == "reflect" else pad(x, (most, most) * (x.dim() - 2))
    bits = draw(x, (x.dim() - 2) * BITS).view(len(x), -1, BITS)
    first = (bits * 2 ** torch.arange(BITS, device=x.device)).sum(2) * (2 * most + 1) // 2**BITS  # [b, sides]
    for side in range(2, x.dim()):
        index = first[:, side - 2, None] + torch.arange(x.shape[side], device=x.device)
        index = reflect(index - most, x.shape[side]) if padding == "reflect" else index
        wide = [len(x), *[1] * (x.dim() - 1)]
        wide[side] = x.shape[side]
        shape = list(padded.shape)
        shape[side] = x.shape[side]
        padded = padded.gather(side, index.view(wide).expand(shape))
    return padded


def reflect(index: Tensor, length: int) -> Tensor:
    """Places from below 0 to beyond the length, thrown back at either edge, which does not count twice."""
    return (length - 1) - ((length - 1) - index.abs()).abs()


def count_tokens(x: Tensor) -> Tensor:
    """The frequencies of tokens and of neighbouring pairs: [b, ...] ids -> [b, 1280], scaled to about 1."""
    ids = x.long().flatten(1)
    pairs = ids[:, :-1] * PRIME + ids[:, 1:]
    parts = [count_remainders(ids, SINGLES), count_remainders(pairs, PAIRS)]
    return torch.cat(parts, 1)


def count_remainders(ids: Tensor, size: int) -> Tensor:
    """How often each remainder of the ids occurs, over the root of their number: [b, size]."""
    each = torch.full(ids.shape, 1 / max(1, ids.shape[1]) ** 0.5, device=ids.device)
    return torch.zeros(len(ids), size, device=ids.device).scatter_add(1, ids % size, each)


def encoder_shape(x: Tensor) -> tuple[int, ...]:
    """The shape of a sample as an encoder takes it: its own, or that of token frequencies."""
    return TOKEN_SHAPE if x.dtype in TOKENS else tuple(x.shape[1:])


def encoder_shapes(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """What an encoder may take where samples are of this shape: samples in a row may be tokens."""
    return (shape, TOKEN_SHAPE) if len(shape) == 1 else (shape,)
