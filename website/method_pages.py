"""A page for every registered method, from the registry, its docstrings, its settings and what was measured."""

import inspect
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kinfed.config.settings import GIVEN
from kinfed.methods import METHODS
from kinfed.registry import first_lines
from website.measured import Tables
from website.settings import settings_of, table

ROOT = Path(__file__).parents[1]
SYMBOLS = {
    "M": "M: clients",
    "n": "n = ρM: clients in a round",
    "w": "w: bytes of a model",
    "C": "C: clusters",
    "R": "R: rounds before the clustering",
    "labels": "labels: number of labels",
    "encoder": "encoder: bytes of its weights (with tuning: of the decoder too)",
    "signature": "signature: bytes of a client's signature",
    "shared": "shared: bytes of the weights that are averaged",
    "autoencoder": "autoencoder: bytes of the encoder and its heads",
}


@dataclass(frozen=True)
class Facts:
    """What the code does not say of a method: its name, its idea, its paper, its cost."""

    title: str
    paper: str
    link: str
    idea: str
    round: str  # bytes, a formula
    once: str = "0"
    first: str = ""  # of the first round, where it differs
    more: str = ""


@cache
def facts() -> dict[str, Facts]:
    """Method -> facts."""
    return {
        name: Facts(**said) for name, said in tomllib.loads((ROOT / "website" / "methods.toml").read_text()).items()
    }


def method_page(name: str, measured: Tables) -> str:
    """The page of one method."""
    fact, kind = facts()[name], METHODS[name]
    lines = [f"# {fact.title}", first_lines(METHODS)[name], fact.idea]
    lines += [f'In a config: `method = "{name}"`. Code: [{source_of(name)}](../../../{source_of(name)}).']
    lines += [in_depth(name), "## Paper, and where we depart from it", f"[{fact.paper}]({fact.link})."]
    lines += [quoted(inspect.getmodule(kind).__doc__ or "")]
    lines += ["## Settings", f"Keys under `[methods.{name}]`; local training is set under `[training]`."]
    lines += [table(settings_of(kind, GIVEN))]
    lines += [
        "## Which differences it sees",
        seen(name, measured),
        "## Which clients it can serve",
        roles_table(name, measured),
    ]
    lines += ["## Cost", cost(fact)]
    return "\n\n".join(line for line in lines if line) + "\n"


def source_of(name: str) -> str:
    """The method's file, from the root of the repository."""
    return str(Path(inspect.getfile(METHODS[name])).relative_to(ROOT))


def in_depth(name: str) -> str:
    """A link to the page that somebody wrote about the method, if there is one."""
    written = (ROOT / "docs" / "methods" / f"{name}.md").exists()
    return (
        f"[{facts()[name].title} in depth](../../methods/{name}.md): what it finds, and what was measured."
        if written
        else ""
    )


def quoted(docstring: str) -> str:
    """What the method's file opens with; Markdown wants a blank line before a list."""
    spaced = re.sub(r"(?m)^(?!- )(.+)\n(?=- )", r"\1\n\n", inspect.cleandoc(docstring))
    return "\n".join(f"> {line}" if line else ">" for line in spaced.splitlines())


def seen(name: str, measured: Tables) -> str:
    """What was expected and measured, by kind of heterogeneity."""
    if set(measured.expected[name]) == {"no clusters"}:
        return "It forms no clusters."
    head = "| | " + " | ".join(measured.kinds) + " |\n|---|" + "---|" * len(measured.kinds)
    rows = [("expected", measured.expected[name]), ("measured, ARI", measured.recovery[name])]
    body = "\n".join(f"| {title} | {' | '.join(cells)} |" for title, cells in rows)
    return f"{head}\n{body}\n\n[Which heterogeneity can each method see?](../../recovery.md) says how, and why."


def roles_table(name: str, measured: Tables) -> str:
    """Which roles it can serve, and at what cost."""
    head = "| " + " | ".join(measured.roles_head) + " |\n|" + "---|" * len(measured.roles_head)
    body = "\n".join(f"| {' | '.join(row)} |" for row in measured.roles[name])
    return f"{head}\n{body}\n\n[Client roles](../../roles.md) says how this was measured."


def cost(fact: Facts) -> str:
    """The method's bytes as formulas."""
    lines = [f"- once: {formula(fact.once)}"] if fact.once != "0" else []
    lines += [f"- in the first round: {formula(fact.first)}"] if fact.first else []
    lines += [f"- in a round: {formula(fact.round)}"]
    used = [said for symbol, said in SYMBOLS.items() if symbol in symbols(fact)]
    legend = f"{'; '.join(used)}. " if used else ""
    bytes_said = (
        "Bytes, both ways together; admitting late clients and evaluation come on top." if used else "Nothing is sent."
    )
    return "\n".join(lines) + f"\n\n{legend}{bytes_said} A test holds this against the ledger. {fact.more}"


def symbols(fact: Facts) -> set[str]:
    """The names in the formulas of a method."""
    return {name for text in (fact.once, fact.first, fact.round) if text for name in compile(text, "", "eval").co_names}


def formula(text: str) -> str:
    """A formula as the page shows it."""
    return text.replace("*", "·").replace(" + ", "\N{NO-BREAK SPACE}+ ")


def overview() -> str:
    """The page that lists all methods."""
    lines = [
        "# Methods",
        "Each is a name for `method` in a config, `--methods` of `kinfed compare`, and a class of `kinfed.methods`.",
    ]
    rows = [
        f"| [{facts()[name].title}]({name}.md) | `{name}` | {line} |" for name, line in first_lines(METHODS).items()
    ]
    lines += ["| method | name | what it does |\n|---|---|---|\n" + "\n".join(rows)]
    lines += ["[How to choose](../../choosing.md) says which one fits which data."]
    return "\n\n".join(lines) + "\n"
