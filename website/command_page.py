"""The reference of the command line, from the application itself."""

import click
import typer.main

from kinfed.cli import app


def command_page() -> str:
    """The page."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    parts = ["# Command line", "`kinfed COMMAND --help` shows the same in a terminal.", group.help or ""]
    for name in group.list_commands(click.Context(group)):
        command = group.commands[name]
        parts += [
            f"## `kinfed {name}`",
            described(command.help or ""),
            f"```text\n{usage(name, command)}\n```",
            options(command),
        ]
    return "\n\n".join(parts) + "\n"


def described(text: str) -> str:
    """A command's help; lines that follow each other as paragraphs in a terminal are a list here."""
    return "\n".join(f"- {line}" if line.startswith("`kinfed") else line for line in text.splitlines())


def usage(name: str, command: click.Command) -> str:
    """The line that says how a command is called."""
    words = command.collect_usage_pieces(click.Context(command, info_name=f"kinfed {name}"))
    return " ".join(["kinfed", name, *words])


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
