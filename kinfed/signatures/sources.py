"""Which rows an encoder is trained on, in one text: "mnist", or several datasets with some of their labels.

"cifar10+cifar100[11,20]" is all of CIFAR-10 and two classes of CIFAR-100 (FLT's encoders for colour images).
"""

import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinfed.data import load
from kinfed.errors import ConfigError

PART = re.compile(r"([A-Za-z0-9_-]+)(\[[\d, ]+\])?")


@dataclass(frozen=True)
class Source:
    """Training rows of a dataset: all, or those of some labels."""

    name: str
    labels: tuple[int, ...] = ()

    def load(self, data_dir: str) -> Tensor:
        """The rows: [n, channels, height, width]."""
        found = load(self.name, data_dir or None)
        chosen = np.isin(found.y_train, self.labels) if self.labels else slice(None)
        return torch.from_numpy(found.x_train[chosen])

    def fitting(self, shape: torch.Size, data_dir: str) -> Tensor:
        """The rows, which must be of the shape that the clients' rows have."""
        rows = self.load(data_dir)
        if rows.shape[1:] != shape:
            raise ConfigError(
                f"the encoder's source '{self.name}' has rows of shape {list(rows.shape[1:])}, the clients' are of "
                f"shape {list(shape)}: name a dataset of that shape, or 'public' for rows of the server's own"
            )
        return rows


def sources(text: str) -> list[Source]:
    """The datasets that a source names."""
    found = []
    for word in text.split("+"):
        part = PART.fullmatch(word.strip())
        if part is None:
            raise ConfigError(f"wanted datasets as in mnist or cifar10+cifar100[11,20], got the source '{text}'")
        found.append(Source(part[1], tuple(int(label) for label in re.findall(r"\d+", part[2] or ""))))
    return found
