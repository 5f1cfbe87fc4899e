"""Looking things up by name, with the nearest known name in the error."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TypeVar

from kinfed.errors import ConfigError

T = TypeVar("T")


def known(name: str, table: Mapping[str, T], kind: str) -> T:
    """table[name], or a ConfigError that names the nearest key."""
    if name not in table:
        raise ConfigError(unknown(name, table, kind))
    return table[name]


def unknown(name: str, names: Collection[str], kind: str) -> str:
    """The sentence that says a name is unknown, which one was probably meant, and which there are."""
    return f"unknown {kind} '{name}'{nearest(name, names)}; known: {', '.join(sorted(names))}"


def nearest(name: str, names: Collection[str], least: float = 0.6) -> str:
    """ ", did you mean …?" when a name comes close, by this share of its letters at least, else nothing."""
    close = get_close_matches(name, names, n=1, cutoff=least)
    return f", did you mean '{close[0]}'?" if close else ""


def is_installed(package: str) -> bool:
    """Whether there is such a package; a folder that happens to have its name, as trackers leave them, is none."""
    found = find_spec(package)
    return found is not None and found.origin is not None


def as_file(name: str) -> str:
    """A name as a part of a file's name: that of a user's own thing has a colon."""
    return name.replace(":", "-")


def first_lines(registry: Mapping[str, object]) -> dict[str, str]:
    """The first line of each thing's docstring, for listings."""
    return {name: (thing.__doc__ or "").strip().split("\n")[0] for name, thing in registry.items()}
