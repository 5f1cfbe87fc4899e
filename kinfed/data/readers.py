"""Tables and folders of images with a client for each sample -> a dataset: CSV, Parquet, FOLDER/client/class/image.

The same reader takes the file or folder of one client, for a node and for `kinfed assign`. Pillow and pyarrow, which
read images and Parquet, come with the extra `hub`.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from kinfed.checks import fraction, one_of
from kinfed.data.arrays import stack_arrays
from kinfed.data.dataset import Dataset
from kinfed.data.image_files import SUFFIXES, ImageForm, read_images
from kinfed.data.natural import scale_by_client
from kinfed.data.partitions.split import Index, draw_stratified, generator, others, samples_of_each
from kinfed.errors import ConfigError, DataError
from kinfed.registry import explain_unknown, suggest

TABLES = (".csv", ".parquet")
GAPS = ("", "na", "nan", "null", "none", "?")
Floats = npt.NDArray[np.float32]
Features = npt.NDArray[np.generic]
Column = list[str] | list[object] | npt.NDArray[np.generic]  # of objects: an image or a list in each cell


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
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return kind(**given)(path)  # type: ignore[arg-type]


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

    def __post_init__(self) -> None:
        fraction(test=self.test)
        one_of(("refuse", "fill"), gaps=self.gaps)

    def __call__(self, path: Path) -> Dataset:
        """The dataset in this file."""
        table = read_columns(path)
        owner = pick_column(table, self.client, "client", path)
        x = self.read_features(table, path)
        clients, client = np.unique(np.asarray(owner).astype(str), return_inverse=True)
        y, names = self.read_targets(table, path)
        strata = y if y.dtype.kind == "i" else np.zeros(len(y), np.int64)
        test = hold_out(client.astype(np.int64), strata.astype(np.int64), self.test, self.seed)
        train = others(len(y), test)
        is_train = np.isin(np.arange(len(y)), train)
        if x.dtype == np.float32 and x.ndim == 2 and (self.scale or np.isnan(x).any()):
            x = scale_by_client(x.astype(np.float32), client.astype(np.int64), is_train)
        return Dataset(
            path.stem, x[train], y[train], x[test], y[test], len(names) or len(self.targets),
            client[train].astype(np.int64), client[test].astype(np.int64), class_names=names,
            client_names=tuple(clients), feature_names=self.list_features(table),
        )  # fmt: skip

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns that are learnt."""
        return (self.target,) if isinstance(self.target, str) else self.target

    def read_targets(
        self, table: Mapping[str, Column], path: Path, known: Sequence[str] = ()
    ) -> tuple[npt.NDArray[np.generic], tuple[str, ...]]:
        """Targets [n] and the names of their classes; of several columns numbers [n, columns]."""
        columns = [pick_column(table, name, "target", path) for name in self.targets]
        if isinstance(self.target, str):
            return parse_targets(columns[0], self.target, known)
        numbers = np.stack([read_numbers(*pair) for pair in zip(columns, self.target, strict=True)], 1)
        if len(gaps := np.argwhere(np.isnan(numbers))):
            row, at = gaps[0].tolist()
            raise DataError(f"column '{self.target[at]}' has no value in row {row + 2}: every sample needs its targets")
        return numbers, ()

    def list_features(self, table: Mapping[str, Column]) -> tuple[str, ...]:
        """The columns that a sample is made of."""
        return self.features or tuple(name for name in table if name not in (self.client, *self.targets))

    def read_features(self, table: Mapping[str, Column], path: Path, images: ImageForm = AS_FOUND) -> Features:
        """The columns of features as numbers: [n, columns]; or what one column of images or lists holds: [n, ...]."""
        chosen = {name: pick_column(table, name, "features", path) for name in self.list_features(table)}
        if not chosen:
            learnt = ", ".join(self.targets)
            raise DataError(f"{path} has no columns beside '{self.client}' and '{learnt}': nothing to learn from")
        if nested := [name for name, column in chosen.items() if has_nested(column)]:
            if len(chosen) > 1:
                raise DataError(
                    f"{path}: column '{nested[0]}' holds images or lists, so that it is all of a sample: choose it "
                    f"alone by data.options.features (there are also {', '.join(set(chosen) - {nested[0]})})"
                )
            lists = read_nested(list(chosen[nested[0]]), nested[0], images)
            refuse_gaps(lists, nested[0], self.gaps, path)
            return lists
        x = np.stack([read_numbers(column, name) for name, column in chosen.items()], 1)
        if self.gaps == "refuse" and (gaps := np.isnan(x).sum(0)).any():
            names = [f"{name} ({n})" for name, n in zip(chosen, gaps.tolist(), strict=True) if n]
            raise DataError(
                f"{path}: missing values in {', '.join(names[:5])}: fill them, leave the columns out by "
                "data.options.features, or set data.options.gaps = 'fill'"
            )
        return x


