"""Links of the docs hold in the repository and on the site."""

import ast
import re
from pathlib import Path

import pytest

from website.api_pages import modules
from website.command_page import command_page
from website.links import LINK, rewritten, source_page, sources
from website.navigation import SECTIONS, add_menus

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
    first, other, method = "notebooks/which-clients-are-related.md", "notebooks/another.md", "reference/methods/flt.md"
    above = "reference/methods/index.md"
    pages = {
        uri: uri for uri in ("index.md", "tutorial.md", "brand-new.md", "architecture.md", other, first, method, above)
    }
    menus = add_menus(pages)
    listed = {uri: re.findall(r"^/(.+)$", text, re.M) for uri, text in menus.items()}
    assert listed["index.md"] == [
        "tutorial", first[:-3], other[:-3], above[:-3], "architecture", "brand-new"
    ]  # fmt: skip
    assert re.findall(":caption: (.+)", menus["index.md"]) == ["Start", "Methods", "Project"]
    assert listed[above] == [method[:-3]] and menus["tutorial.md"] == "tutorial.md\n"


def test_every_command_and_module_is_in_the_reference():
    page = command_page()
    assert all(f"## `kinfed {name}`" in page for name in ("run", "compare", "resume", "list", "bench"))
    assert "| `--out PATH` | – | Folder to write. Default: a new one under runs/. |" in page
    assert {"experiment", "methods", "data", "models"} <= set(modules())


def test_the_glossary_has_its_terms_in_order_and_a_page_for_each():
    page = (ROOT / "docs" / "glossary.md").read_text()
    for section in page.split("\n## ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("| **")]
        terms = [line.split("**")[1].lower() for line in lines]
        assert terms == sorted(terms) and len(terms) == len(set(terms)) > 5
        assert all(re.search(r"\]\([\w/.-]+\.md", line) for line in lines)


@pytest.mark.parametrize(
    "word", ["hyperparameter", "non-IID", "Docker", "personalisation", "client drift", "GPU", "ONNX"]
)
def test_a_word_that_users_search_for_is_in_the_glossary(word):
    assert word in (ROOT / "docs" / "glossary.md").read_text()


def slugs_of(path: Path) -> set[str]:
    """Anchors of a page's headings, as Python-Markdown makes them."""
    titles = re.findall(r"^#+ (.*)", path.read_text(), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("name", ["glossary.md", "coming-from.md", "index.md"])
def test_anchors_of_links_are_headings_of_their_pages(name):
    for target, anchor in re.findall(r"\]\(([\w/.-]+\.md)#([\w-]+)\)", (ROOT / "docs" / name).read_text()):
        assert target.startswith(MADE) or anchor in slugs_of(ROOT / "docs" / target), (target, anchor)


def test_the_menu_names_the_pages_new_readers_look_for():
    assert "glossary.md" in SECTIONS["Reference"] and "coming-from.md" in SECTIONS["Start"]


@pytest.mark.parametrize("name", modules())
def test_each_name_that_a_module_exports_is_assigned_by_itself(name):
    """The pages of the API show no names that are assigned several at once."""
    path = ROOT / "kinfed" / name / "__init__.py"
    body = ast.parse((path if path.exists() else ROOT / "kinfed" / f"{name}.py").read_text()).body
    targets = [(target, node.value) for node in body if isinstance(node, ast.Assign) for target in node.targets]
    together = {name.id for target, _ in targets if isinstance(target, ast.Tuple) for name in target.elts}
    for target, value in targets:
        if ast.unparse(target) == "__all__":
            assert not together & set(ast.literal_eval(value))
