"""Pages that mkdocstrings fills from docstrings: one for each part of the package."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "kinfed"
INSIDE = {"__main__", "arguments", "cli", "bench"}  # the command line has a page of its own


def modules() -> dict[str, str]:
    """Module -> the first line of its docstring."""
    found = [path for path in sorted(PACKAGE.iterdir()) if is_module(path)]
    return {path.stem: first_line(path / "__init__.py" if path.is_dir() else path) for path in found}


def is_module(path: Path) -> bool:
    """Whether there is something to show: a package with something to export, or a file."""
    if path.stem in INSIDE or path.stem.startswith("_"):
        return False
    return (path / "__init__.py").exists() if path.is_dir() else path.suffix == ".py"


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]


def api_page(module: str) -> str:
    """The page of a module."""
    return f"# kinfed.{module}\n\n::: kinfed.{module}\n"


def overview() -> str:
    """The page that lists them all."""
    rows = "\n".join(f"| [`kinfed.{name}`]({name}.md) | {line} |" for name, line in modules().items())
    return f"# Python API\n\n| module | what is in it |\n|---|---|\n{rows}\n"
