"""The tables of methods by family: in the README those of each family, in docs/methods/families.md one row a method.

python -m website.families_page  # renews both
"""

from pathlib import Path

from kinfed.capabilities import reason_for_labels
from kinfed.methods import FAMILIES, METHODS
from kinfed.registry import first_lines
from website.choosing_page import as_table
from website.method_pages import facts

ROOT = Path(__file__).parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "methods" / "families.md"
BEGIN, END = "<!-- families -->", "<!-- end of families -->"


def summary() -> str:
    """One row a family, for the README."""
    rows = [["family", "what they have in common", "methods"]]
    rows += [[name, family.says, ", ".join(f"`{m}`" for m in family.papers)] for name, family in FAMILIES.items()]
    return as_table(rows)


def families_page() -> str:
    """One row a method, a table for each family."""
    parts = []
    for name, family in FAMILIES.items():
        rows = [["name", "what it does", "paper", "assigns a client without labels"], *map(row, family.papers)]
        parts += [f"## {name[0].upper()}{name[1:]}", family.says, as_table(rows)]
    return "\n\n".join(parts)


def row(name: str) -> list[str]:
    """What there is to say of a method in one line."""
    fact, labels = facts()[name], "no" if reason_for_labels(METHODS[name]) else "yes"
    return [f"`{name}`", first_lines(METHODS)[name], f"[{fact.paper.split(', Alg')[0]}]({fact.link})", labels]


def put(text: str, block: str) -> str:
    """The text with this block between the marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(put(README.read_text(), summary()))
    PAGE.write_text(put(PAGE.read_text(), families_page()))
