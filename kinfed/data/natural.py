"""Datasets whose clients are natural, and that are no images: phones of subjects, roles of plays, hospitals.

`har` is UCI HAR (Anguita et al., 2013), `shakespeare` the plays by role (after LEAF), `heart` UCI heart disease (after
FLamby). Each is one NAME.npz under the data root; options are the fields of its class.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from kinfed.checks import at_least, one_of
from kinfed.data.dataset import Dataset
from kinfed.data.partitions.split import Index, draw_stratified, generator, others
from kinfed.errors import ConfigError, DataError, FileError
from kinfed.files import Arrays, read_arrays

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
log = logging.getLogger("kinfed")


def open_arrays(path: Path, *names: str) -> Arrays:
    """These arrays of an .npz file."""
    try:
        arrays = read_arrays(path)
    except FileError as error:
        raise DataError(f"{path} is not a readable .npz file ({error}); replace it") from error
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"{path} has no array {', '.join(missing)} (it has: {', '.join(arrays) or 'none'}); replace it")
    return arrays


@dataclass(frozen=True)
class HAR:
    """Windows of 9 signals x 128 samples (2.56 s) of the phones of 30 subjects, in 6 activities."""

    layout: Literal["signals", "pfllib"] = "signals"  # pfllib: time and signals mixed, as its files have them
    split: Literal["series", "windows"] = (
        "series"  # unbroken ones, held out whole; windows: PFLlib's random quarter of them
    )
    test: float = 0.25  # share of the unbroken series of a client and activity that are for testing
    seed: int = 0  # of the choice of series

    def __post_init__(self) -> None:
        one_of(("signals", "pfllib"), layout=self.layout)
        one_of(("series", "windows"), split=self.split)
        if not 0 < self.test < 1:
            raise ConfigError(f"test must be a share between 0 and 1, got {self.test}")

    def __call__(self, path: Path) -> Dataset:
        """The dataset in this file."""
        parts = ("x", "y", "client", "run")
        arrays = open_arrays(path, *(f"{name}_{part}" for name in parts for part in ("train", "test")), "classes")
        x, y, client, run = (np.concatenate([arrays[f"{name}_{part}"] for part in ("train", "test")]) for name in parts)
        if self.split == "windows":
            test = np.arange(len(arrays["y_train"]), len(y), dtype=np.int64)
        else:
            test = hold_out_series(client, y, run, self.test, generator(self.seed, "series"))
        train, signals = others(len(y), test), arrange(x.astype(np.float32), self.layout)
        labels, owner = y.astype(np.int64), client.astype(np.int64)
        return Dataset(
            "har", signals[train], labels[train], signals[test], labels[test], 6, owner[train], owner[test],
            class_names=tuple(map(str, arrays["classes"])),
        )  # fmt: skip


def arrange(x: Floats, layout: str) -> Floats:
    """Windows [n, 9, 128]; PFLlib reshapes [n, 128, 9] where it should transpose."""
    return np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(x.shape) if layout == "pfllib" else x


def hold_out_series(
    client: npt.NDArray[np.generic], y: npt.NDArray[np.generic], run: npt.NDArray[np.generic], share: float,
    rng: np.random.Generator,
) -> Index:  # fmt: skip
    """Samples of whole unbroken series: of each client and label this share, one at least where there are two."""
    held = np.zeros(len(y), bool)
    for owner in np.unique(client):
        for label in np.unique(y[client == owner]):
            own = (client == owner) & (y == label)
            runs = rng.permutation(np.unique(run[own]))
            chosen = runs[: min(max(1, round(share * len(runs))), len(runs) - 1)]
            held |= own & np.isin(run, chosen)
    return np.flatnonzero(held).astype(np.int64)


@dataclass(frozen=True)
class Shakespeare:
    """The next character after 80 of a role's lines; its first lines are for training, its last for testing."""

    window: int = 80  # characters before the next one
    stride: int = 20  # characters between two samples
    test: float = 0.2  # share of a role's text, at its end
    target: Literal["next", "each"] = "next"  # each: the character after each of the window
    clusters: Literal["genre", "play"] = "genre"  # weak ground truth

    def __post_init__(self) -> None:
        at_least(1, window=self.window, stride=self.stride)
        one_of(("next", "each"), target=self.target)
        one_of(("genre", "play"), clusters=self.clusters)
        if not 0 < self.test < 1:
            raise ConfigError(f"test must be a share between 0 and 1, got {self.test}")

    def __call__(self, path: Path) -> Dataset:
        """The dataset in this file."""
        names = ("text", "vocab", "role_offsets", "role_names", "role_play", "play_names", "play_genre")
        arrays = open_arrays(path, *names)
        text, offsets = arrays["text"].astype(np.int64), arrays["role_offsets"].astype(np.int64)
        middles = offsets[:-1] + np.floor((1 - self.test) * np.diff(offsets)).astype(np.int64)
        train, test = (self.cut(text, *ends) for ends in ((offsets[:-1], middles), (middles, offsets[1:])))
        play, genre = arrays["role_play"].astype(np.int64), arrays["play_genre"].astype(np.int64)
        plays = arrays["play_names"][play]
        return Dataset(
            "shakespeare", *train[:2], *test[:2], len(arrays["vocab"]), train[2], test[2],
            class_names=tuple(map(str, arrays["vocab"])),
            client_clusters=play if self.clusters == "play" else genre[play],
            client_names=tuple(f"{role} ({of})" for role, of in zip(arrays["role_names"], plays, strict=True)),
        )  # fmt: skip

    def cut(self, text: Index, starts: Index, ends: Index) -> tuple[Index, Index, Index]:
        """Windows of the text from start to end of each role, what comes next, and whose they are."""
        firsts = [np.arange(a, b - self.window, self.stride) for a, b in zip(starts, ends, strict=True)]
        owner = np.repeat(np.arange(len(firsts)), [len(first) for first in firsts])
        first = np.concatenate(firsts)
        x = text[first[:, None] + np.arange(self.window)]
        y = text[first + self.window] if self.target == "next" else text[first[:, None] + 1 + np.arange(self.window)]
        return x, y, owner.astype(np.int64)


