"""P7: one client for each writer (LEAF's FEMNIST; FLT scenario 3 takes the first 200, FL+HC 367 random ones)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kinfed.checks import at_least
from kinfed.data.partitions.split import Labels, Promise, Split
from kinfed.data.sampling import Index
from kinfed.errors import DataError


@dataclass(frozen=True)
class Writers:
    """One client for each writer that has training and test samples."""

    max_writers: int | None = None  # clients at most; none: all writers
    min_samples: int = 1  # writers with fewer samples (train and test together) are dropped, as LEAF's -k does
    random_writers: bool = False  # False: the first ones by number

    def __post_init__(self) -> None:
        at_least(1, min_samples=self.min_samples, max_writers=1 if self.max_writers is None else self.max_writers)

    @property
    def promise(self) -> Promise:
        return Promise()

    def __call__(self, labels: Labels, rng: np.random.Generator) -> Split:
        if labels.writer_train is None or labels.writer_test is None:
            raise DataError(
                "the writers partition needs the writer of each sample (femnist); this dataset does not have it"
            )
        train, test = samples_by_writer(labels.writer_train), samples_by_writer(labels.writer_test)
        known = [w for w in sorted(train.keys() & test.keys()) if len(train[w]) + len(test[w]) >= self.min_samples]
        if not train.keys() & test.keys():
            raise DataError(
                f"no writer has training and test samples: writer_train has {list_first(train)}, "
                f"writer_test has {list_first(test)}; a writer must have the same number in both"
            )
        if not known:
            raise DataError(
                f"no writer has training and test samples and at least {self.min_samples} of them; lower min_samples"
            )
        if self.random_writers:
            known = [int(writer) for writer in rng.permutation(known)]
        chosen = known[: self.max_writers]
        return Split([train[writer] for writer in chosen], [test[writer] for writer in chosen])


def list_first(writers: Iterable[int]) -> str:
    """The first few of these writers, in words."""
    first = sorted(writers)
    return ", ".join(map(str, first[:3])) + (", …" if len(first) > 3 else "") or "none"


def samples_by_writer(writers: Index) -> dict[int, Index]:
    """The samples of each writer."""
    order = np.argsort(writers, kind="stable")
    names, starts = np.unique(writers[order], return_index=True)
    return dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True)) if len(writers) else {}
