"""Tables (what a TOML file holds) <-> frozen dataclasses, by pydantic: strict types, no unknown keys, JSON schemas.

A dataclass is read as a typed dict of those fields that a table can hold. A field whose type is a protocol in `PARTS`
holds one of its named parts or a user's own `module:Class`: a table of the name and of the settings of that class.
"""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, partial
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, SchemaValidator, ValidationError
from pydantic_core import core_schema as core

from kinfed.aggregation import AGGREGATIONS, Aggregation
from kinfed.data.drift import DRIFTS, Drift
from kinfed.data.partitions import PARTITIONS, Partition
from kinfed.data.shifts import SHIFTS, Shift
from kinfed.errors import ConfigError, UnknownKey
from kinfed.learning_tasks import TASKS, LearningTask
from kinfed.registry import find_class, name_of, suggest
from kinfed.relatedness import Calibrated, Clusterer, Relatedness
from kinfed.signatures import EncoderCentroids, PartMeans, Signature

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Table = dict[str, object]  # of text, numbers, booleans, lists and tables
NONE = "none"  # TOML has no null
LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Parts:
    """What can stand for a protocol."""

    kind: str  # in messages
    protocol: type
    registry: Mapping[str, type]


PARTS = {
    Aggregation: Parts("aggregation", Aggregation, AGGREGATIONS),
    LearningTask: Parts("task", LearningTask, TASKS),
    Partition: Parts("partition", Partition, PARTITIONS),
    Signature: Parts("signature", Signature, {"encoder_centroids": EncoderCentroids, "part_means": PartMeans}),
    Clusterer: Parts("clusterer", Clusterer, {"relatedness": Relatedness, "calibrated": Calibrated}),
    Shift: Parts("shift", Shift, SHIFTS),
    Drift: Parts("drift", Drift, DRIFTS),
}


def build(kind: type[T], table: object, at: str) -> T:
    """The dataclass that this table holds; what is not in the table keeps its default."""
    values = read_fields(kind, table, at)
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{at}: {error}" if at else str(error)) from error


def read_fields(kind: type, table: object, at: str, without: tuple[str, ...] = ()) -> Table:
    """Field values of `kind` from a table; fields in `without` and those no table can hold are unknown keys."""
    try:
        return validator_of(kind, without).validate_python(table)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise explain(error.errors(include_url=False), table, at) from None


@cache
def validator_of(kind: type, without: tuple[str, ...] = ()) -> SchemaValidator:
    """What reads the fields of a dataclass from a table; raises pydantic's ValidationError."""
    return SchemaValidator(table_schema(field_schemas(kind, without), fields_without_default(kind)))


@cache
def default_fields(kind: type, without: tuple[str, ...] = ()) -> Table:
    """The defaults of those fields of `kind` that a table can hold; not to be changed."""
    hints, held = get_type_hints(kind), field_schemas(kind, without)
    plain = {f.name: to_plain(default_of(f), hints[f.name]) for f in fields(kind) if f.name in held and has_default(f)}
    return {name: SchemaValidator(held[name]).validate_python(value) for name, value in plain.items()}


def to_table(settings: "DataclassInstance") -> Table:
    """The table that holds this dataclass, defaults included."""
    hints = held_fields(type(settings))
    given = {name: to_plain(getattr(settings, name), hint) for name, hint in hints.items()}
    values = validator_of(type(settings)).validate_python(given)  # floats where a default is written as 0
    return {name: to_plain(value, hints[name]) for name, value in values.items()}


@cache
def held_fields(kind: type) -> dict[str, object]:
    """The fields that a table can hold, and their types; not to be changed."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in field_schemas(kind)}


def to_plain(value: object, hint: object = None) -> object:
    """A field's value as a table holds it."""
    if parts := parts_of(hint):
        return name_part(value, parts)
    if value is None:
        return NONE
    if isinstance(value, tuple):
        return [to_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: to_plain(part) for name, part in value.items()}
    return to_table(value) if is_dataclass(value) and not isinstance(value, type) else value


def name_part(part: object, parts: Parts) -> Table:
    """The section of a part: its name and its settings."""
    if part is None:
        return {"name": ""}
    if not is_dataclass(part) or isinstance(part, type):
        raise ConfigError(f"{parts.kind}: wanted a dataclass, whose fields are its settings, got {part!r}")
    return {"name": name_of(type(part), parts.registry)} | to_table(part)


def table_schema(members: Mapping[str, CoreSchema], required: Collection[str] = ()) -> CoreSchema:
    """The schema of a table with these members and no other."""
    typed = {name: core.typed_dict_field(schema, required=name in required) for name, schema in members.items()}
    closed = core.typed_dict_schema(typed, extra_behavior="forbid")
    return core.no_info_before_validator_function(partial(refuse_unknown, tuple(members)), closed)


