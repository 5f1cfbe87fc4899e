"""Tables and folders of images with a client for each sample -> a dataset: CSV, Parquet, FOLDER/client/class/image.

The same reader takes the file or folder of one client, for a node and for `kinfed assign`. Pillow and pyarrow, which
read images and Parquet, come with the extra `hub`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from kinfed.checks import fraction, one_of, within
from kinfed.data.columns import (
    Column,
    Features,
    has_nested,
    parse_number,
    parse_targets,
    pick_column,
    read_columns,
    read_nested,
    read_numbers,
    refuse_gaps,
)
from kinfed.data.dataset import Dataset, are_classes, labels_of
from kinfed.data.image_files import SUFFIXES, ImageForm, read_images
from kinfed.data.natural import scale_columns
from kinfed.data.partitions.split import (
    Index,
    count_tests,
    draw_stratified,
    draw_systematic,
    generator,
    others,
    samples_of_each,
)
from kinfed.errors import ConfigError, DataError
from kinfed.registry import explain_unknown

TABLES = (".csv", ".tsv", ".parquet")
NOBODY = ("", "nan")  # cells of a client column that name none
WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list of names"}
GAPS = "fill them, leave the columns out by data.options.features, or set data.options.gaps = 'fill'"
OWN_GAPS = "fill them; only a model that was trained with data.options.gaps = 'fill' takes some"
MISSING = " is missing"  # behind the name of a column: one that says where that has gaps
Flags = npt.NDArray[np.bool_]


def is_file_name(name: str) -> bool:
    """Whether a dataset's name is the path of a table or a folder."""
    return name.lower().endswith(TABLES) or (("/" in name or "\\" in name) and Path(name).expanduser().is_dir())


def read_dataset(name: str, options: Mapping[str, object]) -> Dataset:
    """The dataset in a table or a folder of images."""
    path = Path(name).expanduser()
    kind = ImageFolder if path.is_dir() else Table
    known = [f.name for f in fields(kind)]
    if unknown := [key for key in options if key not in known]:
        raise ConfigError(f"data.options of '{name}': {explain_unknown(unknown[0], known, 'option')}")
    refuse_types(kind(), options)
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    if isinstance(features := given.get("features"), str):
        given["features"] = tuple(name.strip() for name in features.split(","))
    return kind(**given)(path)  # type: ignore[arg-type]


def refuse_types(defaults: "Table | ImageFolder", options: Mapping[str, object]) -> None:
    """Raise ConfigError where an option has a value of another kind than its default."""
    for key, value in options.items():
        wanted = type(getattr(defaults, key))
        kinds = {float: (float, int), tuple: (list, str), str: (str, list) if key == "target" else (str,)}
        if not isinstance(value, kinds.get(wanted, (wanted,))) or (isinstance(value, bool) and wanted is not bool):
            said = str(value).lower() if isinstance(value, bool) else repr(value)
            raise ConfigError(f"data.options.{key}: wanted {WANTED[wanted]}, got {said}")


AS_FOUND = ImageForm()


