"""The columns of a table, CSV or Parquet: as numbers, as images or lists, and as targets.

pyarrow, which reads Parquet, comes with the extra `hub`.
"""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from kinfed.data.arrays import stack_arrays
from kinfed.data.image_files import ImageForm, read_images
from kinfed.errors import DataError
from kinfed.registry import suggest

GAPS = ("", "na", "nan", "null", "none", "?")
SWITCHES = {"true": 1.0, "false": 0.0}
SEPARATORS = ";\t|"  # of a CSV file without commas in its header
WHOLE = re.compile(r"^(-?\d+)\.0+$")  # as a column of floats writes whole numbers
LARGEST = float(np.finfo(np.float32).max)
Features = npt.NDArray[np.generic]
Column = list[str] | list[object] | npt.NDArray[np.generic]  # of objects: an image or a list in each cell


def read_columns(path: Path) -> dict[str, Column]:
    """The columns of a table by name."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; a path is seen from the folder where the command runs")
    return read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)


def read_csv(path: Path) -> dict[str, Column]:
    """The columns of a CSV file with a header; where that has no comma, fields end at a semicolon, tab or bar."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            separator = "," if "," in first else max(SEPARATORS, key=first.count)
            header, *lines = [line for line in csv.reader(file, delimiter=separator) if line] or [[]]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV table with a header: {error}") from error
    header = [name.strip() for name in header]
    refuse_twins(header, path)
    ragged = next((i for i, line in enumerate(lines) if len(line) != len(header)), None)
    if ragged is not None:
        raise DataError(
            f"{path}: row {ragged + 2} has {len(lines[ragged])} fields, the header {len(header)}; put fields that hold "
            f"a '{separator}' into quotes"
        )
    if not lines:
        raise DataError(f"{path} has nothing below its header" if header else f"{path} is empty, wanted a header")
    return {name: list(column) for name, column in zip(header, zip(*lines, strict=True), strict=True)}


def refuse_twins(names: Sequence[str], path: Path) -> None:
    """Raise DataError where two columns have one name."""
    if twins := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path} has two columns named '{twins[0]}': rename one")


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
    refuse_twins(table.column_names, path)
    if not len(table):
        raise DataError(f"{path} has no sample")
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return {
        name: column if has_nested(column) else ["" if value is None else str(value) for value in column]
        for name, column in columns.items()
    }


def has_nested(column: Column) -> bool:
    """Whether cells hold images or lists in place of numbers or words."""
    return isinstance(next((cell for cell in column if cell is not None), None), bytes | dict | list)


def read_nested(column: Sequence[object], name: str, images: ImageForm, tokens: bool = True) -> Features:
    """A column of images (bytes of a file, maybe as {bytes, path}) or of lists of numbers: [n, ...].

    Lists of whole numbers are token ids, without `tokens` numbers as others are.
    """
    if records := [cell for cell in column if isinstance(cell, dict) and "bytes" not in cell]:
        raise DataError(f"column '{name}' holds records of {', '.join(records[0])}: make a column of each")
    cells = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in column]
    if missing := [at for at, cell in enumerate(cells) if cell is None]:
        raise DataError(f"column '{name}' has nothing in row {missing[0] + 2}: every sample needs its features")
    if files := [cell for cell in cells if isinstance(cell, bytes)]:
        return read_images(files, images)
    lists = stack_arrays(cast("list[npt.ArrayLike]", cells), f"lists of column '{name}'")
    if lists.dtype.kind not in "iuf":
        raise DataError(f"column '{name}' holds lists of {lists.dtype}, wanted lists of numbers, all of one shape")
    if not lists.size:
        raise DataError(f"column '{name}' holds lists without numbers: nothing to learn from")
    if tokens and lists.dtype.kind != "f" and int(lists.min()) < 0:
        raise DataError(
            f"column '{name}' holds lists of whole numbers, which are token ids, 0, 1, 2, …, got {int(lists.min())}: "
            "for numbers of any kind set data.options.tokens = false"
        )
    return lists.astype(np.int64 if tokens and lists.dtype.kind != "f" else np.float32)