def field_schemas(kind: type, without: Collection[str] = ()) -> dict[str, CoreSchema]:
    """Name -> schema of the fields that a table can hold."""
    hints = get_type_hints(kind)
    found = {f.name: field_schema(hints[f.name], f) for f in fields(kind) if f.init and f.name not in without}
    return {name: schema for name, schema in found.items() if schema is not None}


def field_schema(hint: object, field: "Field[object]") -> CoreSchema | None:
    """The schema of a field; a section of parts needs no name where the field has a default."""
    if field.name in SEEDS:
        return SEEDS[field.name]
    parts = parts_of(hint)
    return value_schema(hint) if parts is None else part_schema(parts, hint, default_of(field))


def value_schema(hint: object) -> CoreSchema | None:
    """The schema of a value of this type; None where no table can hold it."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is float:
        return core.no_info_before_validator_function(refuse_infinite, core.float_schema(strict=True))
    if hint in SCALARS:
        return SCALARS[hint]
    if origin is Literal:
        return core.literal_schema(list(inner))
    if origin in (Union, UnionType):
        return union_schema(inner)
    if origin is tuple:
        return list_schema(inner)
    if origin in (Mapping, dict):
        return core.dict_schema(core.str_schema())
    return dataclass_schema(hint) if is_dataclass(hint) and isinstance(hint, type) else None


SCALARS: dict[object, CoreSchema] = {
    int: core.int_schema(strict=True, ge=-(2**31), le=2**31 - 1),
    bool: core.bool_schema(strict=True),
    str: core.str_schema(strict=True),
    NoneType: core.no_info_after_validator_function(lambda _: None, core.literal_schema([NONE])),
}


SEEDS = {  # larger than other whole numbers; their classes say how large
    "seed": core.int_schema(strict=True),
    "seeds": core.tuple_schema([core.int_schema(strict=True)], variadic_item_index=0),
}


def union_schema(options: Sequence[object]) -> CoreSchema | None:
    """The first of these types that fits; "none" is tried first, as it is also text."""
    held = {option: schema for option in options if (schema := value_schema(option)) is not None}
    ordered = sorted(held, key=lambda option: option is not NoneType)
    return core.union_schema([held[o] for o in ordered], mode="left_to_right") if set(held) - {NoneType} else None


def list_schema(parts: Sequence[object]) -> CoreSchema | None:
    """A list that becomes a tuple of these types."""
    held = [schema for part in parts if part is not ... and (schema := value_schema(part)) is not None]
    if len(held) < len(parts) - (... in parts):
        return None
    listed = core.tuple_schema(held, variadic_item_index=0 if ... in parts else None)
    if tuple(parts) == (str, ...):
        return core.no_info_before_validator_function(split_text, listed)
    return listed


def split_text(value: object) -> object:
    """A list of names from one text: trackers=tensorboard, or compare=fedavg,flt."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def dataclass_schema(kind: type) -> CoreSchema | None:
    """An inner table that becomes a dataclass."""
    held, required = field_schemas(kind), fields_without_default(kind)
    if not held.keys() >= set(required):
        return None
    return core.no_info_after_validator_function(lambda values: kind(**values), table_schema(held, required))


