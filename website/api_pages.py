"""Pages of the Python API, one for each part of the package: signatures, docstrings, the comments behind fields."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import griffe  # an extra

ROOT = Path(__file__).parents[1]
INSIDE = {"__main__", "cli", "bench"}  # the command line has a page of its own
COMMENT = re.compile(r"  # (.+)$")
KINDS = {"class": "py:class", "function": "py:function", "attribute": "py:data"}
LONGEST = 90  # characters of a type or a value that is shown
INNER = {"function": "py:method", "attribute": "py:attribute"}


@cache
def load_package() -> "griffe.Object":
    """The package as its sources have it."""
    import griffe

    loader = griffe.GriffeLoader(search_paths=[ROOT])
    loader.load("kinfed")
    loader.resolve_aliases()
    return loader.modules_collection["kinfed"]


def modules() -> dict[str, str]:
    """Module -> the first line of its docstring."""
    files = [*(ROOT / "kinfed").glob("*.py"), *(ROOT / "kinfed").glob("*/__init__.py")]
    found = {path.parent.name if path.stem == "__init__" else path.stem: path for path in files}
    shown = sorted(name for name in found if name not in INSIDE and name != "kinfed")
    return {name: (ast.get_docstring(ast.parse(found[name].read_text())) or "").split("\n")[0] for name in shown}


def make_pages() -> dict[str, str]:
    """Page -> text; `index` lists all of them."""
    rows = "\n".join(f"| [`kinfed.{name}`]({name}.md) | {line} |" for name, line in modules().items())
    overview = f"# Python API\n\n| module | what is in it |\n|---|---|\n{rows}\n"
    return {"index": overview, **{name: api_page(name) for name in modules()}}


def api_page(name: str) -> str:
    """The page of a module: what it exports, or all that is public in it."""
    module = load_package().modules[name]
    shown = [write_object(each) for each in members_of(module) if not each.is_module]
    inside = f"```{{py:currentmodule}} kinfed.{name}\n```"  # names are looked for here first
    return "\n\n".join([f"# kinfed.{name}", say(module), inside, *shown]) + "\n"


def members_of(owner: "griffe.Object") -> "Iterator[griffe.Object]":
    """What a module exports, or its own public members; a class's own public members."""
    exported = [str(name) for name in owner.exports or []] if owner.is_module else []
    own = (name for name, one in owner.members.items() if not one.is_alias and not name.startswith("_"))
    for name in exported or own:
        member = owner.members[name]
        if not member.is_alias:
            yield member
        elif member.resolved:  # names that are assigned several at once are not
            yield member.final_target


def write_object(one: "griffe.Object") -> str:
    """A class, a function or a constant, in Sphinx's directives."""
    kind = KINDS[one.kind.value]
    inner = [write_member(member) for member in members_of(one)] if one.is_class else []
    text = "\n\n".join(part for part in (say(one), *inner) if part)
    return f"::::{{{kind}}} {one.name}{sign(one)}\n{options_of(one)}\n{text}\n::::"


def write_member(one: "griffe.Object") -> str:
    """A field or a method of a class; a field that nothing is said of has its type and default alone."""
    kind = INNER.get(one.kind.value, "py:class")
    is_property = one.is_attribute and "property" in one.labels
    return f":::{{{'py:property' if is_property else kind}}} {one.name}{sign(one)}\n{options_of(one)}\n{say(one)}\n:::"


def sign(one: "griffe.Object") -> str:
    """The parameters of a function, or of what makes a class, with types and defaults."""
    if one.is_attribute:
        return ""
    parameters = [show_parameter(each) for each in getattr(one, "parameters", []) if each.name not in ("self", "cls")]
    gives = f" -> {one.returns}" if one.is_function and one.returns else ""  # type: ignore[attr-defined]
    return f"({', '.join(parameters)}){gives}"


def show_parameter(one: "griffe.Parameter") -> str:
    """A parameter as in the source."""
    stars = {"var_positional": "*", "var_keyword": "**"}.get(one.kind.name if one.kind else "", "")
    typed = f"{stars}{one.name}" + (f": {one.annotation}" if one.annotation else "")
    return typed + (f" = {one.default}" if one.default is not None and not stars else "")


def options_of(one: "griffe.Object") -> str:
    """Type and value of a field."""
    if not one.is_attribute:
        return ""
    named = {"type": one.annotation, "value": one.value}  # type: ignore[attr-defined]
    texts = {key: " ".join(str(value).split()) for key, value in named.items() if value is not None}
    return "".join(f":{key}: {json.dumps(text)}\n" for key, text in texts.items() if len(text) < LONGEST)


def say(one: "griffe.Object") -> str:
    """The docstring, or the comment behind a field."""
    if one.docstring:
        return one.docstring.value
    if not one.is_attribute or one.endlineno is None:
        return ""
    found = COMMENT.search(one.lines_collection[one.filepath][one.endlineno - 1])
    return found[1] if found else ""
