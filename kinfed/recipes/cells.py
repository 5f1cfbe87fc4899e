"""From a recipe to the configs of its cells: layers laid over each other, and stand-ins for data that are not here."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import TypeVar

from kinfed.config import Config, flatten, merge_tables, read, set_value
from kinfed.config.schema import Table
from kinfed.config.settings import find_method
from kinfed.data import has_all_classes, is_stored
from kinfed.errors import ConfigError
from kinfed.recipes.measures import Printed
from kinfed.recipes.recipe import Column, Protocol, Recipe, Row
from kinfed.registry import explain_unknown
from kinfed.signatures import parse_sources

T = TypeVar("T")
SOURCE = ("signature", "pretraining", "source")  # of a method that has an encoder
NO_DATASET = ("", "public")
BASE: Table = {"evaluation": {"metrics": "main"}}  # no measure needs others, for which clients are asked one by one
# What a recipe may change afterwards: settings that change no number that is kept.
NOT_DIGESTED = ("checkpoint_every", "evaluation.every", "evaluation.adapt_every", "evaluation.metrics")
WHERE = ("compare", "seeds", "seed", "checkpoint_every", "trackers", "task.metrics")  # what changes no number of a run


@dataclass(frozen=True)
class Wanted:
    """Which cells are wanted, and how they should run."""

    rows: tuple[str, ...] = ()  # names or patterns; empty: all
    columns: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    quick: bool = False
    data_dir: str = ""
    options: Table = field(default_factory=dict)  # laid over every config: the device, say
    assumed: frozenset[str] = frozenset()  # datasets that count as here, for their numbers were kept


@dataclass(frozen=True)
class Cell:
    """One row of a table in one column, under the protocols that ask for the same runs."""

    row: Row
    column: Column
    protocols: tuple[str, ...]
    variants: tuple[Config, ...]  # one; those of a sweep, of which the best counts; or of a column that is their mean
    missing: tuple[str, ...] = ()  # datasets that are not here
    incomparable: str = ""  # why its numbers cannot be compared
    remarks: tuple[str, ...] = ()
    is_judged: bool = True  # whether some of its protocols is the published one
    data: str = ""  # the datasets of its runs, the encoder's too
    settings: str = ""  # a digest of what the recipe sets, which new defaults do not change

    @property
    def is_mean(self) -> bool:
        """Whether its numbers are the means over its variants."""
        return bool(self.column.each)

    @property
    def printed(self) -> tuple[Printed | None, ...]:
        """What the paper has in this cell; nothing where the row is ours."""
        return self.row.published.get(self.column.name, ())

    def configs(self, seeds: Sequence[int]) -> Iterator[Config]:
        """All runs of the cell."""
        return (replace(config, seed=seed) for seed in seeds for config in self.variants)


def cells_of(recipe: Recipe, wanted: Wanted) -> list[Cell]:
    """The wanted cells; protocols that ask for the same runs share one."""
    found: dict[tuple[str, ...], Cell] = {}
    for column in choose(recipe.columns, wanted.columns):
        for row in choose(recipe.rows, wanted.rows):
            if column.name not in (row.published or row.columns):
                continue
            protocols = choose({name: recipe.protocols[name] for name in row.under}, wanted.protocols)
            for protocol in protocols:
                cell = cell_of(recipe, row, column, protocol, wanted)
                runs = map(digest, cell.variants) if len(protocols) > 1 else ()  # only then some may share them
                same = (row.name, column.name, cell.incomparable, *runs)
                found[same] = join_protocols(found[same], cell) if same in found else cell
    return list(found.values())


def join_protocols(first: Cell, second: Cell) -> Cell:
    """One cell of two that ask for the same runs; it is judged where one of them is."""
    judged = first.is_judged or second.is_judged
    return replace(first, protocols=(*first.protocols, *second.protocols), is_judged=judged)


def choose(things: Mapping[str, T], patterns: Sequence[str]) -> list[T]:
    """Those whose name fits one of the patterns; all without any."""
    return [thing for name, thing in things.items() if not patterns or any(fnmatch(name, p) for p in patterns)]


def refuse_unknown(patterns: Sequence[str], names: Sequence[str], kind: str) -> None:
    """Raises where a pattern fits no name."""
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            raise ConfigError(explain_unknown(pattern, list(dict.fromkeys(names)), kind))


def cell_of(recipe: Recipe, row: Row, column: Column, protocol: Protocol, wanted: Wanted) -> Cell:
    """One cell under one protocol."""
    supply = Supply(recipe, wanted.data_dir, wanted.assumed)
    parts = [substitute(supply, table_of(recipe, row, part, protocol, wanted.quick)) for part in column.parts]
    _, names, reason, remarks = parts[0]  # they have the same data
    at = f"{recipe.name}, row {row.name}, column {column.name}, protocol {protocol.name}"
    try:
        tables = [drop_other_methods(each) for each in sweep_tables([part[0] for part in parts], protocol)]
        place = merge_tables(wanted.options, {"data": {"dir": wanted.data_dir}})
        variants = tuple(read(merge_tables(each, place)) for each in tables)
    except ConfigError as error:
        raise ConfigError(f"{at}: {error}") from error
    missing = tuple(
        name for at, name in enumerate(names) if not supply.has(name, whole=not at)
    )  # encoders may do with less
    why = row.reason(column.name, protocol.name) or column.incomparable or reason
    after: list[Table] = [{"round": row.round}] if row.round else []
    judged, settings = protocol.judged, digest_tables([*tables, *after], recipe.measures)
    return Cell(row, column, (protocol.name,), variants, missing, why, remarks, judged, " ".join(names), settings)


def sweep_tables(tables: Sequence[Table], protocol: Protocol) -> list[Table]:
    """The tables of a protocol's sweep; the same ones where it has none."""
    if protocol.sweep is None:
        return list(tables)
    if len(tables) > 1:
        raise ConfigError("a protocol with a sweep wants the best of some runs, and the column the mean; drop one")
    return [set_value(tables[0], protocol.sweep.key.split("."), value) for value in protocol.sweep.values]


