"""The reference of the command line, from the application itself."""

from collections.abc import Iterator

import click
import typer.main

from kinfed.cli import app


def command_page() -> str:
    """The page."""
    group = typer.main.get_command(app)
    parts = ["# Command line", "`kinfed COMMAND --help` shows the same in a terminal.", group.help or ""]
    for name, command in commands(group):
        title = f"kinfed {name}"
        parts += [f"## `{title}`", format_help(command.help or ""), f"```text\n{usage(title, command)}\n```"]
        parts += [options(command)]
    return "\n\n".join(parts) + "\n"


def commands(group: click.Command, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """The commands of a group by name, those of groups inside it too."""
    for name, command in group.commands.items() if isinstance(group, click.Group) else ():
        inner = list(commands(command, f"{above}{name} "))
        yield from inner or [(f"{above}{name}", command)]


def format_help(text: str) -> str:
    """A command's help; lines that follow each other as paragraphs in a terminal are a list here."""
    return "\n".join(f"- {line}" if line.startswith("`kinfed") else line for line in text.splitlines())


def usage(title: str, command: click.Command) -> str:
    """The line that says how a command is called."""
    return " ".join([title, *command.collect_usage_pieces(click.Context(command, info_name=title))])


def options(command: click.Command) -> str:
    """Arguments and options as a table."""
    rows = [row(parameter) for parameter in command.params]
    return "| argument or option | default | meaning |\n|---|---|---|\n" + "\n".join(rows)


def row(parameter: click.Parameter) -> str:
    """One argument or option."""
    context = click.Context(click.Command("kinfed"))
    shown = parameter.make_metavar(context) if isinstance(parameter, click.Argument) else named(parameter, context)
    default = parameter.default
    has_default = default is not None and not callable(default) and default is not False
    said = getattr(parameter, "help", None) or ""
    return f"| `{shown}` | {f'`{default}`' if has_default else '–'} | {said.replace('|', '/')} |"


def named(option: click.Parameter, context: click.Context) -> str:
    """An option with what it takes."""
    is_flag = getattr(option, "is_flag", False)
    return ", ".join(option.opts) + ("" if is_flag else f" {option.make_metavar(context)}")