@cache
def parts_of(hint: object) -> Parts | None:
    """The parts that can stand for this type, or for one of its options."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((parts for protocol, parts in PARTS.items() if any(option is protocol for option in options)), None)


def part_schema(parts: Parts, hint: object, default: object) -> CoreSchema:
    """The schema of a section that names a part; its name may be left out where there is a default."""
    name = "" if default in (None, MISSING) else name_of(type(default), parts.registry)
    choices: list[CoreSchema | tuple[CoreSchema, str]] = [
        table_schema({"name": core.literal_schema([each]), **field_schemas(kind)}, () if each == name else ("name",))
        for each, kind in parts.registry.items()
    ]
    own = {"name": core.typed_dict_field(core.str_schema(pattern=":"))}
    choices.append(core.typed_dict_schema(own, extra_behavior="allow"))
    choices.append(core.str_schema())  # the name alone
    is_optional = NoneType in get_args(hint)
    if is_optional:
        choices.append(table_schema({"name": core.literal_schema([""])}))
    read = partial(read_part, parts, name, is_optional)
    return core.no_info_plain_validator_function(read, json_schema_input_schema=core.union_schema(choices))


def read_part(parts: Parts, default: str, is_optional: bool, table: object) -> object:
    """The part that a section names, with its settings."""
    if isinstance(table, str):
        table = {"name": table}  # partition = "dirichlet"
    if not isinstance(table, dict):
        raise ValueError(f"wanted a table with a name, got {table!r}")
    name, rest = table.get("name", default), {key: value for key, value in table.items() if key != "name"}
    if name == "" and is_optional and not rest:
        return None
    if name == "":
        raise ValueError(f"name is missing: wanted one of {', '.join(parts.registry)}, or module:Class")
    kind = find_class(str(name), parts.registry, parts.kind, parts.protocol)
    refuse_others(rest, kind, str(name), parts)
    return kind(**validator_of(kind).validate_python(rest))


def refuse_others(settings: Table, kind: type, name: str, parts: Parts) -> None:
    """Raise for a setting that only other parts of the same protocol have."""
    for key in (key for key in settings if key not in held_fields(kind)):
        owners = [other for other, others in parts.registry.items() if key in held_fields(others)]
        if owners:
            wanted = " or ".join(f"'{owner}'" for owner in owners)
            raise ValueError(f"{parts.kind} '{name}' has no setting '{key}': it goes with name = {wanted}")


def refuse_unknown(known: tuple[str, ...], table: object) -> object:
    """Raise for the first key that is not known."""
    for name in table if isinstance(table, dict) else ():
        if name not in known:
            raise PydanticCustomError("unknown_key", "unknown key", {"name": name, "known": known})
    return table


def refuse_infinite(number: object) -> object:
    """The same; raise ValueError for numbers that no setting can be: not finite, or beyond what a float holds."""
    if isinstance(number, int | float) and not -LARGEST <= number <= LARGEST:  # a NaN is not, either
        raise ValueError(f"wanted a finite number, got {number if isinstance(number, float) else 'a larger one'}")
    return number


def explain(errors: Sequence[ErrorDetails], table: object, at: str) -> ConfigError:
    """The error that says what was got and what was wanted, for the first of pydantic's errors."""
    first = next((error for error in errors if error["type"] == "unknown_key"), errors[0])
    path, context = find_path(first, table, at), first.get("ctx", {})
    if first["type"] == "unknown_key":
        name, known = context["name"], context["known"]
        return UnknownKey(explain_unknown_key(path, name, known), path, name, known)
    if first["type"] == "missing":
        return ConfigError(f"{path} is missing: it has no default, give it a value")
    if first["type"] == "value_error":
        return ConfigError(f"{path}: {context['error']}" if path else str(context["error"]))
    wanted = " or ".join(reversed([want(error) for error in errors if find_path(error, table, at) == path]))
    choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
    close = suggest(first["input"], choices) if isinstance(first["input"], str) else ""
    return ConfigError(f"{path}: wanted {wanted}, got {json.dumps(first['input'], default=str)}{close}")


def explain_unknown_key(
    at: str, name: str, known: Collection[str], elsewhere: Collection[str] = (), meant: str = ""
) -> str:
    """The message for an unknown key, with the one that is meant or nearest, here or elsewhere (dotted)."""
    key, here = join_path(at, name), [join_path(at, other) for other in known]
    close = f": did you mean '{meant}'?" if meant else ""
    close = close or suggest(key, keys_like(name, elsewhere, 1.0), 0.0) or suggest(key, keys_like(name, here), 0.0)
    close = close or suggest(key, keys_like(name, elsewhere), 0.0) or suggest(key, here)
    return f"unknown config key '{key}'{close}; known{f' in [{at}]' if at else ''}: {', '.join(known) or 'none'}"


def keys_like(name: str, keys: Collection[str], least: float = 0.6) -> list[str]:
    """The keys whose last part comes closest to this name, by this share of its characters at least."""
    close = get_close_matches(name, {key.rpartition(".")[2] for key in keys}, n=1, cutoff=least)
    return [key for key in keys if key.rpartition(".")[2] in close]


def want(error: ErrorDetails) -> str:
    """What pydantic wanted, in TOML's terms."""
    words = error["msg"].replace("Input should be ", "").replace("a valid tuple", "a list").replace("'", '"')
    words = words.replace("a valid dictionary", "a table").replace("a valid integer", "an integer")
    words = words.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    return words.replace("a valid boolean", "true or false").replace("a valid ", "a ")


def find_path(error: ErrorDetails, table: object, at: str) -> str:
    """The dotted path of an error, without the options of a union, which pydantic puts there too."""
    path = at
    for part in error["loc"]:
        if isinstance(table, dict) and part in table:
            path, table = join_path(path, str(part)), table[part]
        elif isinstance(table, list) and isinstance(part, int):
            path, table = f"{path}[{part}]", table[part] if part < len(table) else None
        elif error["type"] == "missing" and part == error["loc"][-1]:
            path = join_path(path, str(part))
    return path


def join_path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def fields_without_default(kind: type) -> list[str]:
    return [f.name for f in fields(kind) if not has_default(f)]


def has_default(field: "Field[object]") -> bool:
    return default_of(field) is not MISSING


def default_of(field: "Field[object]") -> object:
    """The default of a field; MISSING where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()
