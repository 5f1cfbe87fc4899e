"""What all commands share: the app they belong to, options by name, words as values, and errors as one line."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from kinfed.errors import ConfigError, KinfedError

if TYPE_CHECKING:
    from click import Context

    from kinfed.config import Config


class Command(TyperCommand):
    """A command whose paths may not be empty: an empty one would stand for the working folder."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        if any(param.name == "settings" for param in self.params):
            known = [name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)]
            refuse_unknown_options(args, known)
        given = self.make_parser(ctx).parse_args(list(args))[0]
        for param in self.params:
            value = given.get(param.name or "")
            if takes_paths(param) and "" in (value if isinstance(value, list | tuple) else [value]):
                own = param.metavar or (param.name or "").upper()
                name = param.opts[-1] if param.opts[-1].startswith("-") else own
                leave(f"error: {name}: wanted a path, got an empty one; the working folder is '.'", 2)
        return super().parse_args(ctx, args)


def refuse_unknown_options(args: list[str], known: list[str]) -> None:
    """Leaves where a long option is none of the known ones, and says how a setting is written."""
    for word in args[: args.index("--")] if "--" in args else args:
        name = word.partition("=")[0]
        if name.startswith("--") and name not in known:
            close = get_close_matches(name[2:], [option[2:] for option in known], n=1)
            meant = f": did you mean --{close[0]}?" if close else ""
            leave(f"error: no option {name}{meant}; a setting is key=value, as in method=fedavg training.lr=0.1", 2)


def takes_paths(param: object) -> bool:
    """Whether a parameter's values are paths: by its type of click, or of typer where typer has a click of its own."""
    if descriptor := getattr(param, "type_descriptor", None):
        return Path in (descriptor.annotation, *get_args(descriptor.annotation))
    return getattr(getattr(param, "type", None), "name", "") == "path"


class Group(TyperGroup):
    """Commands of which a misspelt one is suggested once: by click, which does so from 8.4 on, else by typer.

    It is no dependency of ours: typer, from some version on, has a click of its own.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        click = sys.modules[TyperGroup.__mro__[1].__module__]
        self.suggest_commands = not hasattr(click, "NoSuchCommand")


app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MOST_SEEDS = 1000
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
Device = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, or auto: cuda where there is one; several GPUs: cuda:0,cuda:1, or cuda:all.",
        show_default=False,
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(help="vectorised, sequential (slow, the reference) or flower (Ray's simulation).", show_default=False),
]
Seed = Annotated[int | None, typer.Option(help="Fixes clients, first weights and every draw.", show_default=False)]
Rounds = Annotated[int | None, typer.Option(help="Rounds of training in all.", show_default=False)]
Seeds = Annotated[
    str | None, typer.Option(help="Seeds to run everything with, as in 0,1,2 or 0-4.", show_default=False)
]
Jobs = Annotated[
    str,
    typer.Option(
        metavar="N|PxN",
        help="Runs at once, each in a process of its own. 4x8: four processes, in each of which eight runs train "
        "together on a GPU.",
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of bars, as when the output is not a terminal.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import the code that its config names (module:Class): it runs as you.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors and warnings.")]


def show_details(wanted: bool) -> None:
    """From here on messages at the level DEBUG are shown, if that is wanted."""
    if wanted:
        logging.getLogger("kinfed").setLevel(logging.DEBUG)


Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=show_details, help="Show also what the engine chose, and how fast it is."),
]


BEFORE_RUN = "interrupted before the run started"


@contextmanager
def plain_errors(interrupted: str = "interrupted") -> Iterator[None]:
    """Inside it an error of kinfed's own, or of a file, is one line and exit code 2; Ctrl-C is exit code 130."""
    try:
        yield
    except KinfedError as error:
        leave(f"error: {error}", 2)
    except BrokenPipeError:  # the reader of our output has left
        raise
    except (FileExistsError, NotADirectoryError) as error:
        leave(f"error: {error.filename} is a file, or within one: wanted a folder", 2)
    except OSError as error:
        leave(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}", 2)
    except KeyboardInterrupt as stop:
        leave(str(stop) or interrupted, 130)


def leave(text: str, code: int) -> NoReturn:
    print(" ".join(line.strip() for line in text.strip().splitlines()), file=sys.stderr)
    raise typer.Exit(code)


def read_words(settings: list[str] | None, options: dict[str, object]) -> "Config":
    """The config of the file (none: the demo's), the settings and the options, each over the one before."""
    from kinfed.config import DEMO, load_config

    file, words = split_words(settings)
    given = {key: value for key, value in options.items() if value is not None}
    return load_config(Path(file) if file else DEMO, words, given)


def split_words(settings: list[str] | None) -> tuple[str, list[str]]:
    """The file, if there is one, and the settings that go over it."""
    if "=" in (settings or []):
        raise ConfigError(f"wanted key=value without spaces, got '{' '.join(settings or [])}'")
    first, *rest = settings or [""]
    is_file = bool(first) and "=" not in first
    if is_file and any("=" not in text for text in rest):
        raise ConfigError(f"wanted one CONFIG.toml and then key=value, got '{' '.join(settings or [])}'")
    return (first, rest) if is_file else ("", settings or [])


def absolute(folder: Path | None) -> str | None:
    """A path that still holds when the run is resumed from elsewhere."""
    return None if folder is None else str(folder.expanduser().absolute())


def split_names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def split_numbers(text: str | None) -> list[int] | None:
    """Whole numbers as in 0,1,2 or 0-4."""
    if text is None:
        return None
    wrong = ConfigError(f"--seeds: wanted whole numbers as in 0,1,2 or 0-4, got '{text}'")
    numbers: list[int] = []
    for part in split_names(text) or []:
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise wrong
        if not 0 <= int(last or first) - int(first) <= MOST_SEEDS:
            raise wrong
        numbers += range(int(first), int(last or first) + 1)
    if not numbers:
        raise wrong
    return numbers
