"""TOML: files read, `key=value` overrides laid over them, tables written."""

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from kinfed.config.tables import Table
from kinfed.errors import ConfigError

BARE = re.compile(r"[A-Za-z0-9_-]+")
DOTS = re.compile(r"""\.(?=(?:[^"']*["'][^"']*["'])*[^"']*$)""")  # but for those in quotes


def read_file(path: Path) -> Table:
    """What a TOML file holds."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config file at {path}; give one that is there, or key=value settings alone") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file that can be read: {error}") from error


def overridden(table: Table, overrides: Iterable[str]) -> Table:
    """The table with `dotted.key=value` settings laid over it; the table itself stays as it is."""
    for text in overrides:
        key, equals, value = text.partition("=")
        path = [part.strip().strip("\"'") for part in DOTS.split(key)]
        if not equals or not all(path):
            raise ConfigError(f"wanted key=value, as in training.lr=0.1, got '{text}'")
        new = parse(value.strip())
        if text.startswith(("partition.name", "shift.name")) and named(table, path[0]) != new:
            table = put(table, path[:1], {})  # another partition has other settings
        table = put(table, path, new)
    return table


def named(table: Table, section: str) -> object:
    """The name in a section; None where there is none."""
    found = table.get(section)
    return found.get("name") if isinstance(found, dict) else None


def parse(text: str) -> object:
    """A value in TOML; a bare word is text."""
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 else text


def put(table: Table, path: list[str], value: object) -> Table:
    """A copy of the table with one value set."""
    name, *rest = path
    if not rest:
        return table | {name: value}
    inner = table.get(name, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"'{name}' is not a table, so '{'.'.join(path)}' cannot be set")
    return table | {name: put(inner, rest, value)}


def laid_over(under: Table, over: Table) -> Table:
    """Two tables as one, inner tables too; where both say something, the upper does."""
    both = dict(under)
    for name, value in over.items():
        below = under.get(name)
        names = {named(under, name), named(over, name)} - {None}
        is_another = name in ("partition", "shift") and len(names) > 1  # whose keys are others
        goes_on = isinstance(below, dict) and isinstance(value, dict) and not is_another
        both[name] = laid_over(below, value) if goes_on else value  # type: ignore[arg-type]
    return both


def write(table: Table, at: str = "") -> str:
    """The table as TOML text: values first, then one section for each inner table."""
    lines = [f"{name_of(name)} = {written(value)}\n" for name, value in table.items() if not isinstance(value, dict)]
    sections = [section(name, value, at) for name, value in table.items() if isinstance(value, dict)]
    return "".join(lines) + "".join(sections)


def section(name: str, table: Table, at: str) -> str:
    path = f"{at}.{name_of(name)}" if at else name_of(name)
    only_tables = bool(table) and all(isinstance(value, dict) for value in table.values())
    return ("" if only_tables else f"\n[{path}]\n") + write(table, path)


def written(value: object) -> str:
    """A value that is not a table, in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(written(part) for part in value)}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def name_of(name: str) -> str:
    return name if BARE.fullmatch(name) else written(name)


def flattened(table: Table, at: str = "") -> Table:
    """Dotted key -> value."""
    flat: Table = {}
    for name, value in table.items():
        path = f"{at}.{name}" if at else name
        flat |= flattened(value, path) if isinstance(value, dict) else {path: value}
    return flat