@dataclass(frozen=True)
class Table:
    """A CSV or Parquet file with a row for each sample, a column of clients and one of targets."""

    client: str = "client"  # the column that says whose sample it is
    target: str | tuple[str, ...] = "target"  # the column that is learnt: classes as text or integers, or numbers;
    # several: numbers, or labels of 0 and 1
    features: tuple[str, ...] = ()  # columns; none: all others
    test: float = 0.2  # share of a client's samples that is for testing
    seed: int = 0  # of that split
    scale: bool = True  # columns have mean 0 and deviation 1 over a client's own training samples
    gaps: Literal["refuse", "fill"] = "refuse"  # fill: 0, and a column that says where gaps are
    tokens: bool = True  # lists of whole numbers are token ids; false: numbers as others are

    def __post_init__(self) -> None:
        fraction(test=self.test)
        one_of(("refuse", "fill"), gaps=self.gaps)
        for names, options in (((self.client, *self.targets), "client and target"), (self.features, "features")):
            if twins := [name for name in names if names.count(name) > 1]:
                raise ConfigError(f"column '{twins[0]}' is named twice by {options}: name each once")

    def __call__(self, path: Path) -> Dataset:
        """The dataset in this file."""
        table = read_columns(path)
        clients, client = self.read_clients(table, path)
        y, names = self.read_targets(table, path)
        x = self.read_features(table, path)
        test = hold_out(client, labels_of(y), self.test, self.seed, may_be_values(y, names))
        refuse_untested(test, self.test, path)
        train, columns = others(len(y), test), self.list_columns(table)
        is_train = np.isin(np.arange(len(y)), train)
        x, marks = self.complete(x, columns, self.list_marks(table) or None, client, is_train)
        return Dataset(
            path.stem, x[train], y[train], x[test], y[test], len(names) or len(self.targets), client[train],
            client[test], class_names=names, client_names=clients, feature_names=(*columns, *marks),
        )  # fmt: skip

    def read_clients(self, table: Mapping[str, Column], path: Path) -> tuple[tuple[str, ...], Index]:
        """The names of all clients, and whose each sample is."""
        owner = [str(cell).strip() for cell in pick_column(table, self.client, "client", path)]
        if (nobody := next((i for i, name in enumerate(owner) if name.lower() in NOBODY), None)) is not None:
            raise DataError(f"column '{self.client}' has no value in row {nobody + 2}: every sample is some client's")
        names, client = np.unique(owner, return_inverse=True)
        return tuple(names.tolist()), client.astype(np.int64)

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns that are learnt."""
        return (self.target,) if isinstance(self.target, str) else self.target

    def read_targets(
        self, table: Mapping[str, Column], path: Path, known: Sequence[str] | None = None
    ) -> tuple[npt.NDArray[np.generic], tuple[str, ...]]:
        """Targets [n] and the names of their classes; of several columns numbers [n, columns]."""
        columns = [pick_column(table, name, "target", path) for name in self.targets]
        if isinstance(self.target, str) and has_nested(columns[0]):
            return read_nested(list(columns[0]), self.target, AS_FOUND), ()
        if isinstance(self.target, str):
            return parse_targets(columns[0], self.target, known)
        numbers = np.stack([read_numbers(*pair) for pair in zip(columns, self.target, strict=True)], 1)
        if len(gaps := np.argwhere(np.isnan(numbers))):
            row, at = gaps[0].tolist()
            raise DataError(f"column '{self.target[at]}' has no value in row {row + 2}: every sample needs its targets")
        return numbers.astype(np.float32), ()

    def list_columns(self, table: Mapping[str, Column]) -> tuple[str, ...]:
        """The columns of the table that a sample is made of."""
        marks = self.list_marks(table)
        named = tuple(name for name in self.features if name not in marks)
        return named or tuple(name for name in table if name not in (self.client, *self.targets))

    def list_marks(self, table: Mapping[str, Column]) -> tuple[str, ...]:
        """The features that say where columns of the table have gaps."""
        ends = [name for name in self.features if name.endswith(MISSING) and name not in table]
        return tuple(name for name in ends if name.removesuffix(MISSING) in self.features)

    def read_features(
        self, table: Mapping[str, Column], path: Path, images: ImageForm = AS_FOUND, advice: str = GAPS
    ) -> Features:
        """The columns of features as numbers: [n, columns]; or what one column of images or lists holds: [n, ...]."""
        chosen = {name: pick_column(table, name, "features", path) for name in self.list_columns(table)}
        if learnt := [name for name in self.targets if name in chosen]:
            raise DataError(
                f"{path}: column '{learnt[0]}' is both a feature and what is learnt: leave it out of features"
            )
        fills = self.gaps == "fill" or bool(self.list_marks(table))
        if not chosen:
            beside = ", ".join((self.client, *self.targets))
            raise DataError(f"{path} has no columns beside {beside}: nothing to learn from")
        if nested := [name for name, column in chosen.items() if has_nested(column)]:
            if len(chosen) > 1:
                raise DataError(
                    f"{path}: column '{nested[0]}' holds images or lists, so that it is all of a sample: choose it "
                    f"alone by data.options.features (there are also {', '.join(set(chosen) - {nested[0]})})"
                )
            lists = read_nested(list(chosen[nested[0]]), nested[0], images, self.tokens)
            refuse_gaps(lists, nested[0], self.gaps, path)
            return lists
        x = np.stack([read_numbers(column, name) for name, column in chosen.items()], 1)
        if not fills and (gaps := np.isnan(x).sum(0)).any():
            names = [f"{name} ({n})" for name, n in zip(chosen, gaps.tolist(), strict=True) if n]
            raise DataError(f"{path}: missing values in {', '.join(names[:5])}: {advice}")
        return x

    def complete(
        self, x: Features, columns: Sequence[str], marks: Sequence[str] | None, client: Index, is_train: Flags
    ) -> tuple[Features, tuple[str, ...]]:
        """Columns scaled, gaps filled with 0, and at the end columns that say where gaps are, whose names are these.

        Without `marks` these are of all columns that have gaps in training.
        """
        if x.dtype.kind != "f" or x.ndim != 2:
            return x, ()
        numbers = x.astype(np.float64)
        gaps = np.isnan(numbers)
        names = [f"{name}{MISSING}" for name in columns] if len(columns) == x.shape[1] else [""] * x.shape[1]
        marked: Flags = np.any(gaps[is_train], axis=0) if marks is None else np.isin(names, list(marks))
        filled = (
            scale_columns(numbers, client, is_train) if self.scale else np.where(gaps, 0, numbers).astype(np.float32)
        )
        shown = tuple(name for name, has in zip(names, marked.tolist(), strict=True) if has and name)
        return np.concatenate([filled, gaps[:, marked].astype(np.float32)], 1), shown

    def complete_own(self, x: Features, table: Mapping[str, Column], is_train: Flags) -> Features:
        """The same of one client's own table; features that are named are all there are."""
        marks = self.list_marks(table) if self.features else None
        return self.complete(x, self.list_columns(table), marks, np.zeros(len(x), np.int64), is_train)[0]


