"""Runs: `run`, `compare`, `resume`, and `list` of what can be named in them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kinfed.arguments import absolute, configured, names, numbers
from kinfed.cli.shared import (
    DataDir,
    Device,
    Engine,
    Force,
    Out,
    Plain,
    Quiet,
    Rounds,
    Seed,
    Settings,
    app,
    plain_errors,
)

if TYPE_CHECKING:
    from kinfed.config import Config


@app.command()
def run(
    settings: Settings = None, out: Out = None, force: Force = False, data_dir: DataDir = None, device: Device = None,
    engine: Engine = None, seed: Seed = None, rounds: Rounds = None, plain: Plain = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run one method and write a folder with its results.

    **Examples**

    `kinfed run` — FLT, digits, 20 clients in five kinships, 30 rounds

    `kinfed run method=fedavg rounds=20 training.lr=0.05` — some settings

    `kinfed run experiment.toml seed=3 --out runs/third` — a file, and a setting over it

    `kinfed run data.name=mnist --data-dir ~/data --device auto` — another dataset, on a GPU if there is one

    `kinfed run method=robust:Trimmed` — a method of your own, the class Trimmed in robust.py: docs/own-method.md

    `kinfed run roles.look_alikes=5 evaluation.correlation=true` — robustness and correlation, see docs/metrics.md

    **Settings** are sections of the TOML file and dotted keys here: `data`, `partition`, `shift`, `roles`, `change`,
    `training`, `evaluation`, `engine`, `methods.NAME`. Every run's `config.toml` has all of them with their values:
    copy it, change it, run it. A misspelt key is an error that names the nearest one.

    A run that was stopped goes on with `kinfed resume FOLDER`.
    """
    options = {"data.dir": absolute(data_dir), "engine.device": device, "engine.name": engine}
    with plain_errors():
        from kinfed import commands
        from kinfed.progress import choose_display

        config = configured(settings, options | {"seed": seed, "rounds": rounds})
        commands.run(config, commands.Place(out, force), choose_display(plain, quiet))


@app.command()
def compare(
    settings: Settings = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods to compare, as in fedavg,local,flt.", show_default=False)
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds to run each method with, as in 0,1,2.", show_default=False)
    ] = None,
    out: Out = None, force: Force = False, data_dir: DataDir = None, device: Device = None, engine: Engine = None,
    rounds: Rounds = None, plain: Plain = False, quiet: Quiet = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The table in Markdown; with --quiet nothing else.")
    ] = False,
) -> None:  # fmt: skip
    """Run several methods on the same clients and seeds, and show one table.

    **Examples**

    `kinfed compare` — FedAvg, Local and FLT on digits

    `kinfed compare --methods fedavg,flt --seeds 0,1,2` — mean ± standard deviation over three seeds

    `kinfed compare experiment.toml rounds=50 --out runs/mine --markdown` — a file, and a table to paste

    **The folder** has one run folder for each method and seed, and the table as `compare.csv` and `compare.md`.
    A comparison that was stopped goes on with `kinfed resume FOLDER`: finished runs are not run again.
    """
    options = {"data.dir": absolute(data_dir), "engine.device": device, "engine.name": engine, "rounds": rounds}
    with plain_errors():
        from kinfed import commands
        from kinfed.comparison import compared
        from kinfed.progress import as_markdown, choose_display

        config = configured(settings, options | {"compare": names(methods), "seeds": numbers(seeds)})
        display = choose_display(plain, quiet, markdown)
        outcomes = commands.compare(config, commands.Place(out, force), display)
        if quiet and markdown:
            print(as_markdown(compared(outcomes)))


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of the run or the comparison.", metavar="RUN")],
    rounds: Annotated[int | None, typer.Option(help="More rounds than it had.", show_default=False)] = None,
    device: Device = None, plain: Plain = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Go on with a run or a comparison that was stopped, killed or crashed.

    The end is the same, bit for bit, as if it had never been stopped.

    **Examples**

    `kinfed resume runs/flt-digits-seed0`

    `kinfed resume runs/flt-digits-seed0 --rounds 200` — and further than planned
    """
    with plain_errors():
        from kinfed import commands
        from kinfed.progress import choose_display

        def changed(config: "Config") -> "Config":
            engine = replace(config.engine, device=device or config.engine.device)
            return replace(config, rounds=config.rounds if rounds is None else rounds, engine=engine)

        commands.resume(folder, changed, choose_display(plain, quiet))


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
        from kinfed.listing import listing

        for title, lines in listing(kind).items():
            print(f"{title}:")
            for name, line in lines.items():
                print(f"  {name:<18}{line}")
