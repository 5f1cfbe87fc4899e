"""Tables that benchmarks wrote into the docs, read back."""

from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
Row = list[str]


@dataclass(frozen=True)
class Tables:
    """What was measured of each method."""

    kinds: Row  # of heterogeneity
    expected: dict[str, Row]
    recovery: dict[str, Row]  # ARI
    given: dict[str, str]  # what a method was given of the clusters
    roles_head: Row
    roles: dict[str, list[Row]]  # one row for each setting that changes the cost


def read_tables() -> Tables:
    """The tables of docs/recovery.md and docs/roles.md, by method."""
    expected, recovery, given = (part("recovery", name) for name in ("expected", "measured digits", "given"))
    roles = part("roles", "written by benchmarks/roles.py", "end of what it writes")
    by_method: dict[str, list[Row]] = {}
    for title, *cells in roles[1:]:
        by_method.setdefault(name_of(title), []).append([title, *cells])
    given_to = {name: cells[0] for name, cells in by_name(given).items()}
    return Tables(expected[0][1:], by_name(expected), by_name(recovery), given_to, roles[0], by_method)


def part(page: str, begin: str, end: str = "") -> list[Row]:
    """The rows of the table between two comments of a page; the first is its head."""
    text = (DOCS / f"{page}.md").read_text()
    inside = text.split(f"<!-- {begin} -->")[1].split(f"<!-- {end or f'end of {begin}'} -->")[0]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in inside.strip().splitlines()]
    return [head, *rows]


def by_name(rows: list[Row]) -> dict[str, Row]:
    return {name_of(title): cells for title, *cells in rows[1:]}


def name_of(title: str) -> str:
    """The method that a row is about: "`flt`, `tuning=none`" is about flt."""
    return title.split(",")[0].strip("`")
