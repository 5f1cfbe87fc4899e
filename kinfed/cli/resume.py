"""`kinfed resume`"""

from pathlib import Path
from typing import Annotated

import typer

from kinfed.cli.options import BEFORE_RUN, DataDir, Device, Jobs, Plain, Quiet, Trust, Verbose, app, plain_errors


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of the run, the comparison or the sweep.", metavar="RUN")],
    rounds: Annotated[int | None, typer.Option(help="More rounds than it had.", show_default=False)] = None,
    device: Device = None, data_dir: DataDir = None, jobs: Jobs = "1", trust: Trust = False,
    plain: Plain = False, quiet: Quiet = False, verbose: Verbose = False,
) -> None:  # fmt: skip
    """Resume a run, a comparison or a sweep that was interrupted, killed or crashed.

    The end is the same, bit for bit, as if it had never been stopped. A run of a method, a model, data or another part
    of your own (`module:Class`) needs `--trust`, since the folder could be somebody else's.

    **Examples**

    `kinfed resume runs/flt-digits-seed0`

    `kinfed resume runs/flt-digits-seed0 --rounds 200` — and further than planned

    `kinfed resume runs/flt-mnist-seed0 --data-dir /data --device cpu` — on another machine
    """
    with plain_errors(BEFORE_RUN):
        from kinfed import api
        from kinfed.errors import ConfigError
        from kinfed.progress import choose_display
        from kinfed.runs.parallel import AtOnce
        from kinfed.runs.reader import is_comparison
        from kinfed.sweeps import is_sweep, resume_sweep

        at_once, display = AtOnce.parse(jobs), choose_display(plain, quiet)
        if is_sweep(folder):
            if rounds is not None:
                raise ConfigError("--rounds: the runs of a sweep keep theirs; begin another with rounds=N and --out")
            resume_sweep(folder, jobs=at_once, display=display, trust=trust, device=device, data_dir=data_dir)
        elif is_comparison(folder):
            api.resume_comparison(
                folder, rounds=rounds, device=device, data_dir=data_dir, trust=trust, jobs=at_once, display=display
            )
        else:
            api.resume(folder, rounds=rounds, device=device, data_dir=data_dir, trust=trust, display=display)
