"""Every setting of a dataclass as a row: key, type, default, meaning. The meaning is the comment beside the field."""

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache

from pydantic.json_schema import GenerateJsonSchema

from kinfed.config.schema import Table, default_fields, field_schemas, to_plain
from kinfed.config.toml import to_toml
from kinfed.data import LATER

MUST_BE_GIVEN = object()


@dataclass(frozen=True)
class Setting:
    """One key of a config."""

    key: str  # dotted, within its section
    kind: str  # in words
    default: str  # as TOML has it
    meaning: str


def settings_of(kind: type, without: Collection[str] = ()) -> list[Setting]:
    """The settings of a dataclass, those of dataclasses inside it with dotted keys."""
    return list(list_settings(kind, default_fields(kind, tuple(without)), without))


def list_settings(kind: type, defaults: Table, without: Collection[str] = (), at: str = "") -> Iterator[Setting]:
    """The settings of a dataclass that has these defaults where it stands."""
    for name, schema in field_schemas(kind, without).items():
        value = defaults.get(name, MUST_BE_GIVEN)
        if is_dataclass(value) and not isinstance(value, type):
            yield from list_settings(type(value), vars(value), at=f"{at}{name}.")
        else:
            wanted = in_words(GenerateJsonSchema().generate(schema))
            yield Setting(f"{at}{name}", wanted, default_text(value), meaning(kind, name))


def in_words(schema: Table) -> str:
    """What a JSON schema wants, in the words of pydantic's errors."""
    if "anyOf" in schema:
        return " or ".join(in_words(option) for option in reversed(schema["anyOf"]))
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(f'"{choice}"' for choice in choices)
    if schema["type"] != "array":
        return {"object": "table"}.get(schema["type"], schema["type"])
    parts = [in_words(part) for part in schema.get("prefixItems", [])]
    return f"list of {', '.join(parts) or in_words(schema['items'])}"


def default_text(value: object) -> str:
    """A default as TOML has it."""
    if value is MUST_BE_GIVEN:
        return "(must be given)"
    text = to_toml({"value": to_plain(value)}).removeprefix("value = ").strip()
    return "(after training)" if value == LATER else f"`{text}`"


def meaning(kind: type, name: str) -> str:
    """The comment beside a field, in the class that declares it."""
    owner = next(c for c in kind.__mro__ if name in vars(c).get("__annotations__", {}))
    return comments(owner).get(name, "").replace("None:", "none:")


@cache
def comments(kind: type) -> dict[str, str]:
    """Field -> the comment behind it, of the fields that a class declares itself."""
    source = textwrap.dedent(inspect.getsource(kind))
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    lines = {
        node.end_lineno: node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    notes = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    return {name: notes[line].lstrip("# ") for line, name in lines.items() if line in notes}


def table(settings: Collection[Setting], under: str = "") -> str:
    """The settings as a Markdown table."""
    if not settings:
        return "It has no settings of its own."
    head = "| key | wanted | default | meaning |\n|---|---|---|---|\n"
    return head + "".join(
        f"| `{under}{s.key}` | {cell(s.kind)} | {s.default} | {cell(s.meaning)} |\n" for s in settings
    )


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
