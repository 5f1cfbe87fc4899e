"""Named parts: looked up with the nearest name in the error, or imported from a user's module as `module:name`."""

import importlib
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import PurePath
from traceback import extract_tb
from typing import TypeVar, cast

from kinfed.errors import ConfigError, UntrustedCode

T = TypeVar("T")
FILE: ContextVar[str] = ContextVar("FILE", default="")  # the file, maybe somebody else's, that names what is looked up
MEANT = {  # usual words of the field -> what comes nearest here
    "cnn": ("lenet5", "leaf_cnn", "flhc_cnn", "repa_cnn"),
    "convnet": ("lenet5", "leaf_cnn", "flhc_cnn", "repa_cnn"),
    "fc": ("mlp_200",),
    "gru": ("lstm",),
    "logistic": ("linear",),
    "logistic_regression": ("linear",),
    "logreg": ("linear",),
    "rnn": ("lstm",),
    "transformer": ("vit",),
    "dir": ("dirichlet",),
    "gpu": ("cuda",),
}
OWN_KINDS = ("method", "model", "partition", "shift", "aggregation", "auto-encoder")  # that a user may write
FOUND = "modules are found in the working folder, or installed"
INVITED: set[str] = set()  # what the user had imported in this process; to import it again runs nothing new


def look_up(name: str, registry: Mapping[str, T], kind: str) -> T:
    """registry[name], or a ConfigError that names the nearest key."""
    if name not in registry:
        own = f"; a {kind} of your own is named package.module:name" if "." in name and kind in OWN_KINDS else ""
        raise ConfigError(explain_unknown(name, registry, kind) + own)
    return registry[name]


def explain_unknown(name: str, names: Collection[str], kind: str) -> str:
    """The message for an unknown name: which one was probably meant, and which are known."""
    return f"unknown {kind} '{name}'{suggest(name, names)}; known: {', '.join(sorted(names))}"


def suggest(name: str, names: Collection[str], least: float = 0.6) -> str:
    """ ": did you mean …?" when a name comes close, by this share of its characters at least, else nothing."""
    meant = [known for known in MEANT.get(name.lower(), ()) if known in names]
    meant = meant or sorted(known for known in names if name and name.lower() in re.split("[_-]", known))
    close = meant or get_close_matches(name, list(filter(None, names)), n=1, cutoff=least)
    return f": did you mean {' or '.join(map(repr, close))}?" if close else ""


@contextmanager
def refuse_code(file: str, trust: bool) -> Iterator[None]:
    """Inside it names come from a file that somebody may have sent: unless it is trusted, they import nothing."""
    token = FILE.set("" if trust else file)
    try:
        yield
    finally:
        FILE.reset(token)


def import_object(path: str, kind: str) -> object:
    """What "package.module:name" names; modules in the working folder are found too."""
    if FILE.get() and path not in INVITED:
        raise UntrustedCode(
            f"{FILE.get()} names code of its maker, the {kind} '{path}', which would be imported and run: look at it, "
            "then use --trust (in Python trust=True)"
        )
    INVITED.add(path)
    module, _, name = path.partition(":")
    says = f"{kind} '{path}' cannot be imported"
    if module.endswith(".py") or "/" in module or not name:
        stem = PurePath(module).name.removesuffix(".py") or "module"
        raise ConfigError(f"{says}: wanted package.module:name, as in '{stem}:{name or 'name'}'; {FOUND}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the script `kinfed` starts without it
    try:
        found = importlib.import_module(module)
    except SyntaxError as error:
        raise ConfigError(f"{says}: {error.msg} ({error.filename}, line {error.lineno})") from error
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        at = _find_line(error)
        raise ConfigError(f"{says}: {error}{at or f'; wanted package.module:name; {FOUND}'}") from error
    if not hasattr(found, name):
        near = suggest(name, [known for known in vars(found) if not known.startswith("_")])
        raise ConfigError(f"{says}: module '{module}' has no attribute '{name}'{near}; wanted package.module:name")
    return cast("object", getattr(found, name))


def _find_line(error: Exception) -> str:
    """ " (file, line n)" of the statement of a module that raised it; empty where no module was found to run."""
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.name == "<module>"]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def import_function(path: str, kind: str) -> object:
    """The callable that "package.module:name" names."""
    found = import_object(path, kind)
    if not callable(found):
        raise ConfigError(f"{kind} '{path}' must be callable, got a {type(found).__name__}")
    return found


def find_class(name: str, registry: Mapping[str, type], kind: str, protocol: type) -> type:
    """The class of this name, or a user's own `module:Class`: a dataclass that implements the protocol."""
    if ":" not in name:
        return look_up(name, registry, kind)
    found = import_object(name, kind)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise ConfigError(f"{kind} '{name}' must be a dataclass, whose fields are its settings")
    inherited = {member for base in found.__mro__ for member in vars(base)}
    abstract: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
    if missing := [member for member in members_of(protocol) if member not in inherited - abstract]:
        raise ConfigError(f"{kind} '{name}' must implement {protocol.__name__}: it lacks {', '.join(missing)}")
    return found


def members_of(protocol: type) -> list[str]:
    """The methods that a protocol asks for."""
    named = {name: value for name, value in vars(protocol).items() if name == "__call__" or not name.startswith("_")}
    return [name for name, value in named.items() if callable(value)]


def name_of(kind: type, registry: Mapping[str, type]) -> str:
    """The name that `find_class` turns into this class."""
    return next((name for name, known in registry.items() if kind is known), f"{kind.__module__}:{kind.__qualname__}")


def is_installed(package: str) -> bool:
    """Whether there is such a package; a folder that happens to have its name, as trackers leave them, is none."""
    found = find_spec(package)
    return found is not None and found.origin is not None


def as_file(name: str) -> str:
    """A name as a part of a file's name: that of a user's own part has a colon, that of a table is its path."""
    return PurePath(name).name.replace(":", "-")


def first_lines(registry: Mapping[str, object]) -> dict[str, str]:
    """The first line of each part's docstring, for listings."""
    return {name: (part.__doc__ or "").strip().split("\n")[0] for name, part in registry.items()}
