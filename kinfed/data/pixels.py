"""Image operations in plain torch: float images [n, channels, height, width] of 0..255 in and out, 1 or 3 channels."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

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


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Farther from (or nearer to) the mean brightness of each image."""
    return blend(x, grayscale(x).mean((1, 2, 3), keepdim=True).expand_as(x), factor)


def turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Hues turned by a part of the full circle for each image; gray images stay as they are."""
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


def smoothing(size: int, sigma: float, radius: int) -> Tensor:
    """The matrix [size, size] that blurs a line of pixels, edges repeated."""
    offsets = torch.arange(-radius, radius + 1)
    read = (torch.arange(size)[:, None] + offsets).clamp(0, size - 1)
    return torch.zeros(size, size).scatter_add(1, read, kernel(sigma, radius).expand(size, -1))


def blur(x: Tensor, sigma: float, radius: int) -> Tensor:
    """Gaussian blur, edges repeated."""
    down, across = (smoothing(size, sigma, radius).to(x) for size in x.shape[2:])
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
