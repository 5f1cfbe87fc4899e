"""The tables of the page that helps to choose: `python -m website.choosing_page` writes them into it.

They say what each method sees, needs and costs, as the pages of recovery and roles have it.
"""

import re

from kinfed.methods import METHODS
from website.measured import DOCS, Row, Tables, read_tables
from website.method_pages import facts, formula

PAGE = DOCS / "choosing.md"
SEEN = {  # in words -> the kind of heterogeneity that was planted
    "other classes": "disjoint",
    "overlapping classes": "shared",
    "swapped labels": "swapped",
    "turned images": "rotated",
    "other style": "style",
}
FOUND, PARTLY = 0.9, 0.3  # ARI
HEAD = ["method", *SEEN, "is given", "late", "unlabelled", "once", "in a round"]


def with_tables(markdown: str, measured: Tables) -> str:
    """The page with its tables between their marks."""
    clusters = [
        [f"[{facts()[name].title}](reference/methods/{name}.md)", *cells]
        for name, cells in measured.recovery.items()
        if name in METHODS and set(cells) != {"–"}
    ]
    tables = {
        "methods": [HEAD, *(row(name, measured) for name in METHODS)],
        "recovery": [["method", *measured.kinds], *clusters],
    }
    for name, rows in tables.items():
        begin, end = f"<!-- table of {name} -->", f"<!-- end of table of {name} -->"
        before, _, rest = markdown.partition(begin)
        markdown = f"{before}{begin}\n\n{as_table(rows)}\n\n{end}{rest.partition(end)[2]}"
    return markdown


def row(name: str, measured: Tables) -> Row:
    """What there is to know of one method."""
    fact, roles = facts()[name], dict(zip(measured.roles_head, measured.roles[name][0], strict=True))
    once = "–" if fact.once == "0" else formula(fact.once)
    title = f"[{fact.title}](reference/methods/{name}.md)"
    return [
        title,
        *seen(name, measured),
        given(name, measured),
        roles["late"],
        roles["unlabelled"],
        once,
        formula(fact.round),
    ]


def seen(name: str, measured: Tables) -> Row:
    """Whether it sees each kind of difference, by what was measured; dashes if it forms no clusters."""
    cells = dict(zip(measured.kinds, measured.recovery[name], strict=True))
    return ["–" if cells[kind] == "–" else word(float(cells[kind].split()[0])) for kind in SEEN.values()]


def given(name: str, measured: Tables) -> str:
    """What it is given of the clusters, in short."""
    return re.split("[,;]", measured.given.get(name, "–"))[0].removesuffix(" of the clusters")


def word(ari: float) -> str:
    return "**yes**" if ari >= FOUND else "partly" if ari >= PARTLY else "no"


def as_table(rows: list[Row]) -> str:
    """Rows as a Markdown table; the first is its head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(), read_tables()))