def hold_out(client: Index, strata: Index, share: float, seed: int) -> Index:
    """Samples for testing: this share of each client's, stratified; it keeps at least one to train on."""
    held = []
    for owner, own in enumerate(samples_of_each(client)):
        wanted = min(max(round(share * len(own)), int(share > 0)), len(own) - 1)
        held.append(own[draw_stratified(strata[own], wanted, generator(seed, "table", owner))])
    return np.sort(np.concatenate(held))


def read_columns(path: Path) -> dict[str, Column]:
    """The columns of a table by name."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *lines = csv.reader(file)
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise DataError(f"{path} cannot be read as a CSV table with a header: {error}") from error
    lines = [line for line in lines if line]
    ragged = next((i for i, line in enumerate(lines) if len(line) != len(header)), None)
    if ragged is not None:
        raise DataError(f"{path}: row {ragged + 2} has {len(lines[ragged])} fields, the header {len(header)}")
    if not lines:
        raise DataError(f"{path} has nothing below its header")
    return {name.strip(): list(column) for name, column in zip(header, zip(*lines, strict=True), strict=True)}


def read_parquet(path: Path) -> dict[str, Column]:
    """The columns of a Parquet file."""
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError("Parquet files need pyarrow: pip install 'kinfed[hub]', or write a CSV file") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise DataError(f"{path} cannot be read as a Parquet table: {error}") from error
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return {
        name: column if has_nested(column) else ["" if value is None else str(value) for value in column]
        for name, column in columns.items()
    }


def has_nested(column: Column) -> bool:
    """Whether cells hold images or lists in place of numbers or words."""
    return any(isinstance(cell, bytes | dict | list) for cell in column[:1])


def read_nested(column: Sequence[object], name: str, images: ImageForm) -> Features:
    """A column of images (bytes of a file, maybe as {bytes, path}) or of lists of numbers: [n, ...]."""
    cells = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in column]
    if missing := [at for at, cell in enumerate(cells) if cell is None]:
        raise DataError(f"column '{name}' has nothing in row {missing[0] + 2}: every sample needs its features")
    if files := [cell for cell in cells if isinstance(cell, bytes)]:
        return read_images(files, images)
    lists = stack_arrays(cast("list[npt.ArrayLike]", cells), f"lists of column '{name}'")
    if lists.dtype.kind not in "iuf":
        raise DataError(f"column '{name}' holds lists of {lists.dtype}, wanted lists of numbers, all of one shape")
    return lists.astype(np.float32 if lists.dtype.kind == "f" else np.int64)


def refuse_gaps(lists: Features, name: str, gaps: str, path: Path) -> None:
    """Raise DataError where lists have gaps, which only columns of a table can have filled: [n, columns]."""
    if lists.dtype.kind != "f" or not np.isnan(lists).any() or (gaps == "fill" and lists.ndim == 2):
        return
    sick = np.flatnonzero(np.isnan(lists).reshape(len(lists), -1).any(1))
    raise DataError(
        f"{path}: missing values (NaN) in column '{name}', in {len(sick)} of {len(lists)} rows, the first is row "
        f"{sick[0] + 2}: fill them" + (", or set data.options.gaps = 'fill'" if lists.ndim == 2 else "")
    )


def pick_column(table: Mapping[str, Column], name: str, option: str, path: Path) -> Column:
    """A column; raises an error that names the nearest, and how to map it."""
    if name in table:
        return table[name]
    raise DataError(
        f"{path} has no column '{name}'{suggest(name, list(table))} (it has: {', '.join(list(table)[:20])}); say which "
        f"one it is by data.options.{option}, or rename it"
    )


def read_numbers(column: Column, name: str) -> Floats:
    """A column as numbers, NaN for gaps; raises DataError for the first text."""
    values = np.full(len(column), np.nan, np.float32)
    for at, cell in enumerate(column):
        text = str(cell).strip()
        try:
            values[at] = np.nan if text.lower() in GAPS else float(text)
        except ValueError:
            raise DataError(
                f"column '{name}' has text, '{text[:40]}' in row {at + 2}: encode it as numbers, or leave it out by "
                "data.options.features"
            ) from None
    return values


def parse_targets(
    column: Column, name: str, known: Sequence[str] = ()
) -> tuple[npt.NDArray[np.generic], tuple[str, ...]]:
    """Targets and the names of their classes: numbers with a fraction stay numbers, all else are classes.

    Where the classes are `known`, others are refused.
    """
    text = [str(cell).strip() for cell in column]
    gap = next((i for i, word in enumerate(text) if word.lower() in GAPS), None)
    if gap is not None:
        raise DataError(f"column '{name}' has no value in row {gap + 2}: every sample needs a target")
    if not known and any(is_fraction(word) for word in text) and all(is_number(word) for word in text):
        return np.array(text, np.float32), ()
    names = tuple(known) or tuple(
        sorted(set(text), key=lambda word: (not is_number(word), float(word) if is_number(word) else 0, word))
    )
    if unknown := sorted(set(text) - set(names)):
        raise DataError(
            f"column '{name}' has the class '{unknown[0]}', which the server does not know"
            f"{suggest(unknown[0], names)}; known: {', '.join(names)}"
        )
    place = {word: at for at, word in enumerate(names)}
    return np.array([place[word] for word in text], np.int64), names


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def is_fraction(word: str) -> bool:
    return is_number(word) and float(word) % 1 != 0


TABLE = Table()


def read_own_table(
    path: Path, class_names: Sequence[str] = (), settings: Table = TABLE, images: ImageForm = AS_FOUND
) -> tuple[Features, npt.NDArray[np.generic] | None, Index]:
    """One client's features, targets (None: it has none) and samples for testing, of a table without other clients."""
    table = read_columns(path)
    x = settings.read_features(table, path, images)
    is_labelled = all(name in table for name in settings.targets)
    y = settings.read_targets(table, path, class_names)[0] if is_labelled else None
    nobody, mine = np.empty(0, np.int64), np.zeros(len(x), np.int64)
    strata = y.astype(np.int64) if y is not None and y.dtype.kind == "i" else mine
    test = nobody if y is None or len(x) < 2 else hold_out(mine, strata, settings.test, settings.seed)
    is_train = ~np.isin(np.arange(len(x)), test)
    is_plain = x.dtype == np.float32 and x.ndim == 2
    return (scale_by_client(x.astype(np.float32), mine, is_train) if settings.scale and is_plain else x), y, test


