"""A client as moments of what a common model makes of its samples, overall and for each label (FLUX)."""

import torch
from torch import Tensor

from kinfed.client import Client
from kinfed.keys import base_key, fold, normal
from kinfed.models import Model
from kinfed.params import Params
from kinfed.targets import mark_labels

ABSENT = -1.0  # both moments of a label that a client has not


def find_moments(client: Client, model: Model, params: Params, dimensions: int) -> Tensor:
    """Client: mean and standard deviation of its embedded samples, of all and of each label: [1 + labels, 2, d]."""
    number = total = squares = torch.zeros((), dtype=torch.double, device=client.key.device)
    for batch in client.train.in_order():
        x = project(model.features(params, batch.x), dimensions).where(batch.mask[:, None], 0.0)
        labels = mark_labels(batch.y, batch.mask, model.classes)
        member = torch.cat([batch.mask[:, None], labels], 1).double().T
        number, total = number + member.sum(1, keepdim=True), total + member @ x
        squares = squares + member @ x.square()
    mean = total / number.clamp(min=1)
    spread = (squares / number.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
    return torch.stack([mean, spread], 1).where(number[:, None] > 0, ABSENT).float()


def project(features: Tensor, dimensions: int) -> Tensor:
    """Features [b, e] along so many orthonormal directions, at most e, drawn once for all: [b, d]; double."""
    size = features.shape[1]
    key = torch.tensor(base_key("directions of features"), device=features.device)
    drawn = normal(fold(key, torch.arange(2 * size * size, device=key.device)[: 2 * size * dimensions]))
    directions: Tensor = torch.linalg.qr(drawn.view(size, -1))[0]
    return features.double() @ directions


def scale_moments(moments: Tensor, limits: Tensor) -> Tensor:
    """Each block of moments (one label, one moment) within its limits, 0 to 1: [clients, 1 + labels, 2, d]."""
    least, largest = limits
    scaled: Tensor = (moments - least) / (largest - least).where(largest > least, 1.0)
    return scaled


def find_limits(moments: Tensor) -> Tensor:
    """The least and the largest number of each block of moments: [2, 1 + labels, 2, 1]."""
    return torch.stack([moments.amin((0, 3)), moments.amax((0, 3))])[..., None]
