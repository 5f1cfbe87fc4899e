"""What a recipe is: a paper's table or figure as rows, columns, protocols and claims; `recipe_files` reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Literal

from kinfed.config import Table, merge_tables
from kinfed.recipes.measures import Printed

Kind = Literal["lines", "relatedness", "signatures", "dendrogram", "clients"]


@dataclass(frozen=True)
class Column:
    """A column of a table, or a point on the axis of a figure: what all its cells have in common."""

    name: str
    title: str
    config: Table = field(default_factory=dict)
    quick: Table = field(default_factory=dict)
    incomparable: str = ""
    under: Mapping[str, Table] = field(default_factory=dict)  # configs by protocol
    x: float | None = None  # where it stands on a figure's axis
    each: tuple[Table, ...] = ()  # laid over its config; a cell runs with each, and its numbers are their mean

    @property
    def parts(self) -> list["Column"]:
        """The column under each of the configs that it is the mean of; itself where it is none."""
        return [replace(self, config=merge_tables(self.config, table)) for table in self.each] or [self]


@dataclass(frozen=True)
class Figure:
    """How the cells of a recipe are drawn, and what the paper's figure is said to show."""

    shows: str
    kind: Kind = "lines"  # of every row; or what `kinfed report` draws of a run
    x: str = (
        "round"  # "round": curves over rounds, one panel a column; else the title of an axis along which columns are
    )
    key: str = ""  # the setting that columns differ in
    values: tuple[int | float, ...] = ()  # of that setting: a column each


@dataclass(frozen=True)
class Sweep:
    """A setting that the paper tuned on the number it reports."""

    key: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Protocol:
    """A way to make the numbers: that of the paper, or a fairer one."""

    name: str
    says: str
    config: Table = field(default_factory=dict)
    sweep: Sweep | None = None
    judged: bool = True  # whether the published numbers are meant to be made so


@dataclass(frozen=True)
class Under:
    """What is special about a row under one protocol."""

    config: Table = field(default_factory=dict)
    incomparable: Mapping[str, str] = field(default_factory=dict)  # by patterns of columns


@dataclass(frozen=True)
class Row:
    """A row of a table, most often a method, and the numbers published for it."""

    name: str
    title: str
    config: Table
    at: Mapping[str, Table]  # by column
    under: Mapping[str, Under]  # by protocol
    published: Mapping[str, tuple[Printed | None, ...]]  # by column
    incomparable: Mapping[str, str]  # by patterns of columns
    round: int = 0  # after which its numbers are taken; 0: at the end
    columns: tuple[str, ...] = ()  # that it stands in

    def reason(self, column: str, protocol: str) -> str:
        """Why the numbers of a cell cannot be compared; empty where they can."""
        for reasons in (self.under[protocol].incomparable, self.incomparable):
            for patterns, why in reasons.items():
                if any(fnmatch(column, pattern) for pattern in patterns.split("|")):
                    return why
        return ""


@dataclass(frozen=True)
class StandIn:
    """A dataset that takes the place of one that is not here, and what that means."""

    name: str
    says: str


@dataclass(frozen=True)
class Claim:
    """What a table or figure is meant to show: by default one row is so far above another, or above zero."""

    says: str
    better: str  # a row
    than: str = ""  # a row
    by: float = 0.0
    rule: str = "above"  # of kinfed/recipes/rules.py
    measure: str = ""  # empty: the main one
    than_measure: str = ""  # of the row compared with; empty: the same
    than_protocol: str = ""  # under which that row ran; empty: the same
    than_column: str = ""  # of a table: where that row stands; empty: the same
    between: tuple[float, ...] = ()  # on a figure's axis: where a peak is, from where on a curve is flat
    over_columns: bool = False  # of a table: the mean over these columns, not each
    columns: tuple[str, ...] = ()  # empty: all
    protocols: tuple[str, ...] = ()  # empty: all


@dataclass(frozen=True)
class Recipe:
    """A paper's table or figure: how its cells are run, what was published, and what it is said to show."""

    name: str
    title: str
    paper: str
    measures: tuple[str, ...]
    main: str
    target: str
    notes: tuple[str, ...]
    config: Table
    quick: Table
    columns: Mapping[str, Column]
    protocols: Mapping[str, Protocol]
    rows: Mapping[str, Row]
    stand_ins: Mapping[str, StandIn]
    claims: tuple[Claim, ...]
    figure: Figure | None = None
