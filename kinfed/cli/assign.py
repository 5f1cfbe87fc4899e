"""`kinfed assign`"""

from pathlib import Path
from typing import Annotated

import typer

from kinfed.cli.options import app, plain_errors


@app.command()
def assign(
    bundle: Annotated[Path, typer.Argument(help="The folder that `kinfed export` wrote.", metavar="BUNDLE")],
    data: Annotated[Path, typer.Option(help="A folder with the client's rows.npz or pictures, or an .npz file.")],
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")] = Path("model"),
    predict: Annotated[
        Path | None, typer.Option(help="Rows to classify: the same, or an .npz file.", show_default=False)
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the bundle's model where it is its maker's own code.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
) -> None:
    """Place a client that nobody has met, by its own rows, and hand it its model; nothing leaves this machine.

    Its `rows.npz` has `x`, and `y` where it has labels: FLT, REPA and others need none. With `test_x` and `test_y` the
    model is scored too. Writes `model.safetensors` and `assignment.json` (which group, how far, how sure).

    **Examples**

    `kinfed assign bundle --data clinic --out clinic/model`

    `kinfed assign bundle --data clinic/rows.npz --predict new.npz` — and the classes of some rows
    """
    with plain_errors():
        from kinfed.serving.commands import Target, assign_client

        for line in assign_client(bundle, data, Target(out, force), trust, predict):
            print(line)
