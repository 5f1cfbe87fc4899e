"""`kinfed list`"""

from typing import Annotated

import typer

from kinfed.cli.options import app, plain_errors


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="methods, datasets, partitions, shifts, models or engines.", show_default=False),
    ] = None,
) -> None:
    """Show what can be named in a config, with one line each.

    **Examples**

    `kinfed list` — everything

    `kinfed list partitions`
    """
    with plain_errors():
        from kinfed.api import list_parts

        for title, lines in list_parts(kind).items():
            print(f"{title}:")
            for name, line in lines.items():
                print(f"  {name:<18}{line}")
