"""Tables with a number as target, for benchmarks/regret.py; `writer_train` says which source a sample is from."""

import numpy as np
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.preprocessing import scale

from kinfed.data import Dataset

SOURCES = 4  # of Friedman's function
EACH = 6000  # samples of a source
COLUMNS = 20
TESTED = 5  # of so many samples one is for testing


def load_friedman() -> Dataset:
    """Friedman's first function (1991); in each source other five of 20 columns matter."""
    samples, targets = [], []
    for source in range(SOURCES):
        x, y = make_friedman1(EACH, COLUMNS, noise=1.0, random_state=source)
        samples.append(np.roll(x, 5 * source, axis=1))
        targets.append(y)
    return split_table("friedman", np.concatenate(samples), np.concatenate(targets), np.repeat(range(SOURCES), EACH))


def load_mixed_friedman() -> Dataset:
    """The same function of the same columns for all."""
    x, y = make_friedman1(SOURCES * EACH, COLUMNS, noise=1.0, random_state=0)
    return split_table("friedman-mixed", x, y, np.zeros(len(x), np.int64))


def load_own_friedman() -> Dataset:
    """The same function of ten columns, which each of 16 sources has in an order of its own."""
    x, y = make_friedman1(16 * 200, 10, noise=1.0, random_state=0)
    source = np.arange(len(y)) % 16
    orders = np.stack([np.random.default_rng(own).permutation(10) for own in range(16)])
    return split_table("friedman-own", np.take_along_axis(x, orders[source], 1), y, source)


def load_patients() -> Dataset:
    """How diabetes progressed in 442 patients (Efron et al. 2004); men and women are sources that no column names."""
    x, y = load_diabetes(return_X_y=True)
    return split_table("diabetes", np.delete(x, 1, 1), y, (x[:, 1] > 0).astype(np.int64))


def load_mixed_patients() -> Dataset:
    """The same patients with the column of their sex, as one source."""
    x, y = load_diabetes(return_X_y=True)
    return split_table("diabetes-mixed", x, y, np.zeros(len(x), np.int64))


def load_mirrored_patients() -> Dataset:
    """The same patients; a half of them has the progress as a score the other way round."""
    x, y = load_diabetes(return_X_y=True)
    source = np.arange(len(y)) % 2
    return split_table("diabetes-mirrored", x, np.where(source == 1, y.min() + y.max() - y, y), source)


def split_table(name: str, x: np.ndarray, y: np.ndarray, source: np.ndarray) -> Dataset:
    """Columns of mean 0 and deviation 1; targets as they are."""
    tested = np.random.default_rng(0).permutation(len(y)) % TESTED == 0
    x, y = scale(x).astype(np.float32), y.astype(np.float32)
    return Dataset(name, x[~tested], y[~tested], x[tested], y[tested], 1, source[~tested], source[tested])
