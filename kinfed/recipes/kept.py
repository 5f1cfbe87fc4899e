"""Kept numbers: what was measured in each cell, by seed, in one CSV file that outlives the folders of runs.

A page of results can be made anew from it, and judged by today's rules, where the runs themselves are not at hand. A
line belongs to a cell by the names of table, row and column, the datasets, and a digest of what the recipe sets: the
numbers of a row whose settings have changed since are not taken for those of the new ones.
"""

import csv
import hashlib
import io
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kinfed.errors import FileError
from kinfed.files import lock
from kinfed.recipes.cells import Cell
from kinfed.recipes.outcome import Numbers, Outcome
from kinfed.runs.logs import write_text

FIELDS = ("table", "row", "column", "protocols", "data", "settings", "seed", "numbers")
Key = tuple[str, str, str, str, str]  # table, row, column, data, settings


@dataclass
class KeptNumbers:
    """Numbers by cell and seed."""

    cells: dict[Key, dict[int, Numbers]] = field(default_factory=dict)
    protocols: dict[Key, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "KeptNumbers":
        """Those of a file; none where it is not there."""
        kept = cls()
        table = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8") if path.exists() else ""))
        if table.fieldnames and set(table.fieldnames) != set(FIELDS):  # other columns would be lost
            raise FileError(
                f"{path} holds no kept numbers: wanted the columns {', '.join(FIELDS)}, got "
                f"{', '.join(table.fieldnames)}"
            )
        for line in table:
            try:
                key = (line["table"], line["row"], line["column"], line["data"], line["settings"])
                kept.cells.setdefault(key, {})[int(line["seed"])] = parse_numbers(line["numbers"])
                kept.protocols[key] = line["protocols"]
            except (KeyError, ValueError, TypeError) as error:
                raise FileError(
                    f"{path} holds no kept numbers: wanted the columns {', '.join(FIELDS)} ({error})"
                ) from None
        return kept

    def write(self, path: Path) -> None:
        """Writes them, in the order of tables."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(FIELDS)
        for key in sorted(self.cells, key=lambda key: key[0]):  # rows stay in the recipe's order
            table, row, column, data, settings = key
            for seed, numbers in sorted(self.cells[key].items()):
                writer.writerow(
                    (table, row, column, self.protocols[key], data, settings, seed, format_numbers(numbers))
                )
        write_text(path, text.getvalue())

    @classmethod
    def add(cls, path: Path, outcomes: Iterable[Outcome]) -> "KeptNumbers":
        """Those of a file with the numbers of what has run, which are in the file then, too.

        Several commands may add to one file.
        """
        name = hashlib.blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()
        with lock(Path(tempfile.gettempdir()) / f"kinfed-{name}.lock"):
            kept = cls.read(path)
            kept.update(outcomes)
            kept.write(path)
        return kept

    def find(self, table: str, cell: Cell) -> Mapping[int, Numbers]:
        """The kept numbers of a cell, by seed."""
        return self.cells.get(key_of(table, cell), {})

    def find_lacking(self, table: str, cell: Cell, seeds: Sequence[int]) -> tuple[int, ...]:
        """The seeds of which a cell has no kept numbers."""
        return tuple(seed for seed in seeds if seed not in self.find(table, cell))

    def datasets(self, table: str) -> frozenset[str]:
        """The datasets of a table's kept numbers."""
        return frozenset(name for key in self.cells if key[0] == table for name in key[3].split())

    def update(self, outcomes: Iterable[Outcome]) -> None:
        """Takes the numbers of what has run; each table's lines in the order of its rows."""
        for outcome in outcomes:
            table = outcome.recipe.name
            for result in outcome.results:
                if result.runs:
                    key = key_of(table, result.cell)
                    self.cells[key] = {**self.cells.get(key, {}), **result.numbers}
                    self.protocols[key] = " = ".join(result.cell.protocols)


def key_of(table: str, cell: Cell) -> Key:
    return table, cell.row.name, cell.column.name, cell.data, cell.settings


def parse_numbers(text: str) -> dict[str, float]:
    """ "accuracy=80.41 variance=61.28" by name."""
    pairs = (word.split("=") for word in text.split())
    return {name: float(value) for name, value in pairs}


def format_numbers(numbers: Numbers) -> str:
    return " ".join(f"{name}={value:.10g}" for name, value in numbers.items())