CATEGORIES = {"cp": (2, 3, 4), "restecg": (1, 2)}  # values that get a column of 0 and 1; the first level has none
PLAIN = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")


@dataclass(frozen=True)
class Heart:
    """Patients of four hospitals, 13 measurements with missing values: who has a heart disease."""

    rule: Literal["flamby", "all"] = "flamby"  # flamby: its 740 complete patients and split; all: 920, with gaps
    target: Literal["disease", "degree"] = "disease"  # degree: 0 to 4
    test: float = 0.34  # share of a hospital's patients, of rule "all"
    seed: int = 0  # of that split

    def __post_init__(self) -> None:
        one_of(("flamby", "all"), rule=self.rule)
        one_of(("disease", "degree"), target=self.target)

    def __call__(self, path: Path) -> Dataset:
        """The dataset in this file; columns are scaled by the training samples of the own hospital."""
        arrays = open_arrays(path, "x", "y", "y_raw", "client", "features", "hospitals", "flamby_split")
        names, client = [str(name) for name in arrays["features"]], arrays["client"].astype(np.int64)
        y = arrays["y" if self.target == "disease" else "y_raw"].astype(np.int64)
        if self.rule == "flamby":
            x = encode_columns(arrays["x"], names)
            is_train, is_test = (arrays["flamby_split"] == part for part in (0, 1))
        else:
            x = encode_columns(arrays["x"], names, seldom=True)
            is_test = np.zeros(len(y), bool)
            for owner in np.unique(client):
                own = np.flatnonzero(client == owner)
                rng = generator(self.seed, "heart")
                is_test[own[draw_stratified(y[own], round(self.test * len(own)), rng, low_first=True)]] = True
            is_train = ~is_test
        scaled = scale_by_client(x, client, is_train)
        train, test = np.flatnonzero(is_train), np.flatnonzero(is_test)
        kinds = ("no disease", "disease") if self.target == "disease" else ("0", "1", "2", "3", "4")
        return Dataset(
            "heart", scaled[train], y[train], scaled[test], y[test], len(kinds), client[train], client[test],
            class_names=kinds, client_names=tuple(map(str, arrays["hospitals"])),
        )  # fmt: skip


def encode_columns(x: npt.NDArray[np.generic], names: list[str], seldom: bool = False) -> Floats:
    """FLamby's columns: plain ones, then categories as columns of 0 and 1; `seldom`: all others too."""
    by_name = dict(zip(names, x.T.astype(np.float32), strict=True))
    more = [name for name in names if name not in PLAIN and name not in CATEGORIES] if seldom else []
    columns = [by_name[name] for name in (*PLAIN, *more)]
    for name, levels in CATEGORIES.items():
        known = np.isnan(by_name[name])
        columns += [np.where(known, np.nan, by_name[name] == level) for level in levels]
    return np.stack(columns, 1).astype(np.float32)


def scale_by_client(x: Floats, client: Index, is_train: npt.NDArray[np.bool_]) -> Floats:
    """Columns scaled by client; one that has gaps in training is followed, at the end, by one that says where."""
    gaps = np.isnan(x)
    return np.concatenate([scale_columns(x, client, is_train), gaps[:, gaps[is_train].any(0)].astype(np.float32)], 1)


def scale_columns(x: Doubles | Floats, client: Index, is_train: npt.NDArray[np.bool_]) -> Floats:
    """Columns with mean 0 and deviation 1 over each client's own training samples; gaps are 0.

    So is a column that is constant in training: there is nothing to scale other values by. A client's means stay with
    it.
    """
    scaled = np.zeros(x.shape, np.float32)
    if single := int((np.unique(client[is_train], return_counts=True)[1] == 1).sum()):
        log.warning(
            "%d client%s a single sample to train on: scaled by itself it is all zeros, and tells nothing: "
            "leave such clients out, or scale all by the same numbers beforehand and set data.options.scale = false",
            single, " has" if single == 1 else "s have",
        )  # fmt: skip
    for owner in np.unique(client):
        own = x[client == owner].astype(np.float64)
        mean, spread = measure_columns(own[is_train[client == owner]])
        is_shown = ~np.isnan(own) & (spread > 0)
        scaled[client == owner] = np.where(is_shown, (own - mean) / np.where(spread > 0, spread, 1), 0).clip(
            -BOUND, BOUND
        )
    return scaled


def measure_columns(x: Doubles) -> tuple[Doubles, Doubles]:
    """Mean and deviation of each column without its gaps; columns that differ by rounding alone have deviation 0."""
    known = ~np.isnan(x)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, x, 0).sum(0) / count
    mean += np.where(known, x - mean, 0).sum(0) / count  # what the first sum lost by rounding
    spread = np.sqrt((np.where(known, x - mean, 0) ** 2).sum(0) / np.maximum(count - 1, 1))
    return mean, np.where(spread > 1e-12 * np.abs(mean), spread, 0)


BOUND = 10.0  # deviations
NATURAL: Mapping[str, type] = {"har": HAR, "shakespeare": Shakespeare, "heart": Heart}
NaturalLoader = Callable[[Path], Dataset]
