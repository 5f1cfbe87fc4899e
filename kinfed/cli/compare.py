"""`kinfed compare`"""

from typing import Annotated

import typer

from kinfed.cli.options import (
    BEFORE_RUN,
    DataDir,
    Device,
    Engine,
    Force,
    Jobs,
    Out,
    Plain,
    Quiet,
    Rounds,
    Seeds,
    Settings,
    Verbose,
    absolute,
    app,
    plain_errors,
    read_words,
    split_names,
    split_numbers,
)


@app.command()
def compare(
    settings: Settings = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods to compare, as in fedavg,flt,auto.", show_default=False)
    ] = None,
    seeds: Seeds = None, jobs: Jobs = "1",
    out: Out = None, force: Force = False, data_dir: DataDir = None, device: Device = None, engine: Engine = None,
    rounds: Rounds = None, plain: Plain = False, quiet: Quiet = False, verbose: Verbose = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The table in Markdown; with --quiet nothing else.")
    ] = False,
) -> None:  # fmt: skip
    """Run several methods on the same clients and seeds, and show one table.

    **Examples**

    `kinfed compare` — FedAvg, Local, FLT and Auto on digits

    `kinfed compare --methods fedavg,flt --seeds 0,1,2` — mean ± standard deviation over three seeds

    `kinfed compare --seeds 0-4 --jobs 2` — two runs at once

    `kinfed compare --seeds 0-4 --jobs 1x20 --device cuda` — twenty runs whose clients train together on a GPU

    `kinfed compare experiment.toml rounds=50 --out runs/mine --markdown` — a file, and a table to paste

    **The folder** has one run folder for each method and seed, the table as `compare.csv` and `compare.md`, one row a
    run in `runs.csv`, and one row a pair of methods in `pairs.csv`: differences on the same seeds and clients.
    A comparison that was stopped goes on with `kinfed resume FOLDER`: finished runs are not run again.
    """
    options = {"data.dir": absolute(data_dir), "engine.device": device, "engine.name": engine, "rounds": rounds}
    with plain_errors(BEFORE_RUN):
        from kinfed import api
        from kinfed.progress import choose_display

        config = read_words(settings, options | {"compare": split_names(methods), "seeds": split_numbers(seeds)})
        display = choose_display(plain, quiet, markdown)
        comparison = api.compare(config, out=out, force=force, jobs=jobs, display=display)
        if quiet and markdown:
            print(comparison.to_markdown())
