"""`kinfed reproduce`"""

from pathlib import Path
from typing import Annotated

import typer

from kinfed.cli.options import DataDir, Device, Jobs, Plain, Quiet, absolute, app, plain_errors, split_names


@app.command()
def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE", help="Tables by name (--list shows all), or recipe files.", show_default=False),
    ] = None,
    paper: Annotated[
        str | None, typer.Option(help="All tables and figures of a paper, as in flt.", show_default=False)
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Show all tables and leave.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A small, short version of every row: does it work?")] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, …")] = 1,
    rows: Annotated[str | None, typer.Option(help="Only these rows, as in fedavg,flt*.", show_default=False)] = None,
    only: Annotated[str | None, typer.Option(help="Only these columns, as in mnist.", show_default=False)] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Only this protocol: paper, fair, or another of the table.", show_default=False)
    ] = None,
    fetch: Annotated[bool, typer.Option("--fetch", help="Get missing datasets from the Hugging Face hub.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(help="Also put the tables between their marks on this page, or the pages of this folder.",
                     show_default=False),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="A CSV file that keeps the numbers of what has run, and has those of runs that are not here.",
                     show_default=False),
    ] = None,
    lacking: Annotated[bool, typer.Option("--lacking", help="Run only what --keep has no numbers of.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of runs and tables. Default: runs/reproduce, with --quick runs/reproduce-quick.",
                     show_default=False),
    ] = None,
    jobs: Jobs = "1",
    minutes: Annotated[
        float, typer.Option(help="Stop after so many; the same command goes on from there. 0: never.")
    ] = 0.0,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: the tables of what has ended so far.")] = False,
    precision: Annotated[
        str, typer.Option(help="Of products on a GPU: float32, tf32 or bf16; the last two are faster, less precise.")
    ] = "float32",
    data_dir: DataDir = None, device: Device = None, plain: Plain = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run tables of the papers, and set published against measured.

    **Examples**

    `kinfed reproduce --list` — all tables

    `kinfed reproduce flt-table-1 --quick` — does it work here? A minute or two

    `kinfed reproduce flt-table-1 flt-table-2 flt-table-4 --only mnist,mlp --device cuda` — several tables in one go

    `kinfed reproduce flis-table-1 --only fmnist* --seeds 3 --device cuda` — mean ± standard deviation over three seeds

    `kinfed reproduce flt-table-1 --device cuda --jobs 4x8` — 32 runs at once, for small ones leave a GPU mostly idle

    `kinfed reproduce --paper flt --seeds 3 --device cuda` — a whole paper; the same command goes on where it stopped

    `kinfed reproduce --paper flt --device cuda --jobs 8 --minutes 9` — a piece of it

    `kinfed reproduce --paper flt --show --keep docs/results/measured.csv --page docs/results` — its page from kept
    numbers

    Every run is a folder under `runs/` of the output folder, and tables share runs. The same command goes on where it
    was stopped, and runs nothing twice. Columns whose data are not here are left out, and say so. docs/reproducing.md
    tells what a verdict means.
    """
    with plain_errors():
        from kinfed.progress import choose_display
        from kinfed.recipes import Wanted, reproduction
        from kinfed.runs.parallel import AtOnce

        display = choose_display(plain, quiet)
        if list_all:
            tables_there = reproduction.list_tables()
            width = max(len(name) for name, _ in tables_there) + 2
            return print("\n".join(f"{name:<{width}}{title}" for name, title in tables_there))
        chosen = [tuple(split_names(words) or ()) for words in (rows, only, protocol)]
        options: dict[str, object] = {"engine": {"device": device or "cpu", "precision": precision}}
        wanted = Wanted(chosen[0], chosen[1], chosen[2], tuple(range(seeds)), quick, absolute(data_dir) or "", options)
        folder = out or Path("runs") / ("reproduce-quick" if quick else "reproduce")
        named = (*(reproduction.find_tables(paper) if paper else ()), *(tables or ()))
        order = reproduction.Order(named, wanted, folder, page, fetch, AtOnce.parse(jobs), show, keep, minutes, lacking)
        reproduction.reproduce(order, display)
