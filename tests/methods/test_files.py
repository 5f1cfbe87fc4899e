"""A method's file reads like its paper's algorithm box: short, on its own, nothing pasted from another method."""

import ast
import inspect
from itertools import combinations
from pathlib import Path

import pytest

from kinfed.methods import METHODS

FILES = {name: Path(inspect.getfile(kind)) for name, kind in METHODS.items()}
MOST = {
    "apfl": 90,
    "auto": 195,
    "flt": 97,
    "flis_hc": 90,
    "fesem": 90,
    "ifca": 90,
    "flis_dc": 90,
    "stocfl": 107,
    "flux": 80,
    "feddrift": 97,
}  # two algorithm boxes, or six decisions
IN_COMMON = (
    "model: Model",
    "local: LocalTraining",
    "@dataclass",
    "needs_labels",
    "require_labels(self",
    "require_members(",
    "@client_task",
    "stale: Stale",
    "aggregate_over: AggregateOver",
    "server: ServerOptimiser",
    "encoder: Params",
    "known: Signatures",
    "served: ClusterModels",
    "merges: Merges",
    "members: Members",
    "def ",
    "return ",
)


def text_of(path: Path) -> list[str]:
    """The lines of a file that are neither blank nor imports."""
    source = path.read_text()
    imports = {
        line
        for node in ast.parse(source).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return [line for at, line in enumerate(source.splitlines(), 1) if line.strip() and at not in imports]


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_file_fits_on_a_screen(name):
    lines, most = text_of(FILES[name]), MOST.get(name, 72)
    assert len(lines) <= most, f"{FILES[name].name} has {len(lines)} lines besides imports and blank ones"


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_file_opens_with_its_paper_and_what_was_changed(name):
    said = ast.get_docstring(ast.parse(FILES[name].read_text())) or ""
    assert len(said.splitlines()) >= 3, f"{FILES[name].name} must say where the method is from, and each deviation"


def test_no_method_inherits_from_another():
    kinds = set(METHODS.values())
    for name, kind in METHODS.items():
        assert not kinds & set(kind.__mro__[1:]), f"'{name}' inherits from a method"


def test_two_methods_share_no_more_than_a_handful_of_lines():
    own = {name: {line.strip() for line in text_of(path)} for name, path in FILES.items()}
    own = {name: {line for line in lines if not line.startswith(IN_COMMON)} for name, lines in own.items()}
    for one, other in combinations(own, 2):
        shared = own[one] & own[other]
        assert len(shared) <= 5, f"'{one}' and '{other}' share {sorted(shared)}"
