"""`kinfed resume`"""

from pathlib import Path
from typing import Annotated

import typer

from kinfed.cli.options import Device, Plain, Quiet, Trust, app, plain_errors


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of the run or the comparison.", metavar="RUN")],
    rounds: Annotated[int | None, typer.Option(help="More rounds than it had.", show_default=False)] = None,
    device: Device = None, trust: Trust = False, plain: Plain = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Resume a run or a comparison that was interrupted, killed or crashed.

    The end is the same, bit for bit, as if it had never been stopped. A run of a method, a model, data or another part
    of your own (`module:Class`) needs `--trust`, since the folder could be somebody else's.

    **Examples**

    `kinfed resume runs/flt-digits-seed0`

    `kinfed resume runs/flt-digits-seed0 --rounds 200` — and further than planned
    """
    with plain_errors():
        from kinfed import api
        from kinfed.progress import choose_display
        from kinfed.runs.reader import is_comparison

        take_up = api.resume_comparison if is_comparison(folder) else api.resume
        take_up(folder, rounds=rounds, device=device, trust=trust, display=choose_display(plain, quiet))