def table_of(recipe: Recipe, row: Row, column: Column, protocol: Protocol, quick: bool) -> Table:
    """The layers of a cell, each over the one before."""
    special = (column.under.get(protocol.name, {}), row.under[protocol.name].config, row.at.get(column.name, {}))
    layers = (column.config, row.config, protocol.config, *special)
    table = merge_tables(BASE, recipe.config)
    for layer in (*layers, *((recipe.quick, column.quick) if quick else ())):
        table = merge_tables(table, layer)
    return table


def drop_other_methods(table: Table) -> Table:
    """The table without the settings of methods that do not run."""
    methods, method = table.get("methods", {}), str(table.get("method", Config.method))
    if not isinstance(methods, dict):
        raise ConfigError(f"methods: wanted a table for each method, got {methods!r}")
    for name in methods:
        find_method(name)
    return table | {"methods": {method: methods.get(method, {})}}


@dataclass(frozen=True)
class Supply:
    """Which datasets are here, and which take the place of others."""

    recipe: Recipe
    root: str
    assumed: frozenset[str] = frozenset()

    def has(self, name: str, whole: bool = False) -> bool:
        """Whether a dataset is here; `whole`: with all of its classes."""
        root = self.root or None
        return name in self.assumed or (is_stored(name, root) and (not whole or has_all_classes(name, root)))

    def take(self, name: str) -> tuple[str, str]:
        """The dataset itself, or the stand-in for it that is here and what that means."""
        other = self.recipe.stand_ins.get(name)
        if self.has(name) or other is None or not self.has(other.name):
            return name, ""
        return other.name, other.says


def substitute(supply: Supply, table: Table) -> tuple[Table, tuple[str, ...], str, tuple[str, ...]]:
    """The table with datasets that are here if they can be, their names, why it is incomparable then, and remarks."""
    own, reason = supply.take(data_of(table))
    source = source_of(table)
    taken = [supply.take(part.name) for part in (parse_sources(source) if source not in NO_DATASET else [])]
    remarks = tuple(dict.fromkeys(said for _, said in taken if said))
    table = merge_tables(table, {"data": {"name": own}})
    names = tuple(dict.fromkeys((own, *(name for name, _ in taken))))
    if remarks:
        encoders = "+".join(dict.fromkeys(name for name, _ in taken))
        table = set_value(table, ["methods", str(table["method"]), *SOURCE], encoders)
    return table, names, reason, remarks


def data_of(table: Table) -> str:
    """The dataset of a config's table."""
    return str(flatten(table).get("data.name", "digits"))


def source_of(table: Table) -> str:
    """The datasets that the encoder of a config's table is trained on; empty where there is none."""
    return str(flatten(table).get(".".join(("methods", str(table.get("method")), *SOURCE)), ""))


def digest(config: Config) -> str:
    """A short text that two configs share when their runs have the same numbers, but for the seed."""
    flat = flatten(config.resolve())
    relevant = {k: v for k, v in flat.items() if k not in WHERE and not k.startswith("engine.") and not is_folder(k)}
    return hashlib.blake2b(json.dumps(relevant, sort_keys=True).encode(), digest_size=6).hexdigest()


def digest_tables(tables: Sequence[Table], measures: Sequence[str]) -> str:
    """A short text for what a recipe sets in these tables and its measures hang on."""
    left_out = (
        NOT_DIGESTED if any("target" in measure for measure in measures) else (*NOT_DIGESTED, "evaluation.target")
    )
    flat = [{k: v for k, v in flatten(table).items() if k not in left_out} for table in tables]
    return hashlib.blake2b(json.dumps(flat, sort_keys=True).encode(), digest_size=4).hexdigest()


def is_folder(key: str) -> bool:
    """Whether a setting only says where data are."""
    return key == "data.dir" or key.endswith(".data_dir")
