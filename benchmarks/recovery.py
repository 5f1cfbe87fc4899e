"""Which heterogeneity can each method see? ARI of every method on five kinds of planted groups.

    python benchmarks/recovery.py --data digits --seeds 3 [--device cuda] [--methods a,b] [--kinds x,y] [--write]
    python benchmarks/recovery.py --configs FOLDER

Prints a Markdown table (`--write`: puts it, and what was expected, into docs/recovery.md). What is planted, what each
method is given and what was expected is in recovery.toml. `--configs` writes each cell's config for `kinfed run`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kinfed.algorithms import ALGORITHMS

PLAN = Path(__file__).with_suffix(".toml")
Claim = Literal["finds", "partly", "blind", "no groups"]
CLAIMS: tuple[Claim, ...] = ("finds", "partly", "blind", "no groups")
Table = Mapping[str, object]


@dataclass(frozen=True)
class Expectation:
    """What is claimed of a method on a kind, and why."""

    claim: Claim
    reason: str

    def __post_init__(self) -> None:
        if self.claim not in CLAIMS or not self.reason:
            raise ValueError(f"wanted one of {', '.join(CLAIMS)} and a reason, got {self.claim!r} and {self.reason!r}")


@dataclass(frozen=True)
class Kind:
    """One kind of heterogeneity: the part of a config that plants it."""

    says: str
    seeds: tuple[int, ...]
    config: Table


@dataclass(frozen=True)
class Given:
    """What a method is given, for all kinds alike."""

    told: str = "nothing"
    rounds: int = 1
    settings: Table = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """All of recovery.toml."""

    base: Table
    data: Mapping[str, Table]
    kinds: Mapping[str, Kind]
    given: Mapping[str, Given]
    expected: Mapping[tuple[str, str], Expectation]  # (method, kind) -> what was expected

    def missing(self) -> list[str]:
        """The cells that nothing was written down for."""
        return [
            f"{method} x {kind}" for method in ALGORITHMS for kind in self.kinds if (method, kind) not in self.expected
        ]


def read_plan(path: Path = PLAN) -> Plan:
    """The plan in a TOML file."""
    whole = tomllib.loads(path.read_text(encoding="utf-8"))
    kinds = {name: Kind(t["says"], tuple(t["seeds"]), t["config"]) for name, t in whole["kinds"].items()}
    given = {name: Given(**table) for name, table in whole["given"].items()}
    return Plan(whole["base"], whole["data"], kinds, given, cells(whole["expected"], kinds))


def cells(
    table: Mapping[str, Mapping[str, list[str]]], kinds: Mapping[str, Kind]
) -> dict[tuple[str, str], Expectation]:
    """[METHOD] kind = [claim, reason] -> by method and kind; `all` stands for all kinds."""
    return {
        (method, kind): Expectation(*(row["all"] if "all" in row else row[kind]))  # type: ignore[arg-type]
        for method, row in table.items()
        for kind in (kinds if "all" in row else row)
    }
