"""One word for one thing: no word that the glossary replaces stands in the package, its help, its columns or the docs.

python tests/test_words.py   # lists what is left, by package
"""

import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

ROOT = Path(__file__).resolve().parents[1]

# word (and its forms) -> what to say instead; banned everywhere, as a part of identifiers too
EVERYWHERE = {
    "people": "clients",
    "kinship kinships kin": "cluster, related clients",
    "lot lots circle circles": "cluster",
    "relatives lonely": "related clients, neighbours",
    "heard": "replied, received",
    "stranger strangers newcomer newcomers": "unseen, late-joining or held-out client",
    "seat seats seated seating": "assign, assignment",
    "describe describes described describing": "encode, compute the signature; hold, define",
    "letter letters post posts posted": "message, request, reply",
    "carry carries carried carrying": "state_dict, load_state_dict; hold",
    "snapshot snapshots": "checkpoint",
    "recorded recording recordings walk walks walked walking": "CUDA graph, capture, replay",
    "coarse coarser coarsely": "TF32; less precise",
    "slope slopes surprise surprises": "gradient",
    "desk desks": "layer buffers, activations",
    "telling ears told": "progress; report, raise, name",
    "trial trials": "autotune",
    "lump lumps": "micro-cluster",
    "attractive": "best-fitting model, model selection",
    "aside": "dry run",
    "heed heeds heeded": "supported",
}
# banned as a part of identifiers, of settings, of columns and of options; ordinary English in sentences
AS_IDENTIFIERS = {
    "who": "client, cohort, participant",
    "choosing": "model selection",
    "stopping": "cancellation",
    "reach reaches": "radius",
}
PHRASES = {
    r"numbers with 10 bits": "TF32",
    r"\bgo(?:es)?_on\b|\bgive[ns]?[_ ]up\b|\bgave[_ ]up\b": "cancel, cancellation",
    r"\bwithin (?:its |their |the )?reach\b": "radius neighbours",
    r"a key that there is not": "unknown key",
    r"(?:says|said) of (?:itself|himself)": "not supported",
    r"how fast, and how true": "Performance and accuracy",
    r"\bkinfed[./]names\b": "registry",
}
# `rows` are those of a table or a matrix; where samples are meant, they are banned
ROWS_OF_TABLES = (
    "kinfed/aggregation/",
    "kinfed/api/",
    "kinfed/clustering/",
    "kinfed/comparison/",
    "kinfed/data/readers.py",
    "kinfed/fastpath/",
    "kinfed/federation.py",
    "kinfed/kernels/",
    "kinfed/methods/cluster_models.py",
    "kinfed/methods/signature_tasks.py",
    "kinfed/models/",
    "kinfed/params.py",
    "kinfed/per_client.py",
    "kinfed/progress.py",
    "kinfed/recipes/",
    "kinfed/relatedness/",
    "kinfed/replies.py",
    "kinfed/report/",
    "kinfed/runs/",
    "kinfed/sweeps/",
    "kinfed/cli/",
    "kinfed/bench/race.py",
    "kinfed/engines/",
    "kinfed/metrics/",
    "docs/architecture.md",
    "docs/methods/",
    "docs/notebooks/",
    "docs/recovery.md",
    "docs/reports.md",
    "docs/reproducing.md",
    "docs/results",
    "docs/roles.md",
    "docs/scaling.md",
    "website/",
    "benchmarks/",
)
ROWS_OF_SAMPLES = (
    r"\b(?:un)?(?:train|training|test|own|public|labelled|local|image|server|sample)[_ ]rows\b"
    r"|\brows (?:of|per|a) (?:each )?client\b"
)
# what only looks like a banned word: file (a prefix) -> regular expressions whose matches are left out
EXCEPTIONS = {
    "": (
        r"__post_init__",
        r"\bkinfed\b",
        r"\b(?:ast|os|tree|path)\.walk\b",
        r"snapshot_download",  # of huggingface_hub
        r"negative_slope",  # of torch's LeakyReLU
        r"<circle\b|\"circle\"",  # SVG, Vega-Lite
        r"(?i)\bemnist['’s]* letters|letters of EMNIST|capital letters|letters and digits|digits and letters",
        r"\bemnist[-_]letters\b|balanced, letters|\"letters\"",
        r"Greek letters?",
        r"\"POST\"",  # the verb of HTTP
        r"letter-spacing",  # CSS
        r"key=\"describe\w*\"",  # of a task's random draws: another key would change results
        r"\bnewcomers ?= ?|\.newcomers\b|`newcomers`|\"newcomers\"",  # a setting of FLT and FLIS-HC, as in their papers
        r"\bchoosing(?:\.md|_page)",  # the page on choosing a method
    ),
    # the papers' own settings for clients that come later
    "kinfed/methods/flt.py": (r"(?i)newcomers?", r"over the rows of Ã"),
    "kinfed/methods/signature_tasks.py": (r"(?i)newcomers?",),
    "kinfed/config/settings.py": (r"\"[a-z_.]*rows\w*\":",),  # refused keys, with their new names
    "kinfed/methods/flis_hc.py": (r"newcomers?",),
    "docs/methods/": (r"newcomers?",),
    "docs/glossary.md": (r"newcomers?",),  # searched for
    "website/methods.toml": (r"newcomers?",),
    "benchmarks/house.py": (r"\"[a-z]+\"",),  # its list of participles
    "kinfed/data/hub_files.py": (r"\"walking\w*\"", r"\"slope\""),  # UCI's names of activities and columns
    "kinfed/deployment/node_data.py": (r"\"rows.npz\"",),  # refused, with a line that says its new name
    "README.md": (r"[^\n]*\bkin\b[^\n]*",),  # one line plays on the name: test_the_readme_plays_on_the_name_once
}
SUFFIXES = {".py", ".md", ".toml", ".ipynb", ".sh", ".js", ".html", ".css"}
ROOT_FILES = ("README.md", "CONTRIBUTING.md", "Makefile")
PLACES = ("kinfed", "docs", "website", "examples", "benchmarks", *ROOT_FILES)
Finding = tuple[str, int, str, str]  # file, line, word, the line


