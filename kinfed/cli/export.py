"""`kinfed export`"""

from pathlib import Path
from typing import Annotated

import typer

from kinfed.cli.options import Trust, app, plain_errors


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has ended.", metavar="RUN")],
    folder: Annotated[Path, typer.Argument(help="The folder to write the bundle to.", metavar="DIR")],
    form: Annotated[
        str, typer.Option("--format", help="Models for other programs too: onnx, torchscript.", show_default=False)
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
    trust: Trust = False,
) -> None:
    """Write a bundle: all that it takes to assign unseen clients to models, offline.

    It has the models of the clusters, the encoder and what clients are compared with; no client's samples, no pickle.

    **Examples**

    `kinfed export runs/flt-digits-seed0 bundle`

    `kinfed export runs/flt-digits-seed0 bundle --format onnx` — and bundle/models/cluster-0.onnx, …

    `kinfed assign bundle --data clinic` — then, wherever the bundle is copied to
    """
    with plain_errors():
        from kinfed.serving.assignment import OutputFolder
        from kinfed.serving.run_export import export_run

        for line in export_run(run, OutputFolder(folder, force), trust=trust, form=form):
            print(line)
