"""The command line. Everything heavy is imported inside the commands, so that `kinfed --help` answers at once."""

import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer

# commands register themselves, in the order in which help shows them
# isort: off
from kinfed.cli import run, compare, sweep, resume, list, reproduce, report, bench, export, assign, deploy  # noqa: F401

# isort: on
from kinfed.cli.options import Command, app

for command in (*app.registered_commands, *deploy.deploy.registered_commands):
    command.cls = Command

__all__ = ["app", "main"]


def main() -> None:
    """The entry point of the script `kinfed`."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show "–" shows "?"
    app(prog_name="kinfed")


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"kinfed {version('kinfed')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Clustered federated learning: find clusters of related clients, and train one model for each cluster.

    **First steps**

    `kinfed run` runs FLT on 20 clients in five ground-truth clusters (digits, no download).

    `kinfed compare` sets it against FedAvg, Local and Auto on the same clients.

    `kinfed sweep training.lr=0.01,0.1` tries settings, selects the best on held-out training samples, and tests it.

    `kinfed list` shows all methods, datasets, partitions, shifts, models and engines.

    `kinfed schema` prints the JSON schema of a config, for editors.

    `kinfed reproduce` runs the papers' tables, and sets published against measured.

    `kinfed export` and `kinfed assign` serve a finished run's models to unseen clients.

    `kinfed report RUN` makes a page of pictures and tables of a run or a comparison.

    `kinfed bench` measures how fast rounds go here, beside a plain loop and other simulators.

    `kinfed deploy new` writes an app for Flower's server and nodes, for a federation over a network.

    `kinfed run --help` explains all other settings. `kinfed --install-completion` completes commands and options in
    your shell.
    """
