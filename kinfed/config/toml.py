"""TOML: read files, apply `key=value` overrides, merge tables, write them with tomli-w."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import tomli_w

from kinfed.config.schema import Table
from kinfed.errors import ConfigError

BY_NAME = (
    "partition",
    "shift",
    "drift",
    "signature",
    "clusterer",
    "aggregation",
    "task",
)  # sections whose keys depend on the name in them
NAMED = (
    "partition",
    "shift",
    "drift",
    "aggregation",
    "task",
    "data",
    "engine",
)  # sections that a name alone can stand for
DEEPEST = 50  # tables in tables
WORDS = re.compile(r"^\[\s*[^\[\]{}\"',=]+(,[^\[\]{}\"',=]+)*\]$")  # [a, b]: a list of bare words
DOTS = re.compile(r"""\.(?=(?:[^"']*["'][^"']*["'])*[^"']*$)""")  # but for those in quotes


def read_toml(path: Path) -> Table:
    """What a TOML file holds."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows begin a file with a mark
        refuse_deep(text)
        return tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"no config file at {path}; give an existing one, or key=value settings alone") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, wanted a TOML file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path} is not a readable TOML file: its lists or tables are nested too deeply") from None


def refuse_deep(text: str) -> None:
    """Raise ValueError where tables are nested deeper than any config's; the parser would take for ever."""
    if any(line.partition("=")[0].count(".") > DEEPEST for line in text.splitlines()):
        raise ValueError(f"tables are nested more than {DEEPEST} deep")


def apply_overrides(table: Table, overrides: Iterable[str]) -> Table:
    """A copy of the table with `dotted.key=value` settings."""
    for text in overrides:
        if any("\ud800" <= character <= "\udfff" for character in text):  # bytes of a shell that are no UTF-8
            raise ConfigError(f"a setting must be text in UTF-8, got {text!a}")
        key, _, value = text.partition("=")
        table = override(table, split_key(key, text), parse_value(value.strip()))
    return table


def split_key(key: str, text: str) -> list[str]:
    """The parts of a dotted key; `text` is the whole setting, which must have an equals sign."""
    path = [part.strip().strip("\"'") for part in DOTS.split(key)]
    if "=" not in text or not all(path):
        raise ConfigError(f"wanted key=value, as in training.lr=0.1, got '{text}'")
    return path


def override(table: Table, path: list[str], value: object) -> Table:
    """A copy of the table with one value set; the name of another part drops the settings of the part before."""
    if len(path) == 1 and path[0] in NAMED and isinstance(value, str):
        path = [*path, "name"]  # partition=dirichlet
    if path[-1] == "name" and path[-2:-1] and path[-2] in BY_NAME and get_value(table, path) != value:
        table = set_value(table, path[:-1], {})  # another partition has other settings
    return set_value(table, path, value)


def parse_value(text: str) -> object:
    """A value in TOML; a bare word is text, and so are those of a list, whose quotes a shell takes away."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return [word.strip() for word in text[1:-1].split(",")] if WORDS.match(text) else text
    return found["value"] if len(found) == 1 else text


def get_value(table: object, path: list[str]) -> object:
    """The value at this path; None where there is none."""
    for name in path:
        table = table.get(name) if isinstance(table, dict) else None
    return table


def set_value(table: Table, path: list[str], value: object, above: tuple[str, ...] = ()) -> Table:
    """A copy of the table, which is at the keys above, with one value set."""
    name, *rest = path
    if not rest:
        return table | {name: value}
    inner = table.get(name, {})
    if not isinstance(inner, dict):
        key = ".".join((*above, name))
        raise ConfigError(f"'{key}' is not a table, so '{'.'.join((*above, *path))}' cannot be set: write {key}=…")
    return table | {name: set_value(inner, rest, value, (*above, name))}


def merge_tables(under: Table, over: Table) -> Table:
    """Two tables as one, inner tables too; where both have a value, the upper one's."""
    both = dict(under)
    for name, value in over.items():
        below = under.get(name)
        if isinstance(below, dict) and isinstance(value, dict) and not are_other_parts(name, below, value):
            value = merge_tables(below, value)
        both[name] = value
    return both


def are_other_parts(section: str, under: Table, over: Table) -> bool:
    """Whether two sections name two different parts, whose keys differ."""
    return section in BY_NAME and len({under.get("name"), over.get("name")} - {None}) > 1


def to_toml(table: Table) -> str:
    """The table as TOML text: values first, then one section for each inner table; each list on one line."""
    text = re.sub(r",\n\s*\]", "]", tomli_w.dumps(table))  # text in quotes never holds a line break
    return re.sub(r",\n +", ", ", re.sub(r"\[\n\s+", "[", text))


def flatten(table: Table, at: str = "") -> Table:
    """Dotted key -> value."""
    flat: Table = {}
    for name, value in table.items():
        path = f"{at}.{name}" if at else name
        flat |= flatten(value, path) if isinstance(value, dict) else {path: value}
    return flat


def shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """Dotted key -> its last part, or the whole where two share that."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {
        key: end if ends.count(end) == 1 and end != "name" else key.removesuffix(".name")
        for key, end in zip(keys, ends, strict=True)
    }


OWN_PART = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.\w+)*")
COLUMNS = "data.options."  # their names may have colons


def list_own_parts(settings: Table, without: str = "") -> list[str]:
    """What a resolved config names as package.module:name, but under keys that begin with `without`."""
    methods = settings.get("methods", {})
    named: list[object] = [*methods] if isinstance(methods, dict) else []
    for key, value in flatten(settings).items():
        if not key.startswith(COLUMNS) and not (without and key.startswith(without)):
            named += value if isinstance(value, list) else [value]
    return list(dict.fromkeys(name for name in named if isinstance(name, str) and OWN_PART.fullmatch(name)))
