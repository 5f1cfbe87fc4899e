"""Links of the docs hold in the repository and on the site."""

import re
from pathlib import Path

import pytest

from website.api_pages import modules
from website.command_page import command_page
from website.links import LINK, rewritten, source_page, sources
from website.navigation import navigation

ROOT = Path(__file__).parents[2]
MADE = ("reference/",)  # pages that only the site has
TEXTS = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])


def test_a_link_to_a_source_file_becomes_a_link_to_its_page():
    text = "see [it](../../kinfed/training.py#here), [them](../metrics.md) and [rules](../../CONTRIBUTING.md)"
    turned = "see [it](../source/kinfed/training.py.md#here), [them](../metrics.md) and [rules](../contributing.md)"
    assert rewritten(text, "methods/flt.md", "docs/methods") == turned
    assert list(sources(text, "docs/methods")) == ["kinfed/training.py"]
    assert "class LocalTraining:" in source_page("kinfed/training.py")


def test_a_link_to_a_folder_becomes_a_link_to_a_list_of_its_files():
    assert rewritten("[all](../examples)", "tutorial.md", "docs") == "[all](source/examples/index.md)"
    assert "- `mnist-scenario-1.toml`" in source_page("examples")


def test_code_that_looks_like_a_link_and_other_hosts_are_left_alone():
    text = "`CASES[name](model)` and [there](https://example.org/a) and [below](#below)"
    assert rewritten(text, "index.md", "docs") == text


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_is_to_a_file_that_is_there(path):
    text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)
    for target, _ in LINK.findall(text):
        is_made = path.is_relative_to(ROOT / "docs") and target.lstrip("./").startswith(MADE)
        assert is_made or (path.parent / target).exists(), target


def test_the_menu_has_every_page_once_and_unknown_ones_last():
    first, other = "notebooks/which-clients-are-related.md", "notebooks/another.md"
    pages = ["index.md", "tutorial.md", "brand-new.md", "architecture.md", "source/kinfed/cli.py.md", other, first]
    menu = navigation(pages)
    assert menu == [
        {"Home": "index.md"},
        {"Start": ["tutorial.md", first, other]},
        {"Project": ["architecture.md", "brand-new.md"]},
    ]


def test_every_command_and_module_is_in_the_reference():
    page = command_page()
    assert all(f"## `kinfed {name}`" in page for name in ("run", "compare", "resume", "list", "bench"))
    assert "| `--out PATH` | – | Folder to write. Default: a new one under runs/. |" in page
    assert {"experiment", "methods", "data", "models"} <= set(modules())
