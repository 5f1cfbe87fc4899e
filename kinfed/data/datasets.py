"""Datasets by name: from scikit-learn, from NAME.npz under the data root, or from the Hugging Face hub."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt
import platformdirs

from kinfed.data import hub
from kinfed.data.arrays import as_samples, read
from kinfed.data.dataset import Dataset
from kinfed.data.hub_files import FILES, fetch_files
from kinfed.data.natural import NATURAL, NaturalLoader
from kinfed.data.partitions.split import draw_stratified, generator, others
from kinfed.data.population import check_classes
from kinfed.data.readers import is_file_name, read_dataset
from kinfed.errors import ConfigError, DataError
from kinfed.registry import explain_unknown, import_function

DATASETS = {
    "digits": "8x8 handwritten digits that ship with scikit-learn, 10 classes, no download",
    "mnist": "MNIST, 28x28 handwritten digits, 10 classes",
    "fashion_mnist": "Fashion-MNIST, 28x28 pieces of clothing, 10 classes",
    "kmnist": "Kuzushiji-MNIST, 28x28 Japanese characters, 10 classes",
    "emnist_balanced": "EMNIST balanced, 28x28 digits and letters, 47 classes",
    "femnist": "FEMNIST of LEAF, 28x28 digits and letters by writer, 62 classes",
    "cifar10": "CIFAR-10, 32x32 colour photographs, 10 classes",
    "cifar100": "CIFAR-100, 32x32 colour photographs, 100 classes",
    "svhn": "Street View House Numbers, 32x32 colour digits, 10 classes",
    "har": "UCI HAR, 9 signals x 128 samples of phones, 30 subjects, 6 activities",
    "shakespeare": "plays of Shakespeare, next character of 63, 639 roles",
    "heart": "UCI heart disease, 13 measurements, 4 hospitals, 2 classes",
}
CLASSES = dict.fromkeys(DATASETS, 10) | {"emnist_balanced": 47, "femnist": 62, "cifar100": 100}


class Loader(Protocol):
    """A user's own dataset, `module:name`: a function, or a dataclass with its options as fields."""

    def __call__(self) -> Dataset: ...


def load(name: str, root: str | Path | None = None, options: Mapping[str, object] | None = None) -> Dataset:
    """The dataset of this name, or of a user's own loader; a named one that is not under the data root is fetched."""
    if is_file_name(name):
        return read_dataset(name, options or {})
    if ":" in name:
        return load_own(name, options or {})
    if name.endswith(".npz"):
        path = Path(name)
        raise DataError(
            f"data.name = '{name}': an .npz file is named without its folder and ending: data.name={path.stem} "
            f"--data-dir {path.parent} (in a config data.dir = '{path.parent}')"
        )
    if "/" in name:
        raise DataError(f"data.name = '{name}': no such folder (a table's path ends with .csv, .tsv or .parquet)")
    if name not in DATASETS and Path(name).is_file():
        raise DataError(f"data.name = '{name}': a table is a file .csv, .tsv or .parquet; save it as one of these")
    if name not in DATASETS and Path(name).is_dir():
        raise DataError(f"data.name = '{name}': a folder of images is named with a slash, '{name}/'")
    refuse_file(data_root(root))
    if name in NATURAL:
        return load_natural(name, data_root(root) / f"{name}.npz", options or {})
    if options:
        raise ConfigError(
            f"data.options.{next(iter(options))}: '{name}' has no options; tables, folders of images, natural datasets "
            "and datasets of your own (module:name) have"
        )
    if name == "digits":
        return digits()
    path = data_root(root) / f"{name}.npz"
    if not path.exists():
        fetch(name, path)
    return from_file(name, path)


def load_natural(name: str, path: Path, options: Mapping[str, object]) -> Dataset:
    """A dataset of natural clients, with these options."""
    kind = NATURAL[name]
    try:
        loader = kind(**options)
    except TypeError:
        known = [f.name for f in fields(kind)]
        unknown = next((key for key in options if key not in known), "")
        raise ConfigError(f"data.options of '{name}': {explain_unknown(unknown, known, 'option')}") from None
    except ConfigError as error:
        raise ConfigError(f"data.options of '{name}': {error}") from None
    if not path.exists() and name not in FILES:
        raise DataError(explain_missing(name, path))
    if not path.exists():
        fetch(name, path)
    return cast("NaturalLoader", loader)(path)


def load_own(name: str, options: Mapping[str, object]) -> Dataset:
    """What the user's own loader returns."""
    loader = cast("Callable[..., object]", import_function(name, "dataset"))
    refuse_options(name, inspect.signature(loader), options)
    found = loader(**options)
    found = found() if isinstance(loader, type) and callable(found) else found
    if not isinstance(found, Dataset):
        raise DataError(f"dataset '{name}' must return a kinfed.data.Dataset, got a {type(found).__name__}")
    return found


def refuse_options(name: str, takes: inspect.Signature, options: Mapping[str, object]) -> None:
    """Raise ConfigError where a loader does not take these options, or wants more."""
    known = [
        key for key, each in takes.parameters.items() if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in takes.parameters.values())
    if (unknown := [key for key in options if key not in known]) and not takes_any:
        none = f"unknown option '{unknown[0]}'; it has none"
        said = explain_unknown(unknown[0], known, "option") if known else none
        raise ConfigError(f"data.options of '{name}': {said}")
    try:
        takes.bind(**options)
    except TypeError as error:
        raise ConfigError(f"data.options of '{name}': {error}") from error


def is_stored(name: str, root: str | Path | None = None) -> bool:
    """Whether this dataset can be loaded without fetching it."""
    return name == "digits" or ":" in name or is_file_name(name) or (data_root(root) / f"{name}.npz").exists()


