"""Imports point down: a module may import its own layer's folder and lower layers, nothing else of kinfed."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "kinfed"
LAYERS = [
    {"errors", "cancellation"},
    {"registry", "params", "ledger", "locks", "keys", "checks"},
    {"client", "aggregation", "per_client"},
    {"models", "data", "clustering"},
    {"training", "federation"},
    {"signatures"},
    {"relatedness"},
    {"method"},
    {"methods"},
    {"engines", "metrics"},
    {"checkpoint"},
    {"experiment"},
    {"config"},
    {"runs", "progress", "trackers"},
    {"comparison", "listing", "bench", "recipes"},
    {"report"},
    {"commands"},
    {"reproduction"},
    {"deployment"},
    {"serving"},
    {"arguments"},
    {"cli"},
    {"__main__", ""},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


def place(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py") if first != "__init__.py" else ""


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    names |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    whole = {
        f"kinfed.{alias.name}"
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom) and n.module == "kinfed"
        for alias in n.names
    }
    return {name for name in names | whole if name.startswith("kinfed.")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    here = place(path)
    for name in imported(path):
        there = name.split(".")[1]
        assert there == here or RANK[there] < RANK[here], f"{path.name} in '{here}' must not import {name}"


def test_engines_know_no_algorithm_and_algorithms_no_engine():
    for path in FILES:
        wrong = {"engines": ("kinfed.methods",), "methods": ("kinfed.engines", "flwr")}.get(place(path), ())
        assert not any(name.startswith(w) for name in imported(path) for w in wrong), path
    assert not any("vmap" in p.read_text() for p in (ROOT / "methods").rglob("*.py"))
