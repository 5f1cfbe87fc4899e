"""What the docs say of the code is what the code says of itself."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.house import LAYERS
from kinfed.capabilities import reason_for_labels
from kinfed.methods import FAMILIES, METHODS
from kinfed.registry import first_lines
from website.families_page import PAGE as FAMILIES_PAGE
from website.families_page import README, families_page, put, summary

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", METHODS)
def test_the_pages_list_every_method_with_its_own_words(name):
    placed = "no" if reason_for_labels(METHODS[name]) else "yes"
    page = (ROOT / "docs" / "methods" / "families.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    assert line.startswith(f"| `{name}` | {first_lines(METHODS)[name]} | [") and line.endswith(f") | {placed} |")
    assert f"`{name}`" in (ROOT / "README.md").read_text().partition("<!-- families -->")[2].partition("<!-- end")[0]


def test_every_method_is_of_one_family():
    named = [name for family in FAMILIES.values() for name in family.papers]
    assert sorted(named) == sorted(METHODS)


def test_the_tables_of_families_are_those_of_the_code():
    renew = "renew them with: python -m website.families_page"
    for page, block in ((README, summary()), (FAMILIES_PAGE, families_page())):
        assert put(page.read_text(), block) == page.read_text(), renew


def test_the_serving_page_says_of_every_method_what_a_stranger_gets():
    page = (ROOT / "docs" / "serving.md").read_text().partition("## Which methods can")[2]
    assert not [name for name in METHODS if f"`{name}`" not in page]


def test_the_architecture_page_names_every_layer():
    picture = (ROOT / "docs" / "architecture.md").read_text()
    assert all(name in picture for names in LAYERS for name in names if not name.startswith("__"))


def test_the_architecture_page_says_what_every_shared_file_of_the_methods_holds():
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## What methods share")[2].partition("\n## ")[0]
    own = {METHODS[name].__module__.rpartition(".")[2] for name in METHODS}
    shared = {path.stem for path in (ROOT / "kinfed" / "methods").glob("[!_]*.py")} - own
    assert not [name for name in shared if f"`{name}.py`" not in table]


def test_the_architecture_page_names_every_capability():
    from kinfed import capabilities

    page = (ROOT / "docs" / "architecture.md").read_text()
    named = [name for name in capabilities.__all__ if getattr(getattr(capabilities, name), "_is_protocol", False)]
    assert len(named) > 10 and not [name for name in named if f"`{name}`" not in page]


def test_the_metrics_page_names_every_column():
    from kinfed.runs.logs import METRICS

    page = (ROOT / "docs" / "metrics.md").read_text()
    named = {name for name in METRICS if f"`{name}`" in page}
    assert set(METRICS) - named == {"correlation_labels_se", "correlation_drift_se"}  # "and …_se of both"


def test_the_deployment_page_names_the_settings_that_an_app_has_from_the_demo():
    from kinfed.config import DEMO, load_config

    page = (ROOT / "docs" / "deployment.md").read_text()
    demo = load_config(DEMO)
    training = demo.training
    assert f"| `model` | `{demo.model}` |" in page
    assert f"| `rounds`, `fraction` | {demo.rounds}, {demo.fraction} |" in page
    assert f"| {training.epochs} epoch, batches of {training.batch_size}, lr {training.lr} |" in page
    assert f"| `engine.timeout` | {demo.engine.timeout:.0f} |" in page


def test_every_setting_of_a_method_that_pages_and_help_name_is_one():
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "kinfed" / "cli").glob("*.py")]
    named = {key for path in texts for key in re.findall(r"\bmethods\.([a-z_]+)\.([a-z_]+)", path.read_text())}
    known = {(name, field.name) for name, method in METHODS.items() for field in fields(method)}
    assert len(named & known) > 10 and not {key for key in named - known if key[0] in METHODS}


def test_every_example_is_a_valid_config():
    from kinfed.config import load_config

    examples = sorted((ROOT / "examples").glob("*.toml"))
    assert len(examples) >= 3
    for path in examples:
        load_config(path)


def recovery_rows(name: str) -> dict[str, list[str]]:
    """A table of docs/recovery.md: the cells by method."""
    from benchmarks.recovery import get

    lines = [[part.strip(" `") for part in line.strip("|").split("|")] for line in get(name).splitlines()[2:]]
    return {method: cells for method, *cells in lines}


def test_the_recovery_page_expects_what_the_plan_does_of_exactly_the_registered_methods():
    from benchmarks.recovery import read_plan

    plan, rows = read_plan(), recovery_rows("expected")
    assert list(rows) == list(METHODS), "renew it with: python benchmarks/recovery.py --seeds 0 --write"
    for method, claims in rows.items():
        assert claims == [plan.expected[method, kind].claim for kind in plan.kinds], method


def test_the_recovery_page_says_what_the_plan_does_of_reasons_gifts_and_differences():
    from benchmarks.recovery import get, gifts, read_plan, reasons

    plan = read_plan()
    renew = "renew it with: python benchmarks/recovery.py --seeds 0 --write"
    assert get("reasons") == reasons(plan, plan.expected), renew
    assert get("differs") == reasons(plan, plan.differs), renew
    assert get("given") == gifts(plan), renew


def test_every_method_is_measured_on_the_recovery_page_and_each_surprise_is_explained():
    from benchmarks.recovery import DIFFERS, REFERENCE, read_plan

    plan, rows = read_plan(), recovery_rows("measured digits")
    assert list(rows) == [*METHODS, REFERENCE], "python benchmarks/recovery.py --methods NAME --write measures one"
    signs = {(m, kind) for m in METHODS for kind, c in zip(plan.kinds, rows[m], strict=True) if c.endswith(DIFFERS)}
    assert signs == set(plan.differs), "explain it in [differs.METHOD] of benchmarks/recovery.toml"


def test_the_page_on_reproducing_has_the_allowances_of_every_measure():
    from kinfed.recipes import MEASURES

    page = (ROOT / "docs" / "reproducing.md").read_text()
    rows = [f"| {m.title} | {m.least:g} | {m.share:.0%} |" for m in MEASURES.values()]
    table = "\n".join(["| number | allowance | share |", "|---|---:|---:|", *rows])
    assert f"<!-- allowances -->\n\n{table}\n\n<!-- end of allowances -->" in page, table


def test_the_page_of_results_has_a_place_for_every_table():
    from kinfed.recipes import list_recipes

    pages = "".join(
        page.read_text() for page in [ROOT / "docs" / "results.md", *(ROOT / "docs" / "results").glob("*.md")]
    )
    assert all(pages.count(f"<!-- {word}{name} -->") == 1 for name in list_recipes() for word in ("", "end of "))


def test_the_tables_on_the_pages_of_results_are_those_of_the_kept_numbers(tmp_path: Path):
    from kinfed.recipes import Wanted, cells_of, list_recipes, load_recipe
    from kinfed.recipes.kept import KeptNumbers
    from kinfed.recipes.outcome_tables import as_markdown
    from kinfed.recipes.reproduction import Order, outcome_of
    from kinfed.recipes.store import Store

    folder = ROOT / "docs" / "results"
    kept = KeptNumbers.read(folder / "measured.csv")
    assert {key[0] for key in kept.cells} <= set(list_recipes())
    pages = "".join(page.read_text() for page in folder.glob("*.md"))
    renew = "renew them with: kinfed reproduce --paper NAME --show --keep docs/results/measured.csv --page docs/results"
    for name in sorted({key[0] for key in kept.cells}):
        wanted = Wanted(data_dir=str(tmp_path), assumed=kept.datasets(name))
        recipe, order = load_recipe(name), Order((name,), wanted, tmp_path, show=True)
        shown = as_markdown(outcome_of(recipe, cells_of(recipe, wanted), order, Store(tmp_path), kept))
        assert f"<!-- {name} -->\n\n{shown}" in pages, f"{name}: {renew}"


@pytest.mark.parametrize("paper", ["flt", "flhc", "flis", "repa"])
def test_the_checks_on_a_paper_s_page_are_those_of_the_kept_numbers(paper: str, tmp_path: Path):
    from kinfed.recipes import Wanted, cells_of, load_recipe
    from kinfed.recipes.kept import KeptNumbers
    from kinfed.recipes.outcome_tables import list_checks
    from kinfed.recipes.recipe_files import tables_of
    from kinfed.recipes.reproduction import Order, outcome_of
    from kinfed.recipes.store import Store

    kept = KeptNumbers.read(ROOT / "docs" / "results" / "measured.csv")
    outcomes = []
    for recipe in map(load_recipe, tables_of(paper)):
        wanted = Wanted(data_dir=str(tmp_path), assumed=kept.datasets(recipe.name))
        order = Order((recipe.name,), wanted, tmp_path, show=True)
        outcomes.append(outcome_of(recipe, cells_of(recipe, wanted), order, Store(tmp_path), kept))
    page = (ROOT / "docs" / "results" / f"{paper}.md").read_text()
    assert f"<!-- checks of {paper} -->\n\n{list_checks(outcomes)}" in page, "renew the page, as above"


def python_of(page: str) -> list[str]:
    """The Python examples of a page."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


def test_the_readme_s_python_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import numpy as np
    from torch import nn

    def build_network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    monkeypatch.chdir(tmp_path)
    luck = np.random.default_rng(0)
    y = np.arange(200) % 10
    given = {"x": luck.integers(0, 255, (200, 1, 8, 8), np.uint8), "y": y, "client": np.arange(200) // 25}
    first, second = python_of("README.md")
    assert len(first.splitlines()) <= 7
    names: dict[str, object] = {**given, "build_network": build_network}
    exec(first, names)
    assert names["result"].summary["ari"] == 1 and names["result"].clusters is not None  # type: ignore[attr-defined]
    exec(second, names)
    assert names["result"].config.data.name.startswith("own:")  # type: ignore[attr-defined]


def test_the_tutorial_s_python_reads_a_run_s_relatedness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    import kinfed

    monkeypatch.chdir(tmp_path)
    kinfed.run("flt", "digits", rounds=1, out="first/flt-seed0", quiet=True)
    exec(python_of("docs/tutorial.md")[0], {})
    assert capsys.readouterr().out.splitlines()[0] == "0 is related to [0, 1, 2, 3]"
