"""`kinfed assign`"""

from pathlib import Path
from typing import Annotated

import typer

from kinfed.cli.options import Trust, app, plain_errors


@app.command()
def assign(
    bundle: Annotated[Path, typer.Argument(help="The folder that `kinfed export` wrote.", metavar="BUNDLE")],
    data: Annotated[
        Path, typer.Option(help="A folder with the client's samples.npz, table or images; an .npz file or a table.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")] = Path("model"),
    predict: Annotated[
        Path | None,
        typer.Option(help="Samples to predict: the same; a table is scaled as that of --data.", show_default=False),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing and exit with 2 if the client fits no cluster.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="A model for other programs too: onnx, torchscript.", show_default=False)
    ] = "",
    trust: Trust = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
) -> None:
    """Assign an unseen client to a cluster by its own samples, and write its model; nothing leaves this machine.

    Its `samples.npz` has `x`, and `y` where it has labels: FLT, REPA and others need none. With `test_x` and `test_y`
    the model is evaluated too. Writes `model.safetensors` and `assignment.json` (cluster, distances, margin;
    of FLT and Auto also whether the client fits any cluster, and the p-value).

    **Examples**

    `kinfed assign bundle --data clinic --out clinic/model`

    `kinfed assign bundle --data clinic/samples.npz --predict new.npz` — and the classes of some samples
    """
    with plain_errors():
        from kinfed.serving.assignment import OutputFolder
        from kinfed.serving.client_files import assign_client

        for line in assign_client(bundle, data, OutputFolder(out, force), trust, predict, strict, form):
            print(line)