def refuse_gaps(lists: Features, name: str, gaps: str, path: Path) -> None:
    """Raise DataError where lists have gaps, which only columns of a table can have filled: [n, columns]."""
    if lists.dtype.kind != "f" or not np.isnan(lists).any() or (gaps == "fill" and lists.ndim == 2):
        return
    sick = np.flatnonzero(np.isnan(lists).reshape(len(lists), -1).any(1))
    raise DataError(
        f"{path}: missing values (NaN) in column '{name}', in {len(sick)} of {len(lists)} samples, the first is in "
        f"row {sick[0] + 2}: fill them" + (", or set data.options.gaps = 'fill'" if lists.ndim == 2 else "")
    )


def pick_column(table: Mapping[str, Column], name: str, option: str, path: Path) -> Column:
    """A column; raises an error that names the nearest, and how to map it."""
    if name in table:
        return table[name]
    raise DataError(
        f"{path} has no column '{name}'{suggest(name, list(table))} (it has: {', '.join(list(table)[:20])}); rename "
        f"it, or where a config reads the table say which one it is by data.options.{option}"
    )


def read_numbers(column: Column, name: str) -> npt.NDArray[np.float64]:
    """A column as numbers, NaN for gaps; raises DataError for the first text.

    They are doubles until they are scaled: dates in seconds differ by less than float32 can say.
    """
    with suppress(ValueError):  # numpy reads plain numbers several times as fast
        plain = np.asarray(column).astype(np.float64)
        if (np.abs(plain) <= LARGEST).all():
            return plain
    values = np.full(len(column), np.nan)
    for at, cell in enumerate(column):
        word = str(cell).strip()
        if word.lower() in GAPS:
            continue
        number = SWITCHES.get(word.lower(), parse_number(word))
        if number is None:
            hint = "write fractions with a point" if parse_number(word.replace(",", ".")) is not None else (
                "encode it as numbers, or leave it out by data.options.features"
            )  # fmt: skip
            raise DataError(f"column '{name}' has text, '{word[:40]}' in row {at + 2}: {hint}")
        if not abs(number) <= LARGEST:
            raise DataError(f"column '{name}' has {word[:40]} in row {at + 2}, wanted numbers that float32 can hold")
        values[at] = number
    return values


def parse_targets(
    column: Column, name: str, known: Sequence[str] | None = None
) -> tuple[npt.NDArray[np.generic], tuple[str, ...]]:
    """Targets and the names of their classes: numbers with a fraction stay numbers, all else are classes.

    Where the classes are `known`, others are refused; where none are, whole numbers are classes as they are.
    """
    words = [WHOLE.sub(r"\1", str(cell).strip()) for cell in column]
    gap = next((i for i, word in enumerate(words) if word.lower() in GAPS), None)
    if gap is not None:
        raise DataError(f"column '{name}' has no value in row {gap + 2}: every sample needs a target")
    numbers = [parse_number(word) for word in words]
    if not known and None not in numbers:
        values = np.array(numbers, np.float64)
        if (values % 1 != 0).any():
            return values.astype(np.float32), ()
        if known is not None:
            return values.astype(np.int64), ()
    names = tuple(known or sort_classes(set(words)))
    if unknown := sorted(set(words) - set(names)) if known is None or known else words:
        nearest = f"{suggest(unknown[0], names)}; known: {', '.join(names)}" if known else (
            ": it knows no names of classes; give it some (class_names), or write 0, 1, 2, …"
        )  # fmt: skip
        raise DataError(f"column '{name}' has the class '{unknown[0]}', which the server does not know{nearest}")
    place = {word: at for at, word in enumerate(names)}
    return np.array([place[word] for word in words], np.int64), names


def sort_classes(words: set[str]) -> list[str]:
    """Names of classes: numbers in their order, then words."""
    numbers = {word: parse_number(word) for word in words}
    return sorted(words, key=lambda word: (numbers[word] is None, numbers[word] or 0, word))


def parse_number(word: str) -> float | None:
    """The number that a word is; None for other words."""
    try:
        return float(word)
    except ValueError:
        return None
