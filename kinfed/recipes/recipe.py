"""What a recipe is: a table of a paper with its rows, columns, protocols and printed numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch

from kinfed.config import Table


@dataclass(frozen=True)
class Printed:
    """A number that a paper printed, and its ±."""

    value: float
    spread: float | None = None


@dataclass(frozen=True)
class Column:
    name: str
    title: str
    config: Table = field(default_factory=dict)
    quick: Table = field(default_factory=dict)
    incomparable: str = ""


@dataclass(frozen=True)
class Sweep:
    """A setting that the paper tuned on the number it reports."""

    key: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Protocol:
    name: str
    says: str
    config: Table = field(default_factory=dict)
    sweep: Sweep | None = None


@dataclass(frozen=True)
class Under:
    """What is special about a row under one protocol."""

    config: Table = field(default_factory=dict)
    incomparable: Mapping[str, str] = field(default_factory=dict)  # by patterns of columns


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    config: Table
    at: Mapping[str, Table]  # by column
    under: Mapping[str, Under]  # by protocol
    published: Mapping[str, tuple[Printed | None, ...]]  # by column
    incomparable: Mapping[str, str]  # by patterns of columns

    def reason(self, column: str, protocol: str) -> str:
        """Why the numbers of a cell cannot be compared; empty where they can."""
        for reasons in (self.under[protocol].incomparable, self.incomparable):
            for patterns, why in reasons.items():
                if any(fnmatch(column, pattern) for pattern in patterns.split("|")):
                    return why
        return ""


@dataclass(frozen=True)
class StandIn:
    name: str
    says: str


@dataclass(frozen=True)
class Claim:
    """What the table is meant to show: one row is so far above another, or above zero, in its main number."""

    says: str
    better: str
    than: str = ""
    by: float = 0.0
    columns: tuple[str, ...] = ()  # empty: all
    protocols: tuple[str, ...] = ()  # empty: all


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    paper: str
    measures: tuple[str, ...]
    main: str
    notes: tuple[str, ...]
    config: Table
    quick: Table
    columns: Mapping[str, Column]
    protocols: Mapping[str, Protocol]
    rows: Mapping[str, Row]
    stand_ins: Mapping[str, StandIn]
    claims: tuple[Claim, ...]