def read_alike(path: Path, own: Path, settings: Table = TABLE, images: ImageForm = AS_FOUND) -> Features:
    """The features of all samples in a table, scaled by the training samples of the client's own table."""
    x = settings.read_features(read_columns(path), path, images)
    if not settings.scale or x.dtype != np.float32 or x.ndim != 2:
        return x
    like, test = settings.read_features(read_columns(own), own, images), read_own_table(own, (), settings, images)[2]
    is_train = np.isin(np.arange(len(like) + len(x)), others(len(like), test))
    both = np.concatenate([like, x]).astype(np.float32)
    return scale_by_client(both, np.zeros(len(both), np.int64), is_train)[len(like) :]


@dataclass(frozen=True)
class ImageFolder:
    """Images as FOLDER/client/class/image.png; the names of folders are those of clients and classes."""

    size: int = 0  # side to which images are scaled; 0: as they are, all of one size
    grey: bool = False  # one channel in place of three
    test: float = 0.2  # share of a client's samples that is for testing
    seed: int = 0  # of that split

    def __post_init__(self) -> None:
        fraction(test=self.test)

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
        train = others(len(y), test)
        return Dataset(
            path.name, x[train], y[train], x[test], y[test], len(classes), client[train], client[test],
            class_names=classes, client_names=clients,
        )  # fmt: skip
