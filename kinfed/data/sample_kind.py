"""What samples look like: clients of one federation have samples of one kind."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.data.arrays import Array, as_features, as_labels
from kinfed.data.population import NO_SAMPLES, Population, Role
from kinfed.errors import DataError

DTYPES = {"uint8": torch.uint8, "float32": torch.float32}


@dataclass(frozen=True)
class ServerSamples:
    """The server's own samples, maybe none at all: they say what clients' samples look like."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n]
    classes: int

    def population(self, clients: int) -> Population:
        """So many clients of which nothing is known yet."""
        empty, public = (NO_SAMPLES,) * clients, torch.arange(len(self.y))
        roles = (Role(holdout=True),) * clients
        return Population(self.x, self.y, empty, empty, self.classes, roles=roles, public=public)


@dataclass(frozen=True)
class SampleKind:
    """The shape and type of a sample, and how many classes there are."""

    shape: tuple[int, ...]
    dtype: str
    classes: int

    @classmethod
    def read(cls, table: object) -> "SampleKind":
        """The kind in a bundle or a checkpoint; KeyError, TypeError or ValueError where it is none."""
        if not isinstance(table, dict):
            raise TypeError(f"wanted a table, got {table!r}")
        if table["dtype"] not in DTYPES:
            raise ValueError(f"dtype {table['dtype']!r}")
        return cls(tuple(int(n) for n in table["shape"]), table["dtype"], int(table["classes"]))

    def nothing(self) -> Tensor:
        """No samples: [0, ...]."""
        return torch.empty(0, *self.shape, dtype=DTYPES[self.dtype])

    def nobody(self) -> Population:
        """One client without samples, and two blank samples to try a model on."""
        blank = torch.zeros(2, *self.shape, dtype=DTYPES[self.dtype])
        return ServerSamples(blank, torch.zeros(2).long(), self.classes).population(1)

    def check(self, x: Array, y: Array | None, what: str) -> tuple[Tensor, Tensor]:
        """Samples and labels (-1 where there are none); raises where a model cannot take them."""
        samples = torch.from_numpy(as_features(x))
        labels = torch.full((len(samples),), -1) if y is None else torch.from_numpy(as_labels(y))
        if tuple(samples.shape[1:]) != self.shape or samples.dtype != DTYPES[self.dtype]:
            got = f"{str(samples.dtype).removeprefix('torch.')} {list(samples.shape[1:])}"
            raise DataError(f"{what} are {got}, wanted samples as in training: {self.dtype} {list(self.shape)}")
        if not len(samples):
            raise DataError(f"{what}: there are none, wanted at least one")
        if not bool(torch.isfinite(samples).all()):
            raise DataError(f"{what} have a NaN or an infinity in them; leave such samples out")
        if len(labels) != len(samples) or not -1 <= int(labels.min()) <= int(labels.max()) < self.classes:
            got = f"{len(labels)} labels" + (f" {int(labels.min())}..{int(labels.max())}" if len(labels) else "")
            raise DataError(f"{what}: wanted a label 0..{self.classes - 1} for each of {len(samples)}, got {got}")
        return samples, labels
