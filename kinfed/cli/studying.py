"""What runs show: `reproduce`, `report`, `bench`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kinfed.arguments import absolute, names, pairs
from kinfed.cli.shared import DataDir, Device, Plain, Quiet, app, plain_errors
from kinfed.errors import ConfigError


@app.command()
def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE", help="Tables by name (--list shows all), or recipe files.", show_default=False),
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
        Path | None, typer.Option(help="Also put the tables between their marks on this page.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of runs and tables. Default: runs/reproduce, with --quick runs/reproduce-quick.",
                     show_default=False),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once, each in a process of its own.")] = 1,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: the tables of what has ended so far.")] = False,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="On a GPU, products of numbers with 10 bits instead of 23: faster, coarser.")
    ] = False,
    data_dir: DataDir = None, device: Device = None, plain: Plain = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run tables of the papers, and set published against measured.

    **Examples**

    `kinfed reproduce --list` — all tables

    `kinfed reproduce flt-table-1 --quick` — does it work here? A minute or two

    `kinfed reproduce flt-table-1 flt-table-2 flt-table-4 --only mnist,mlp --device cuda` — several tables in one go

    `kinfed reproduce flis-table-1 --only fmnist* --seeds 3 --device cuda` — mean ± standard deviation over three seeds

    `kinfed reproduce flt-table-1 --device cuda --jobs 8` — eight runs at once, for small ones leave a GPU mostly idle

    Every run is a folder under `runs/` of the output folder, and tables share runs. The same command goes on where it
    was stopped, and runs nothing twice. Columns whose data are not here are left out, and say so. docs/reproducing.md
    tells what a verdict means.
    """
    with plain_errors():
        from kinfed import reproduction
        from kinfed.progress import choose_display
        from kinfed.recipes import Wanted

        display = choose_display(plain, quiet)
        if list_all:
            return print("\n".join(f"{name:<16}{title}" for name, title in reproduction.list_tables()))
        chosen = [tuple(names(words) or ()) for words in (rows, only, protocol)]
        options: dict[str, object] = {"engine": {"device": device or "cpu", "tf32": tf32}}
        wanted = Wanted(chosen[0], chosen[1], chosen[2], tuple(range(seeds)), quick, absolute(data_dir) or "", options)
        folder = out or Path("runs") / ("reproduce-quick" if quick else "reproduce")
        order = reproduction.Order(tuple(tables or ()), wanted, folder, page, fetch, jobs, show)
        reproduction.reproduce(order, display)


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
    """Make one page of runs: curves, clients, kinship, cost and settings, side by side where there are several.

    **Examples**

    `kinfed report runs/flt-digits-seed0 --open`

    `kinfed report runs/compare-digits --figures png,svg --latex` — a whole comparison, figures and a table

    `kinfed report runs/flt-* runs/fedavg-*` — runs of one config that differ in the seed become one curve with a band

    The page is one file that opens offline: send it, keep it. docs/reports.md tells what it shows.
    """
    with plain_errors():
        from kinfed import commands
        from kinfed.progress import choose_display

        wanted = commands.ReportPlan(tuple(names(figures) or ()), latex, markdown)
        place = commands.report_runs(runs, out, wanted, choose_display(True, quiet))
        if open_:
            typer.launch(str(place))


@app.command()
def bench(
    workloads: Annotated[
        str,
        typer.Option(
            help="mlp (MLP-200, 20 of 100 clients), cnn (the same), flt4 (480 of 2400, 47 classes), leaf, lenet, "
            "uneven (10 of 100 with 15 to 2000 samples)."
        ),
    ] = "mlp,cnn",
    contenders: Annotated[
        str | None,
        typer.Option(
            help="kinfed, kinfed-tf32, sequential, plain, plain-1 (one thread), flower, pfl, fedlab, fedjax. Default: "
            "kinfed, sequential, plain, and the other simulators in a checkout of the repository.",
            show_default=False,
        ),
    ] = None,
    drivers: Annotated[
        Path | None,
        typer.Option(help="Folder of drivers of other simulators. Default: benchmarks/peers of a checkout.",
                     show_default=False),
    ] = None,
    peer_python: Annotated[
        list[str] | None,
        typer.Option(help="The interpreter that has a peer's packages: fedjax=/path/to/python.", show_default=False),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Timed rounds of each contender; one more warms it up.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads or processes a contender may use; 0: one a core.")] = 0,
    scale: Annotated[float, typer.Option(help="Share of the clients, in all and in a round.")] = 1.0,
    device: Annotated[str, typer.Option(help="cpu or cuda, for kinfed and the plain loop.")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all that was measured to this file.",
                                                   show_default=False)] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table in Markdown.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the table and nothing else.")] = False,
) -> None:  # fmt: skip
    """Measure how long a round takes: kinfed, a plain PyTorch loop and other simulators, in turns.

    Each contender is a process of its own and waits while the others run. "× plain" says how many times as fast as
    the plain loop it was, round against neighbouring round, so it holds on a busy machine too.

    **Examples**

    `kinfed bench` — all contenders that are installed, on the MLP and the CNN

    `kinfed bench --workloads mlp --contenders kinfed,plain --rounds 10`

    `kinfed bench --workloads flt4 --scale 0.1 --peer-python fedjax=venvs/fedjax/bin/python`

    `kinfed bench --workloads mlp,flt4 --contenders kinfed,plain --device cuda` — and the share of the GPU's bandwidth

    docs/performance.md tells how to install the other simulators; one that is not found is left out, with the reason.
    """
    with plain_errors():
        from kinfed import commands
        from kinfed.bench.contenders import choose_contenders
        from kinfed.bench.race import Plan
        from kinfed.engines import choose_device
        from kinfed.progress import Lines

        display = Lines(sys.stdout, markdown, only_tables=quiet)
        racers = choose_contenders(names(contenders) or [], pairs(peer_python or []), drivers)
        plan = Plan(rounds, threads, choose_device(device), scale)
        if json_file and not json_file.resolve().parent.is_dir():
            raise ConfigError(f"--json {json_file}: there is no folder {json_file.parent}")
        outcomes = commands.bench(names(workloads) or [], racers, plan, display)
        if json_file:
            commands.write_bench(json_file, outcomes, plan)
