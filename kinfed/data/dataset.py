"""A dataset: samples of one shape with their targets, split into train and test."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kinfed.data.arrays import array_of
from kinfed.data.partitions.split import Index
from kinfed.errors import DataError
from kinfed.learning_tasks import LearningTask, NextToken

Plain = npt.NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with targets; x: uint8 images [n, channels, height, width], float features [n, ...], or token ids."""

    name: str
    x_train: Plain
    y_train: Plain
    x_test: Plain
    y_test: Plain
    classes: int  # of numbers as targets: how many a sample has
    writer_train: Index | None = None  # the natural client of sample i
    writer_test: Index | None = None
    class_names: tuple[str, ...] = ()
    client_clusters: Index | None = None  # ground-truth cluster of each natural client
    client_names: tuple[str, ...] = ()  # of the natural clients
    feature_names: tuple[str, ...] = ()  # the columns of a table that samples are made of

    def __post_init__(self) -> None:
        for part in ("x_train", "x_test"):
            x = as_usual(array_of(getattr(self, part), part))
            check_samples(x, part)
            object.__setattr__(self, part, x)
        for part in ("y_train", "y_test"):
            object.__setattr__(self, part, array_of(getattr(self, part), part))
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Raise DataError where samples of training and testing differ in shape, or targets in number."""
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            shapes = list(self.x_train.shape[1:]), list(self.x_test.shape[1:])
            raise DataError(f"samples of x_train have shape {shapes[0]}, those of x_test {shapes[1]}: wanted one shape")
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise DataError(f"x_{part} has {len(x)} samples and y_{part} {len(y)} targets: wanted as many of each")

    def pool(self) -> "Dataset":
        """The same with the test samples among the training samples, too: for clients that split their own samples."""
        pairs = [(self.x_train, self.x_test), (self.y_train, self.y_test)]
        x, y = (np.concatenate(pair) for pair in pairs)
        has_writers = self.writer_train is not None and self.writer_test is not None
        writers = np.concatenate([self.writer_train, self.writer_test]) if has_writers else None
        return replace(self, x_train=x, y_train=y, writer_train=writers)

    def for_task(self, task: LearningTask) -> "Dataset":
        """The same with targets as this task has them; classes can be numbers, but not the other way round."""
        train, test = task.targets(self.y_train), task.targets(self.y_test)
        if isinstance(task, NextToken):
            return self._for_tokens()
        if task.has_classes():
            return replace(self, y_train=train, y_test=test)
        if self.class_names and train.dtype.kind == "f":
            values = as_values(self.class_names)
            train, test = (task.targets(values[y.astype(np.int64)]) for y in (self.y_train, self.y_test))
        return replace(self, y_train=train, y_test=test, classes=task.count_outputs(train), class_names=())

    def _for_tokens(self) -> "Dataset":
        """The same with token ids as samples and targets; classes that are numbers, as in a table, are token ids."""
        y, names = [self.y_train.astype(np.int64), self.y_test.astype(np.int64)], self.class_names
        if names and all(map(str.isdecimal, names)):
            values, names = as_values(names).astype(np.int64), ()
            y = [values[own] for own in y]
        x = [as_tokens(own) for own in (self.x_train, self.x_test)]
        classes = max(self.classes, *map(count_vocabulary, (*x, *y)))
        if names and classes > len(names):
            raise DataError(f"targets are {len(names)} words, and token ids go up to {classes - 1}: wanted token ids")
        return replace(
            self, x_train=x[0], x_test=x[1], y_train=y[0], y_test=y[1], classes=classes, class_names=names
        )  # fmt: skip

    @property
    def labels_train(self) -> Index:
        """What partitions know of the training samples: their labels; where targets are no classes, all 0."""
        return labels_of(self.y_train)

    @property
    def labels_test(self) -> Index:
        return labels_of(self.y_test)


def as_usual(x: Plain) -> Plain:
    """Samples in a type that networks take: uint8, token ids as int64, other numbers as float32."""
    if x.dtype.kind in "fb":
        with np.errstate(over="ignore"):  # an infinity, which is refused
            return x.astype(np.float32, copy=False)
    return x.astype(np.int64, copy=False) if x.dtype.kind in "iu" and x.dtype != np.uint8 else x


def are_classes(y: Plain) -> bool:
    """Whether targets are classes, and not numbers or sequences."""
    return y.ndim == 1 and y.dtype.kind in "iub"


def labels_of(y: Plain) -> Index:
    """Classes as they are; other targets as one class for all."""
    return y.astype(np.int64) if are_classes(y) else np.zeros(len(y), np.int64)


def as_values(names: Sequence[str]) -> Plain:
    """The numbers that names of classes are; DataError where they are words."""
    try:
        return np.array([float(name) for name in names])
    except ValueError:
        raise DataError(
            f"the targets are the classes {', '.join(names[:5])}, and the task wants numbers: set another task.name or "
            "another target"
        ) from None


def as_tokens(x: Plain) -> Plain:
    """Token ids; whole numbers in floats are such too. DataError for others."""
    if x.dtype.kind != "f":
        return x
    tokens = x.astype(np.int64)
    if (tokens != x).any() or (tokens < 0).any():
        raise DataError(
            f"samples are {x.dtype} {list(x.shape[1:])}, and the next token is learnt from token ids, 0, 1, 2, …; of a "
            "table, set data.options.scale = false"
        )
    return tokens


def count_vocabulary(x: Plain) -> int:
    """How many token ids there are at least: the largest and all below it; 0 where samples are none."""
    return int(x.max()) + 1 if x.dtype.kind in "iu" and x.size else 0


def check_samples(x: Plain, name: str) -> None:
    """Raise DataError where samples are no numbers, have gaps, or are token ids below zero."""
    if x.dtype.kind not in "iufb":
        raise DataError(f"{name} is {x.dtype} {list(x.shape)}, wanted numbers: encode text as numbers or token ids")
    if x.dtype.kind == "f" and x.size and not (np.isfinite(x.min()) and np.isfinite(x.max())):
        sick = np.flatnonzero([not np.isfinite(sample).all() for sample in x])
        raise DataError(
            f"{len(sick)} of {len(x)} samples of {name} have a NaN or an infinity, the first is sample {sick[0]}: "
            "fill gaps, or leave such samples out"
        )
    if x.dtype.kind == "i" and x.size and int(x.min()) < 0:
        sick = np.flatnonzero(np.less(x.reshape(len(x), -1).astype(np.int64), 0).any(1))
        raise DataError(f"token ids of {name} must be 0, 1, 2, …, got {int(x.min())} (sample {sick[0]})")