def refuse_untested(test: Index, share: float, path: Path) -> None:
    """Raise DataError where samples are to be held out for testing and no client has two."""
    if not share:
        raise ConfigError("data.options.test = 0 leaves no samples to test clients on: wanted a share above 0")
    if not len(test):
        raise DataError(f"{path}: every client has a single sample, so that none can be tested: wanted two or more")


def hold_out(client: Index, strata: Index, share: float, seed: int, values: bool = False) -> Index:
    """Samples for testing: this share of each client's, stratified; it keeps at least one to train on.

    Strata that are `values` have an order, so that low and high ones are drawn alike.
    """
    held, draw = [], draw_systematic if values else draw_stratified
    for owner, own in enumerate(samples_of_each(client)):
        held.append(own[draw(strata[own], count_tests(len(own), share), generator(seed, "table", owner))])
    return np.sort(np.concatenate(held))


def may_be_values(y: npt.NDArray[np.generic], names: Sequence[str]) -> bool:
    """Whether targets are whole numbers: a table does not say whether these are classes or what a regression learns."""
    return are_classes(y) and all(parse_number(name) is not None for name in names)


TABLE = Table()


def read_own_table(
    path: Path, class_names: Sequence[str] | None = (), settings: Table = TABLE, images: ImageForm = AS_FOUND
) -> tuple[Features, npt.NDArray[np.generic] | None, Index]:
    """One client's features, targets (None: it has none) and samples for testing, of a table without other clients."""
    table = read_columns(path)
    x = settings.read_features(table, path, images, OWN_GAPS)
    is_labelled = all(name in table for name in settings.targets)
    y, names = settings.read_targets(table, path, class_names) if is_labelled else (None, ())
    test, mine = np.empty(0, np.int64), np.zeros(len(x), np.int64)
    if y is not None and len(x) > 1:
        test = hold_out(mine, labels_of(y), settings.test, settings.seed, may_be_values(y, names))
    return settings.complete_own(x, table, ~np.isin(np.arange(len(x)), test)), y, test


def read_alike(path: Path, own: Path, settings: Table = TABLE, images: ImageForm = AS_FOUND) -> Features:
    """The features of all samples in a table, scaled by the training samples of the client's own table."""
    table = read_columns(path)
    x, like = settings.read_features(table, path, images), settings.read_features(read_columns(own), own, images)
    if x.dtype.kind != "f" or x.ndim != 2:
        return x
    test = read_own_table(own, None, settings, images)[2]  # targets only say how it is split
    is_train = np.isin(np.arange(len(like) + len(x)), others(len(like), test))
    return settings.complete_own(np.concatenate([like, x]), table, is_train)[len(like) :]


@dataclass(frozen=True)
class ImageFolder:
    """Images as FOLDER/client/class/image.png; the names of folders are those of clients and classes."""

    size: int = 0  # side to which images are scaled; 0: as they are, all of one size
    grey: bool = False  # one channel in place of three
    test: float = 0.2  # share of a client's samples that is for testing
    seed: int = 0  # of that split

    def __post_init__(self) -> None:
        fraction(test=self.test)
        within(0, 4096, size=self.size)

    def __call__(self, path: Path) -> Dataset:
        """The dataset in this folder."""
        files = sorted(file for file in path.glob("*/*/*") if file.suffix.lower() in SUFFIXES)
        if not files:
            raise DataError(f"no images in {path}: wanted them as {path}/CLIENT/CLASS/IMAGE.png")
        classes = tuple(sorted({file.parent.name for file in files}))
        clients = tuple(sorted({file.parent.parent.name for file in files}))
        side = (self.size, self.size) if self.size else None
        x = read_images(files, ImageForm(1 if self.grey else 3, side, bool(side), "scale them by data.options.size"))
        y = np.array([classes.index(file.parent.name) for file in files], np.int64)
        client = np.array([clients.index(file.parent.parent.name) for file in files], np.int64)
        test = hold_out(client, y, self.test, self.seed)
        refuse_untested(test, self.test, path)
        train = others(len(y), test)
        return Dataset(
            path.name, x[train], y[train], x[test], y[test], len(classes), client[train], client[test],
            class_names=classes, client_names=clients,
        )  # fmt: skip
