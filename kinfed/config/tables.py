"""Tables (what a TOML file holds) <-> any frozen dataclass: types are checked, unknown keys are refused."""

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from kinfed.errors import ConfigError, UnknownKey
from kinfed.registry import nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Table = dict[str, object]  # of text, numbers, booleans, lists and tables
NONE = "none"  # TOML has no null
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: f'"{NONE}"'}


def build(kind: type[T], table: object, at: str) -> T:
    """The dataclass that this table describes; what is not in the table keeps its default."""
    values = read_fields(kind, table, at)
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{at}: {error}") from error


def read_fields(kind: type, table: object, at: str, without: Collection[str] = ()) -> Table:
    """Field values of `kind` from a table; fields in `without` and those no table can express are unknown keys."""
    if not isinstance(table, dict):
        raise ConfigError(f"{at}: wanted a table, got {shown(table)}")
    hints = settable_fields(kind, without)
    for name in table:
        if name not in hints:
            raise UnknownKey(unknown_key(name, hints, at), at, name, tuple(hints))
    missing = [f.name for f in fields(kind) if f.name in hints and f.name not in table and not has_default(f)]
    if missing:
        raise ConfigError(f"{dotted(at, missing[0])} is missing: wanted {wanted(hints[missing[0]])}")
    return {name: convert(hints[name], value, dotted(at, name)) for name, value in table.items()}


def default_fields(kind: type, without: Collection[str] = ()) -> Table:
    """The defaults of those fields of `kind` that a table can express."""
    hints = settable_fields(kind, without)
    defaults = {f.name: default_of(f) for f in fields(kind) if f.name in hints and has_default(f)}
    return {name: typed(hints[name], value) for name, value in defaults.items()}


def to_table(settings: "DataclassInstance") -> Table:
    """The table that describes this dataclass, defaults included."""
    hints = settable_fields(type(settings))
    return {name: plain(typed(hint, getattr(settings, name))) for name, hint in hints.items()}


def plain(value: object) -> object:
    """A field's value as a table holds it."""
    if value is None:
        return NONE
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return to_table(value) if is_dataclass(value) and not isinstance(value, type) else value


def typed(hint: object, value: object) -> object:
    """The value with floats where `hint` wants them: a default may be 0, and would read back as 0.0."""
    if isinstance(value, tuple):
        inner = next(get_args(option) for option in options_of(hint) if get_origin(option) is tuple)
        kinds = inner[:1] * len(value) if ... in inner else inner
        return tuple(typed(kind, part) for kind, part in zip(kinds, value, strict=True))
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return take(float, value, "") if is_whole and float in options_of(hint) and int not in options_of(hint) else value


def convert(hint: object, value: object, at: str) -> object:
    """The value as the type `hint` wants it."""
    for option in options_of(hint):
        if fits(option, value):
            return take(option, value, at)
    choices = [c for option in options_of(hint) if get_origin(option) is Literal for c in get_args(option)]
    close = nearest(value, choices) if isinstance(value, str) else ""
    raise ConfigError(f"{at}: wanted {wanted(hint)}, got {shown(value)}{close}")


def fits(option: object, value: object) -> bool:
    """Whether a value looks like this type; what is inside lists and tables is looked at later."""
    if option is NoneType:
        return value == NONE
    if option in (int, float):
        kinds = (int,) if option is int else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and not math.isnan(value)
    if get_origin(option) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(option))
    if get_origin(option) is tuple:
        return isinstance(value, list) and (... in get_args(option) or len(value) == len(get_args(option)))
    if is_dataclass(option):
        return isinstance(value, dict)
    return isinstance(option, type) and option in (bool, str) and isinstance(value, option)


def take(option: object, value: object, at: str) -> object:
    """A value that fits, converted."""
    if option is NoneType:
        return None
    if option is float and isinstance(value, int):
        return float(value)
    if isinstance(value, list):
        inner = get_args(option)
        kinds = [inner[0]] * len(value) if ... in inner else inner
        return tuple(convert(kind, part, f"{at}[{i}]") for i, (kind, part) in enumerate(zip(kinds, value, strict=True)))
    return build(option, value, at) if is_dataclass(option) and isinstance(option, type) else value


def settable_fields(kind: type, without: Collection[str] = ()) -> dict[str, object]:
    """Name -> type of the fields that a table can express."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind) if f.name not in without and is_settable(hints[f.name])}


def is_settable(hint: object) -> bool:
    """Whether a table can express some value of this type other than "none"."""
    if get_origin(hint) in (Union, UnionType):
        return any(is_settable(option) for option in get_args(hint) if option is not NoneType)
    if get_origin(hint) is tuple:
        return all(option is ... or is_settable(option) for option in get_args(hint))
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        return all(has_default(f) or is_settable(hints[f.name]) for f in fields(hint))
    return get_origin(hint) is Literal or hint in (int, float, bool, str)


def options_of(hint: object) -> tuple[object, ...]:
    """The types a value may have; "none" is looked for first, as it is also text."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(sorted(options, key=lambda option: option is not NoneType))


def wanted(hint: object) -> str:
    """A type in words."""
    expressible = [option for option in options_of(hint) if is_settable(option) or option is NoneType]
    return " or ".join(in_words(option) for option in reversed(expressible))


def in_words(option: object) -> str:
    inner = get_args(option)
    if get_origin(option) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in inner)
    if get_origin(option) is tuple:
        return f"a list of {'' if ... in inner else f'{len(inner)}: '}" + ", ".join(
            wanted(i) for i in inner if i is not ...
        )
    return "a table" if is_dataclass(option) else next(word for kind, word in WORDS.items() if kind is option)


def shown(value: object) -> str:
    """A value as a message shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, dict) else repr(value)


def unknown_key(name: str, known: Collection[str], at: str, elsewhere: Collection[str] = ()) -> str:
    """The message for a key that is not there, with the nearest one that is, in its section or elsewhere (dotted)."""
    key, here = dotted(at, name), [dotted(at, other) for other in known]
    close = nearest(key, called(name, elsewhere, 1.0), least=0.0) or nearest(key, called(name, here), least=0.0)
    close = close or nearest(key, called(name, elsewhere), least=0.0) or nearest(key, here)
    return f"unknown key '{dotted(at, name)}'{close}; known{f' in [{at}]' if at else ''}: {', '.join(known) or 'none'}"


def called(name: str, keys: Collection[str], least: float = 0.6) -> list[str]:
    """The keys whose last part comes closest to this name, by this share of its letters at least."""
    close = get_close_matches(name, list(dict.fromkeys(map(last_part, keys))), n=1, cutoff=least)
    return [key for key in keys if last_part(key) in close]


def last_part(key: str) -> str:
    return key.rpartition(".")[2]


def dotted(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def has_default(field: "Field[object]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def default_of(field: "Field[object]") -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()