def has_clients(name: str) -> bool:
    """Whether a dataset of this name says whose each sample is; of one's own loaders and arrays that is not known."""
    return name in NATURAL or name == "femnist" or is_file_name(name)


def has_all_classes(name: str, root: str | Path | None = None) -> bool:
    """Whether a stored dataset has training samples of each of its classes; true where its classes are not known."""
    path = data_root(root) / f"{name}.npz"
    if name in NATURAL or name not in CLASSES or not path.exists():
        return True
    try:
        return count_labels(path, path.stat().st_mtime_ns) >= CLASSES[name]
    except (OSError, ValueError, KeyError, BadZipFile):
        return True  # whoever loads it says what is wrong with it


def fingerprint(name: str, root: str | Path | None = None) -> tuple[tuple[str, int, int], ...]:
    """Name, size and checksum of each array of a stored dataset, read without loading it; none where it has no file.

    They are the same wherever the file is and whenever it was written, and others where a sample is.
    """
    path = data_root(root) / f"{name}.npz"
    try:
        with ZipFile(path) as arrays:
            return tuple(sorted((entry.filename, entry.file_size, entry.CRC) for entry in arrays.infolist()))
    except (OSError, BadZipFile):
        return ()  # whoever loads it says what is wrong with it


@cache
def count_labels(path: Path, changed: int) -> int:
    """How many different labels the training samples of a file have; `changed`: when it was written."""
    with np.load(path, allow_pickle=False) as arrays:
        return len(np.unique(arrays["y_train"]))


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the .npz files: the argument, else KINFED_DATA, else the user's cache folder."""
    chosen = root or os.environ.get("KINFED_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return cache_folder()


def refuse_file(root: Path) -> None:
    """Raise ConfigError where the folder of the .npz files is a file."""
    if root.is_file():
        name = f"{root.stem} --data-dir {root.parent}" if root.suffix == ".npz" else str(root)
        raise ConfigError(
            f"data.dir (--data-dir, KINFED_DATA) is the file '{root}', wanted the folder of .npz files; a file of your "
            f"own is named by data.name={name}"
        )


def doubt_folder(path: Path) -> str:
    """Words on a missing folder, behind the path of a dataset in it; empty where there is the folder."""
    return "" if path.parent.is_dir() else f" (there is no folder '{path.parent}')"


def cache_folder(kind: str = "") -> Path:
    """Where the operating system keeps caches: ours, or its folder for one kind of files."""
    return platformdirs.user_cache_path("kinfed") / kind


def fetch(name: str, path: Path) -> None:
    """Store a named dataset from the hub at this path."""
    if name not in DATASETS:
        raise ConfigError(
            f"{explain_unknown(name, DATASETS, 'dataset')}; one of your own would be at {path}{doubt_folder(path)}: "
            "name its folder by --data-dir or KINFED_DATA (docs/own-data.md)"
        )
    try:
        (fetch_files if name in FILES else hub.fetch)(name, path)
    except hub.Unreachable as error:
        raise DataError(f"{explain_missing(name, path)}; or {error}") from error


def explain_missing(name: str, path: Path) -> str:
    """Where a dataset was looked for, and what to do."""
    origin = " (docs/natural-data.md says where it comes from)" if name in NATURAL else ""
    return (
        f"dataset '{name}' is not at {path}{doubt_folder(path)}: name the folder that has {path.name} by --data-dir or "
        f"KINFED_DATA{origin}"
    )


def from_file(name: str, path: Path) -> Dataset:
    """The dataset in one .npz file."""
    arrays = read(path, "delete it to fetch it again, or replace it" if name in DATASETS else "replace it")
    labels = {part: arrays[f"y_{part}"] for part in ("train", "test")}
    classes = count_classes(name, labels, path) if labels["train"].dtype.kind in "iu" else 1
    labels = {part: y.astype(np.int64) if y.dtype.kind in "iu" else y for part, y in labels.items()}
    writers = {part: arrays[f"writer_{part}"].astype(np.int64) for part in labels if f"writer_{part}" in arrays}
    images = {part: as_samples(arrays[f"x_{part}"]) for part in labels}
    return Dataset(
        name,
        images["train"],
        labels["train"],
        images["test"],
        labels["test"],
        classes,
        writers.get("train"),
        writers.get("test"),
    )


def count_classes(name: str, labels: Mapping[str, npt.NDArray[np.generic]], path: Path) -> int:
    """How many classes a dataset has; raises where labels are none of them."""
    low, top = (int(f(int(getattr(y, f.__name__)()) for y in labels.values())) for f in (min, max))
    classes = CLASSES.get(name, top + 1)
    check_classes(classes)
    if low < 0 or top >= classes:
        raise DataError(f"{path}: labels must be 0..{classes - 1}, got {low}..{top}")
    return classes


def read_digits() -> npt.NDArray[np.float64]:
    """A row for each of scikit-learn's digits, its 64 pixels and its label."""
    found = find_spec("sklearn")
    path = Path(found.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if found else Path()
    if path.is_file():  # as `load_digits` reads it; loading scikit-learn itself takes seconds
        return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack((bunch.data, bunch.target))


def digits() -> Dataset:
    """scikit-learn's digits, pixels scaled from 0..16 to 0..255, a fixed stratified fifth of them as test set."""
    table = read_digits()
    pixels: npt.NDArray[np.float64] = table[:, :-1].reshape(-1, 8, 8)
    x = np.round(pixels * (255 / 16)).astype(np.uint8)[:, None]
    y = table[:, -1].astype(np.int64)
    test = draw_stratified(y, round(0.2 * len(y)), generator(0, "digits"), low_first=True)
    train = others(len(y), test)
    return Dataset("digits", x[train], y[train], x[test], y[test], 10)
