"""P10: random augmentation pipelines (REPA's concept drift, after the authors' later code).

A pipeline is a few operations drawn from a pool without replacement, each with parameters of its own, then a random
horizontal flip. The parameters belong to the pipeline; flips, angles and jitter are drawn anew for each image.
Added to the authors' pool: grayscale, which the paper names (only for colour images).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinfed.data import pixels
from kinfed.errors import ConfigError

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
    return torch.where(pixels.per_image(chosen), changed, x)


def around(centre: float, width: float, x: Tensor, rng: np.random.Generator) -> Tensor:
    """One number an image, uniform in centre ± width."""
    return torch.from_numpy(rng.uniform(centre - width, centre + width, len(x))).to(x)


def vertical_flip(rng: np.random.Generator) -> Operation:
    """Turns most images upside down."""
    probability = rng.uniform(0.5, 1)
    return lambda x, images: sometimes(x, x.flip(2), probability, images)


def colour_jitter(rng: np.random.Generator) -> Operation:
    """Changes brightness, contrast, saturation and hue of each image."""
    bright, contrast, saturation, hue = rng.uniform(0, (1, 1, 1, 0.5))

    def jitter(x: Tensor, images: np.random.Generator) -> Tensor:
        x = pixels.blend(x, torch.zeros_like(x), around(1, bright, x, images))
        x = pixels.contrast(x, around(1, contrast, x, images))
        x = pixels.blend(x, pixels.grayscale(x), around(1, saturation, x, images))
        return pixels.turn_hue(x, around(0, hue, x, images))

    return jitter


def rotation(rng: np.random.Generator) -> Operation:
    """Turns each image by up to an angle, on one background."""
    most, fill = rng.uniform(0, 90), rng.uniform(0, 255, 3)
    return lambda x, images: pixels.rotate(x, around(0, most, x, images), x.new_tensor(fill[: x.shape[1]]))


def elastic(rng: np.random.Generator) -> Operation:
    """Warps each image."""
    strength = rng.uniform(0, 150)

    def warp(x: Tensor, images: np.random.Generator) -> Tensor:
        noise = images.uniform(-1, 1, (len(x), 2, *x.shape[2:]))
        return pixels.elastic(x, torch.from_numpy(noise).to(x), strength)

    return warp


def blur(rng: np.random.Generator) -> Operation:
    """Blurs with a kernel of 3."""
    sigma = rng.uniform(0.2, 1)
    return lambda x, _: pixels.blur(x, sigma, radius=1)


def invert(rng: np.random.Generator) -> Operation:
    """Makes negatives of some images."""
    probability = rng.uniform()
    return lambda x, images: sometimes(x, 255 - x, probability, images)


def solarise(rng: np.random.Generator) -> Operation:
    """Inverts the bright pixels of some images."""
    threshold, probability = rng.uniform(0, 255), rng.uniform()
    return lambda x, images: sometimes(x, pixels.solarise(x, threshold), probability, images)


def grayscale(_: np.random.Generator) -> Operation:
    """Takes the colour away."""
    return lambda x, _: pixels.grayscale(x)


POOL: dict[str, Callable[[np.random.Generator], Operation]] = {
    "vertical_flip": vertical_flip,
    "colour_jitter": colour_jitter,
    "rotation": rotation,
    "elastic": elastic,
    "blur": blur,
    "invert": invert,
    "solarise": solarise,
    "grayscale": grayscale,
}
