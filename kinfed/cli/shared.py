"""What all commands share: the app they belong to, options by name, and errors as one line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kinfed.errors import KinfedError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG.toml key=value",
        help="A TOML file, if any, then settings that go over it: rounds=50 training.lr=0.1 partition.name=dirichlet.",
        show_default=False,
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder to write. Default: a new one under runs/.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier run wrote into that folder.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the datasets' .npz files. Default: $KINFED_DATA or the cache.", show_default=False),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, or auto: cuda where there is one.", show_default=False)]
Engine = Annotated[
    str | None,
    typer.Option(help="vectorised, sequential (slow, the reference) or flower (Ray's simulation).", show_default=False),
]
Seed = Annotated[int | None, typer.Option(help="Fixes clients, first weights and every draw.", show_default=False)]
Rounds = Annotated[int | None, typer.Option(help="Rounds of training in all.", show_default=False)]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of bars, as when the output is not a terminal.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors and warnings.")]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Inside it an error of kinfed's own, or of a file, is one line and exit code 2; Ctrl-C is exit code 130."""
    try:
        yield
    except KinfedError as error:
        leave(f"error: {error}", 2)
    except BrokenPipeError:  # who reads our output has had enough
        raise
    except OSError as error:
        leave(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}", 2)
    except KeyboardInterrupt as stop:
        leave(str(stop) or "stopped before the run began", 130)


def leave(text: str, code: int) -> NoReturn:
    print(" ".join(text.split()), file=sys.stderr)
    raise typer.Exit(code)
