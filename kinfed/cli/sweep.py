"""`kinfed sweep`"""

from typing import Annotated

import typer

from kinfed.cli.options import (
    DataDir,
    Device,
    Engine,
    Jobs,
    Out,
    Plain,
    Quiet,
    Rounds,
    Seeds,
    absolute,
    app,
    plain_errors,
    split_numbers,
    split_words,
)
from kinfed.processes import start_early

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG.toml key=v1,v2,v3",
        help="A TOML file, if any, then settings; those with several values, or a range, are swept.",
        show_default=False,
    ),
]


@app.command()
def sweep(
    settings: Words = None, seeds: Seeds = None,
    random: Annotated[
        int, typer.Option(help="So many random points instead of the grid; ranges such as 0.001..0.1 need it.")
    ] = 0,
    validation: Annotated[
        float, typer.Option(help="Share of a client's training samples that it is scored on, to select by.")
    ] = 0.2,
    jobs: Jobs = "1", out: Out = None, data_dir: DataDir = None, device: Device = None, engine: Engine = None,
    rounds: Rounds = None, plain: Plain = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run a config with all combinations of some settings, select the best, and test it.

    **Examples**

    `kinfed sweep training.lr=0.01,0.03,0.1 training.epochs=1,2,5 method=fedavg --seeds 0-2 --jobs 2` — a grid

    `kinfed sweep mine.toml training.lr=0.001..0.1 methods.ditto.pull=0.01..10 method=ditto --random 20` — random
    search, log-uniform; `1..10:linear` is uniform, and ranges of whole numbers give whole numbers

    `kinfed sweep method=fedavg,ditto training.lr=0.01,0.1 methods.ditto.pull=0.1,1` — the best settings of each method

    **Selection** never sees test samples: clients are scored on training samples of their own that they did not train
    on. The best point of each method then trains on all training samples, and that alone is tested.

    **The folder** has a table of points (`sweep.csv`, `sweep.md`), one row a run (`runs.csv`), the metric against each
    setting (`sweep.svg`), and the best config (`best.toml`). The same command goes on where it was stopped and keeps
    runs that ended, also with more values or seeds. Runs that fail are listed in `failed.csv`, and the exit code is 2.
    """
    options = {"data.dir": absolute(data_dir), "engine.device": device, "engine.name": engine, "rounds": rounds}
    with plain_errors(), start_early(int(jobs) if jobs.isdecimal() else 1) as early:
        from pathlib import Path

        from kinfed.config import DEMO, read_base
        from kinfed.progress import choose_display
        from kinfed.runs.parallel import AtOnce
        from kinfed.sweeps import Definition, Space, Sweep
        from kinfed.sweeps.run_sweep import find_folder, find_seeds, run_sweep, to_words

        at_once = AtOnce.parse(jobs)
        file, words = split_words(settings)
        base = read_base(Path(file) if file else DEMO, words)
        given = to_words({key: [value] for key, value in options.items() if value is not None})
        chosen = split_numbers(seeds)
        space = Space(base, (*words, *given))
        definition = Definition(space, find_seeds(space.fixed) if chosen is None else tuple(chosen), random, validation)
        run_sweep(Sweep(find_folder(definition, out), definition), choose_display(plain, quiet), at_once, early)
