"""`kinfed run`"""

from kinfed.cli.options import (
    BEFORE_RUN,
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
    Verbose,
    absolute,
    app,
    plain_errors,
    read_words,
)


@app.command()
def run(
    settings: Settings = None, out: Out = None, force: Force = False, data_dir: DataDir = None, device: Device = None,
    engine: Engine = None, seed: Seed = None, rounds: Rounds = None, plain: Plain = False, quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Run one method and write a folder with its results.

    **Examples**

    `kinfed run` — FLT, digits, 20 clients in five clusters, 30 rounds

    `kinfed run method=fedavg rounds=20 training.lr=0.05` — some settings

    `kinfed run experiment.toml seed=3 --out runs/third` — a file, and a setting over it

    `kinfed run data.name=mnist --data-dir ~/data --device auto` — another dataset, on a GPU if there is one

    `kinfed run method=robust:Trimmed` — a method of your own, the class Trimmed in robust.py: docs/own-method.md

    `kinfed run roles.look_alikes=5 evaluation.correlation=true` — robustness and correlation, see docs/metrics.md

    **Settings** are sections of the TOML file and dotted keys here: `data`, `partition`, `shift`, `roles`, `change`,
    `drift`, `training`, `evaluation`, `engine`, `methods.NAME`. Every run's `config.toml` has all of them with their
    values: copy it, change it, run it. A misspelt key is an error that names the nearest one.

    A run that was stopped goes on with `kinfed resume FOLDER`.
    """
    options = {"data.dir": absolute(data_dir), "engine.device": device, "engine.name": engine}
    with plain_errors(BEFORE_RUN):
        from kinfed import api
        from kinfed.progress import choose_display

        config = read_words(settings, options | {"seed": seed, "rounds": rounds})
        api.run(config, out=out, force=force, display=choose_display(plain, quiet))
