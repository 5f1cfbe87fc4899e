"""What a config names in a module of the user's own: package.module:name."""

import importlib
import inspect
import os
import sys
from dataclasses import fields, is_dataclass

from kinfed.errors import ConfigError
from kinfed.method import Method
from kinfed.methods import METHODS
from kinfed.registry import known

GIVEN = ("model", "local")  # fields of a method that other sections describe


def imported(path: str, kind: str, wanted: str) -> object:
    """What "package.module:name" names; modules in the working folder are found too."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the script `kinfed` starts without it
    try:
        return getattr(importlib.import_module(module), name)
    except SyntaxError as error:
        at = f"{error.filename}, line {error.lineno}"
        raise ConfigError(f"{kind} '{path}' cannot be imported: {error.msg} ({at})") from error
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{kind} '{path}' cannot be imported: {error}; wanted package.module:{wanted}") from error


def method_named(name: str) -> type[Method[object]]:
    """The method of this name, or the class of the user's own that it names."""
    if ":" not in name:
        return known(name, METHODS, "method")
    found = imported(name, "method", "Class")
    if not (isinstance(found, type) and issubclass(found, Method) and is_dataclass(found)):
        raise ConfigError(f"method '{name}' must be a dataclass that inherits from kinfed.method.Method")
    if inspect.isabstract(found):
        raise ConfigError(f"method '{name}' lacks {', '.join(sorted(found.__abstractmethods__))}")
    lacking = [given for given in GIVEN if given not in {field.name for field in fields(found)}]
    if lacking:
        raise ConfigError(f"method '{name}' lacks the field {' and '.join(lacking)}, which other sections describe")
    return found
