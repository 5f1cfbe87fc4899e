"""P10: random augmentation pipelines (REPA's concept drift, after the authors' later code).

A pipeline is a few operations drawn from a pool without replacement, each with parameters of its own, then a random
horizontal flip. The parameters belong to the pipeline; flips, angles and jitter are drawn anew for each image.
Added to the authors' pool: grayscale, which the paper names (only for colour images).

Images are float [n, channels, height, width] of 0..255, with 1 or 3 channels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kinfed.errors import ConfigError

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601


def per_image(values: Tensor) -> Tensor:
    """One number an image [n], shaped to multiply images."""
    return values.view(-1, 1, 1, 1)


def grayscale(x: Tensor) -> Tensor:
    """The brightness in every channel; gray images stay as they are."""
    if x.shape[1] == 1:
        return x
    return (x * x.new_tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True).expand_as(x)


def solarise(x: Tensor, threshold: float) -> Tensor:
    """Pixels from the threshold on inverted."""
    return torch.where(x >= threshold, 255 - x, x)


def blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """factor · x + (1 - factor) · other, kept within 0..255."""
    return (per_image(factor) * x + (1 - per_image(factor)) * other).clamp(0, 255)


def change_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Farther from (or nearer to) the mean brightness of each image."""
    return blend(x, grayscale(x).mean((1, 2, 3), keepdim=True).expand_as(x), factor)


def turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Hues turned by a part of a full turn for each image; gray images stay as they are."""
    if x.shape[1] == 1:
        return x
    value, chroma = x.amax(1), x.amax(1) - x.amin(1)
    red, green, blue = x.unbind(1)
    safe = chroma.clamp(min=1e-6)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = sector + 6 * turn.view(-1, 1, 1)
    wedges = ((n + hue) % 6 for n in (5, 3, 1))
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in wedges], 1)


def kernel(sigma: float, radius: int) -> Tensor:
    """A Gaussian of 2·radius + 1 weights that sum to one."""
    weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    return weights / weights.sum()


def blur_matrix(size: int, sigma: float, radius: int) -> Tensor:
    """The matrix [size, size] that blurs a line of pixels, edges repeated."""
    offsets = torch.arange(-radius, radius + 1)
    read = (torch.arange(size)[:, None] + offsets).clamp(0, size - 1)
    return torch.zeros(size, size).scatter_add(1, read, kernel(sigma, radius).expand(size, -1))


def blur(x: Tensor, sigma: float, radius: int) -> Tensor:
    """Gaussian blur, edges repeated."""
    down, across = (blur_matrix(size, sigma, radius).to(x) for size in x.shape[2:])
    return down @ x @ across.T  # two small products are much faster than a convolution


def resample(x: Tensor, grid: Tensor, fill: Tensor) -> Tensor:
    """Images read at the places of the grid [n, h, w, 2]; outside there is `fill` [channels]."""
    background = fill.view(1, -1, 1, 1)
    return F.grid_sample(x - background, grid, padding_mode="zeros", align_corners=False) + background


def rotate(x: Tensor, degrees: Tensor, fill: Tensor) -> Tensor:
    """Each image turned counter-clockwise about its centre."""
    angle, aspect = degrees * (math.pi / 180), x.shape[2] / x.shape[3]
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    matrix = torch.stack([cos, -sin * aspect, zero, sin / aspect, cos, zero], 1).view(-1, 2, 3)
    return resample(x, F.affine_grid(matrix, list(x.shape), align_corners=False), fill)


def elastic(x: Tensor, noise: Tensor, strength: float, sigma: float = 5.0) -> Tensor:
    """Each image warped by smoothed noise [n, 2, h, w] of -1..1; outside is black."""
    n, channels, height, width = x.shape
    smooth = blur(noise, sigma, radius=int(4 * sigma)) * strength
    shift = torch.stack([smooth[:, 0] / width, smooth[:, 1] / height], 3)
    still = F.affine_grid(torch.eye(2, 3).expand(n, 2, 3).to(x), list(x.shape), align_corners=False)
    return resample(x, still + shift, x.new_zeros(channels))


CHUNK = 2048  # images worked on at once
Operation = Callable[[Tensor, np.random.Generator], Tensor]


@dataclass(frozen=True)
class Pipeline:
    """Operations one after the other, then half of the images mirrored."""

    operations: tuple[Operation, ...]

    def __call__(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """uint8 images [n, channels, height, width] -> the same, augmented."""
        done = [self.augment(part.float(), rng) for part in torch.split(images, CHUNK)]
        return torch.cat(done) if done else images

    def augment(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """One chunk of float images, augmented, as uint8."""
        for operation in self.operations:
            x = operation(x, rng)
        x = sometimes(x, x.flip(3), 0.5, rng)
        return x.round().clamp(0, 255).to(torch.uint8)


def draw_pipeline(count: int, channels: int, rng: np.random.Generator) -> Pipeline:
    """A pipeline of `count` operations for images with so many channels."""
    pool = [draw for name, draw in POOL.items() if channels == 3 or name != "grayscale"]
    if not 0 <= count <= len(pool):
        raise ConfigError(f"count must be 0..{len(pool)} operations, got {count}")
    chosen = rng.choice(len(pool), count, replace=False)
    return Pipeline(tuple(pool[i](rng) for i in chosen))


def sometimes(x: Tensor, changed: Tensor, probability: float, rng: np.random.Generator) -> Tensor:
    """Each image changed with this probability."""
    chosen = torch.from_numpy(rng.random(len(x)) < probability)
    return torch.where(per_image(chosen), changed, x)


def around(centre: float, width: float, x: Tensor, rng: np.random.Generator) -> Tensor:
    """One number an image, uniform in centre ± width."""
    return torch.from_numpy(rng.uniform(centre - width, centre + width, len(x))).to(x)


def draw_vertical_flip(rng: np.random.Generator) -> Operation:
    """Turns most images upside down."""
    probability = rng.uniform(0.5, 1)
    return lambda x, images: sometimes(x, x.flip(2), probability, images)


def draw_colour_jitter(rng: np.random.Generator) -> Operation:
    """Changes brightness, contrast, saturation and hue of each image."""
    bright, contrast, saturation, hue = rng.uniform(0, (1, 1, 1, 0.5))

    def jitter(x: Tensor, images: np.random.Generator) -> Tensor:
        x = blend(x, torch.zeros_like(x), around(1, bright, x, images))
        x = change_contrast(x, around(1, contrast, x, images))
        x = blend(x, grayscale(x), around(1, saturation, x, images))
        return turn_hue(x, around(0, hue, x, images))

    return jitter


def draw_rotation(rng: np.random.Generator) -> Operation:
    """Turns each image by up to an angle, on one background."""
    most, fill = rng.uniform(0, 90), rng.uniform(0, 255, 3)
    return lambda x, images: rotate(x, around(0, most, x, images), x.new_tensor(fill[: x.shape[1]]))


def draw_elastic(rng: np.random.Generator) -> Operation:
    """Warps each image."""
    strength = rng.uniform(0, 150)

    def warp(x: Tensor, images: np.random.Generator) -> Tensor:
        noise = images.uniform(-1, 1, (len(x), 2, *x.shape[2:]))
        return elastic(x, torch.from_numpy(noise).to(x), strength)

    return warp


def draw_blur(rng: np.random.Generator) -> Operation:
    """Blurs with a kernel of 3."""
    sigma = rng.uniform(0.2, 1)
    return lambda x, _: blur(x, sigma, radius=1)


def draw_invert(rng: np.random.Generator) -> Operation:
    """Makes negatives of some images."""
    probability = rng.uniform()
    return lambda x, images: sometimes(x, 255 - x, probability, images)


def draw_solarise(rng: np.random.Generator) -> Operation:
    """Inverts the bright pixels of some images."""
    threshold, probability = rng.uniform(0, 255), rng.uniform()
    return lambda x, images: sometimes(x, solarise(x, threshold), probability, images)


def draw_grayscale(_: np.random.Generator) -> Operation:
    """Takes the colour away."""
    return lambda x, _: grayscale(x)


POOL: dict[str, Callable[[np.random.Generator], Operation]] = {
    "vertical_flip": draw_vertical_flip,
    "colour_jitter": draw_colour_jitter,
    "rotation": draw_rotation,
    "elastic": draw_elastic,
    "blur": draw_blur,
    "invert": draw_invert,
    "solarise": draw_solarise,
    "grayscale": draw_grayscale,
}