def expand(table: dict[str, str]) -> dict[str, str]:
    return {form: better for forms, better in table.items() for form in forms.split()}


EVERY, IDENTIFIER = expand(EVERYWHERE), expand(AS_IDENTIFIERS)


ANY_CASE = [re.compile(pattern, re.IGNORECASE) for pattern in (*PHRASES, ROWS_OF_SAMPLES)]


def split_words(text: str) -> list[str]:
    """Lower-case words; identifiers are split at underscores and at capitals."""
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    return [word.lower() for word in re.findall(r"[A-Za-z]+", text)]


def files() -> list[Path]:
    found = []
    for place in PLACES:
        path = ROOT / place
        found += sorted(path.rglob("*")) if path.is_dir() else [path]
    return [p for p in found if p.is_file() and (p.suffix in SUFFIXES or p.parent == ROOT) and not is_generated(p)]


def is_generated(path: Path) -> bool:
    return "__pycache__" in path.parts


def read(path: Path) -> str:
    """The text that people wrote: of a notebook its cells, and what they show."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    shown = [out.get("text", []) for cell in cells for out in cell.get("outputs", [])]
    return "\n".join("".join(part) for part in [*(cell["source"] for cell in cells), *shown])


def without_exceptions(name: str, text: str) -> str:
    for prefix, patterns in EXCEPTIONS.items():
        if name.startswith(prefix):
            for pattern in patterns:
                text = re.sub(pattern, lambda match: "\n" * match.group().count("\n"), text)
    return text


def identifiers(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """The identifiers of a file: names, and texts of one word, as keys and columns are."""
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME or (token.type == tokenize.STRING and not re.search(r"\s", token.string)):
                yield token.start[0], token.string
    elif path.suffix == ".toml":
        for number, line in enumerate(text.splitlines(), 1):
            if match := re.match(r"\s*\[*([\w.-]+)", line.split("#")[0]):
                yield number, match[1]
    elif path.suffix == ".md":
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((number, span) for span in re.findall(r"`([\w.=-]+)`", line))


def findings_in(path: Path) -> Iterator[Finding]:
    """Banned words of one file."""
    name = path.relative_to(ROOT).as_posix()
    text = without_exceptions(name, read(path))
    lines = text.splitlines()
    banned = EVERY.keys() if name.startswith(ROWS_OF_TABLES) else EVERY.keys() | {"rows"}
    has_words, phrases = not banned.isdisjoint(split_words(text)), [p for p in ANY_CASE if p.search(text)]
    for number, line in enumerate(lines, 1) if has_words or phrases else ():
        yield from ((name, number, word, line.strip()) for word in split_words(line) if word in banned)
        for pattern in phrases:
            if match := pattern.search(line):
                yield name, number, match.group(), line.strip()
    for number, found in identifiers(path, read(path)) if path.suffix != ".ipynb" else ():
        if not IDENTIFIER.keys().isdisjoint(split_words(found)):
            words = set(split_words(without_exceptions(name, found))) & IDENTIFIER.keys()
            yield from ((name, number, word, found) for word in words)


def words_in_name(path: Path) -> set[str]:
    return set(split_words(path.relative_to(ROOT).with_suffix("").as_posix())) & (EVERY.keys() | IDENTIFIER.keys())


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_banned_word_stands_in_a_file(path: Path):
    found = [f"{name}:{line} '{word}' in: {text[:90]}" for name, line, word, text in findings_in(path)]
    assert not found, "\n".join(found)


def test_no_file_is_named_by_a_banned_word():
    names = [path for path in files() if words_in_name(path) - {"choosing"}]  # the page on choosing a method
    assert not names
    assert not [path for path in files() if path.name == "names.py"]


def commands(command: click.Command, name: str = "kinfed") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    for word, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, f"{name} {word}")


def test_no_banned_word_stands_in_help():
    from kinfed.cli import app

    for name, command in commands(typer.main.get_command(app)):
        shown = command.get_help(click.Context(command, info_name=name))
        words = set(split_words(without_exceptions("", shown)))
        options = {word for option in command.params for word in split_words(option.name or "")}
        assert not words & EVERY.keys() and not options & (EVERY.keys() | IDENTIFIER.keys()), name


def test_the_readme_plays_on_the_name_once():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if "kin" in split_words(line)]
    assert len(lines) <= 1 and not any("kinship" in line for line in lines)


def main() -> None:
    """Prints all findings by package."""
    by_package: dict[str, list[str]] = defaultdict(list)
    for path in files():
        parts = path.relative_to(ROOT).parts
        package = "/".join(parts[:2]) if parts[0] in ("kinfed", "docs") else parts[0]
        for name, line, word, text in findings_in(path):
            by_package[package].append(f"  {name}:{line} [{word}] {text[:100]}")
        if words_in_name(path) - {"choosing"}:
            by_package[package].append(f"  {path.relative_to(ROOT)}: the file's name")
    total = sum(map(len, by_package.values()))
    print(f"{total} in all:", ", ".join(f"{package} {len(found)}" for package, found in sorted(by_package.items())))
    for package, found in sorted(by_package.items()):
        print(f"\n{package}: {len(found)}", *found, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
