"""`kinfed report`"""

from pathlib import Path
from typing import Annotated

import typer

from kinfed.cli.options import Quiet, app, plain_errors, split_names


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs or comparisons.", metavar="RUN...")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: `report` beside or in the run.", show_default=False)
    ] = None,
    figures: Annotated[
        str | None, typer.Option(help="Also write every picture as a file: png, svg or png,svg.", show_default=False)
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Also write the results as a LaTeX table.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Also write the results as a Markdown table.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Make one page of runs: curves, clients, clusters, cost and settings, side by side where there are several.

    **Examples**

    `kinfed report runs/flt-digits-seed0 --open`

    `kinfed report runs/compare-digits --figures png,svg --latex` — a whole comparison, figures and a table

    `kinfed report runs/sweep-digits` — a sweep: the metric against each parameter

    `kinfed report runs/flt-* runs/fedavg-*` — runs of one config that differ in the seed become one curve with a band

    The page is one file that opens offline: send it, keep it. docs/reports.md tells what it shows.
    """
    with plain_errors():
        from kinfed import api
        from kinfed.progress import choose_display

        chosen = split_names(figures) or []
        display = choose_display(True, quiet)
        page = api.report(*runs, out=out, figures=chosen, latex=latex, markdown=markdown, display=display)
        if open_:
            typer.launch(str(page))
