"""`kinfed list` and `kinfed schema`: what a config can hold."""

import json
from collections.abc import Iterable
from typing import Annotated

import typer

from kinfed.cli.options import app, plain_errors

FOUND = "the module is in the working folder, or installed"


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="methods, datasets, partitions, shifts, aggregations, models, engines, or schema.", show_default=False
        ),
    ] = None,
) -> None:
    """Show what can be named in a config, with one line each.

    **Examples**

    `kinfed list` — everything

    `kinfed list partitions`

    `kinfed list schema` — the JSON schema of all settings, as `kinfed schema` prints it
    """
    with plain_errors():
        if kind == "schema":
            return print_schema()
        for title, lines in list_parts(kind).items():
            print(f"{title}:")
            for family, names in group_by_family(title, lines).items():
                if family:
                    print(f" {family}")
                for name in names:
                    print(f"  {name:<18}{lines[name]}")


@app.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors that check and complete TOML files.

    **Examples**

    `kinfed schema > kinfed.schema.json`, and `#:schema ./kinfed.schema.json` as the first line of a config — for
    Taplo, also in VS Code (Even Better TOML)
    """
    with plain_errors():
        print_schema()


def list_parts(kind: str | None = None) -> dict[str, dict[str, str]]:
    """Kind -> name -> one line; of all kinds or of one."""
    from kinfed.aggregation import AGGREGATIONS
    from kinfed.data import DATASETS, PARTITIONS, SHIFTS
    from kinfed.engines import ENGINES
    from kinfed.methods import FAMILIES, METHODS, PRESETS, title_of
    from kinfed.models import MODELS
    from kinfed.registry import first_lines, look_up

    papers = {name: paper for family in FAMILIES.values() for name, paper in family.papers.items()}
    kinds = {
        "methods": {
            name: f"{title_of(name)}: {line[:-1]} ({papers[name]})." for name, line in first_lines(METHODS).items()
        }
        | {name: f"{title_of(name)}: {preset.says}" for name, preset in PRESETS.items()}
        | {"MODULE:CLASS": f"A method of your own; {FOUND}."},
        "datasets": dict(DATASETS),
        "partitions": first_lines(PARTITIONS),
        "shifts": first_lines(SHIFTS),
        "aggregations": first_lines(AGGREGATIONS) | {"MODULE:CLASS": f"A rule of your own; {FOUND}."},
        "models": first_lines(MODELS) | {"MODULE:FUNCTION": f"A network of your own; {FOUND}."},
        "engines": first_lines(ENGINES),
    }
    return kinds if kind is None else {kind: look_up(kind, kinds, "kind of thing to list")}


def group_by_family(kind: str, names: Iterable[str]) -> dict[str, list[str]]:
    """The head of each group -> its names; only methods have families."""
    from kinfed.methods import FAMILIES

    if kind != "methods":
        return {"": list(names)}
    groups = {f"{family}: {known.says}": list(known.papers) for family, known in FAMILIES.items()}
    grouped = {name for group in groups.values() for name in group}
    return groups | {"a paper's settings, and your own:": [name for name in names if name not in grouped]}


def print_schema() -> None:
    """Prints the JSON schema of a config."""
    from kinfed.config import json_schema

    print(json.dumps(json_schema(), indent=1))
