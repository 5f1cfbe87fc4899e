"""The page in a real browser: Debian's chromium, driven by Playwright."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kinfed.report.page import write_report
from kinfed.report.vega import BESIDE
from tests.report.folders import MadeUp, write_run, write_sweep

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),
]
WIDTHS = {"phone": 390, "desktop": 1440}
LOOKS = [
    ("phone", "dark"), ("desktop", "light"),
    *(pytest.param(look, marks=pytest.mark.on_demand) for look in (("phone", "light"), ("desktop", "dark"))),
]  # colours and widths are independent  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as p:
        started = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(place / "all" / f"flt-{seed}", MadeUp("flt", seed=seed))
    write_run(place / "all" / "fesem", MadeUp("fesem", reclusters=True))
    write_run(place / "all" / "fedavg", MadeUp("fedavg"), has_clusters=False)
    return write_report([place / "all"], place / "report")[0]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sweep")
    return write_report([write_sweep(place / "all")], place / "report")[0]


class Opened(NamedTuple):
    """A page, and what is wrong with it so far: complaints on the console, requests to anywhere."""

    page: "playwright.Page"
    said: list[str]


def open_page(browser: "playwright.Browser", path: Path, width: str, scheme: str) -> Opened:
    """The page as a person sees it."""
    size = {"width": WIDTHS[width], "height": 900}
    page = browser.new_context(viewport=size, color_scheme=scheme).new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda sent: said.append(sent.url) if sent.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn=true]")
    return Opened(page, said)


@pytest.fixture(scope="module")
def pages() -> Iterator[dict[tuple[str, str], Opened]]:
    """The pages of the comparison that are open, by width and scheme."""
    kept: dict[tuple[str, str], Opened] = {}
    yield kept
    for page, _ in kept.values():
        page.context.close()


@pytest.fixture
def opened(
    browser: "playwright.Browser", report: Path, pages: dict[tuple[str, str], Opened], request: pytest.FixtureRequest
) -> Iterator["playwright.Page"]:
    """The page of a comparison, drawn once: for tests that leave the curves as they were, and find what they need."""
    look = getattr(request, "param", ("desktop", "light"))
    if look not in pages:
        pages[look] = open_page(browser, report, *look)
    yield pages[look].page
    assert pages[look].said == []


@pytest.fixture
def fresh(browser: "playwright.Browser", report: Path) -> Iterator["playwright.Page"]:
    """A page of its own, for a test that leaves it changed."""
    page, said = open_page(browser, report, "desktop", "light")
    yield page
    page.context.close()
    assert said == []


def choose(page: "playwright.Page", run: str) -> None:
    """Chooses a run in the section of clusters and waits until its charts are drawn."""
    page.locator("#run").select_option(label=run)
    page.wait_for_selector("html[data-drawn=true]")


@pytest.mark.parametrize("opened", LOOKS, indirect=True)
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_screen(opened: "playwright.Page"):
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for chart in opened.query_selector_all(".chart"):
        if chart.is_visible():
            drawn = chart.query_selector_all("svg.marks, canvas.marks")
            assert drawn, chart.get_attribute("id")
            for picture in drawn:
                box, room = picture.bounding_box(), chart.bounding_box()
                assert 200 < box["width"] <= room["width"] + 1, chart.get_attribute("id")
    dark = opened.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert opened.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")


def find_cut_words(page: "playwright.Page", charts: str) -> list[str]:
    """The words that do not lie inside the SVG pictures of these charts."""
    return page.evaluate(
        """(charts) => [...document.querySelectorAll(`:is(${charts}) svg.marks`)].flatMap((svg) => {
          const room = svg.getBoundingClientRect();
          return [...svg.querySelectorAll("text")].filter((word) => word.textContent).filter((word) => {
            const box = word.getBoundingClientRect();
            return box.left < room.left - 1 || box.right > room.right + 1 || box.top < room.top - 1;
          }).map((word) => word.textContent);
        })""",
        charts,
    )


@pytest.mark.parametrize("look", LOOKS)
def test_a_sweep_shows_the_metric_against_its_parameters(
    look: tuple[str, str], browser: "playwright.Browser", sweep: Path
):
    page, said = open_page(browser, sweep, *look)
    panels = page.locator("#parameter-panels svg.marks")
    assert panels.count() == 2 and page.get_by_role("link", name="Parameters").is_visible()
    assert page.locator("#parameter-panels .mark-symbol.role-mark path").count() == 8  # four points in each
    assert find_cut_words(page, "#parameter-panels") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "validation samples" in page.locator(".notes").inner_text()
    page.context.close()
    assert said == []


@pytest.mark.parametrize("opened", LOOKS, indirect=True)
def test_no_word_of_a_chart_is_cut_off(opened: "playwright.Page"):
    """Curves are SVG: every word must lie inside its picture, those beside the ends of curves too."""
    assert find_cut_words(opened, "#curves, #cost-curves") == []
    assert not opened.locator("#parameters").is_visible(), "no two runs of a method differ in a setting"
    named = opened.locator("#curves .mark-text.role-mark text").all_text_contents()
    assert sorted(named) == (["FLT", "FeSEM", "FedAvg"] if opened.viewport_size["width"] > 520 else [])


def test_the_results_fit_a_screen_with_all_columns_that_runs_can_have(browser: "playwright.Browser", tmp_path: Path):
    for seed in (0, 1):
        run = write_run(tmp_path / "all" / f"flt-{seed}", MadeUp("flt", seed=seed))
        summary = json.loads((run / "summary.json").read_text())
        more = ("accuracy_adapted", "accuracy_unseen", "accuracy_unseen_adapted", "robustness", "correlation_labels")
        summary |= dict.fromkeys(more, 0.5 + seed / 10)
        (run / "summary.json").write_text(json.dumps(summary))
    page = browser.new_page(viewport={"width": WIDTHS["desktop"], "height": 900})
    page.goto(write_report([tmp_path / "all"], tmp_path / "report")[0].as_uri())
    page.wait_for_selector("html[data-drawn=true]")
    assert page.locator("#results thead th").count() >= 13
    assert page.locator(".results").evaluate("(box) => box.scrollWidth <= box.clientWidth")
    page.close()


def test_zooming_in_on_the_best_methods_and_back(opened: "playwright.Page"):
    ticks = "[...document.querySelectorAll('#curves .role-axis-label text')].map((word) => word.textContent).join()"
    before = opened.evaluate(ticks)
    opened.get_by_label("Zoom in on the best methods").check()
    opened.wait_for_function(f"{ticks} && {ticks} !== '{before}'")
    opened.get_by_label("Zoom in on the best methods").uncheck()
    opened.wait_for_function(f"{ticks} === '{before}'")


def test_the_diagnosis_says_what_holds_and_what_to_doubt(opened: "playwright.Page"):
    assert "no client loses by being clustered" in opened.locator(".diagnosis li.good").first.inner_text()


def test_confusion_matrices_are_those_of_the_chosen_run(opened: "playwright.Page"):
    for run, pictures in (("FLT, seed 0", 2), ("FedAvg, seed 0", 1)):  # all clients, and the worst cluster
        opened.locator("#class-run").select_option(label=run)
        opened.wait_for_function(f"document.querySelectorAll('#confusion canvas').length === {pictures}")


def test_pointing_at_a_curve_shows_its_values(opened: "playwright.Page"):
    chart = opened.locator("#curves svg.marks")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    opened.mouse.move(box["x"] + box["width"] - BESIDE - 25, box["y"] + box["height"] / 2)
    tip = opened.locator("#vg-tooltip-element")
    tip.get_by_text("85.78 ± 0.07 %").wait_for()
    assert "FLT" in tip.inner_text() and "round" in tip.inner_text()


def test_pointing_at_a_client_of_the_dendrogram_shows_its_clusters(opened: "playwright.Page"):
    choose(opened, "FLT, seed 0")
    canvas = opened.locator("#dendrogram canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    opened.mouse.move(box["x"] + box["width"] - 30, box["y"] + box["height"] - 9)
    tip = opened.locator("#vg-tooltip-element")
    tip.get_by_text("ground-truth cluster").wait_for()
    assert "found cluster" in tip.inner_text() and "training samples" in tip.inner_text()


def test_names_in_tooltips_are_text(browser: "playwright.Browser", tmp_path: Path):
    run = write_run(tmp_path / "run", MadeUp("flt"))
    said = (run / "clients.csv").read_text().replace("trains", "<img src=x onerror=alert(1)>")
    (run / "clients.csv").write_text(said)
    page = browser.new_page()
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    page.goto(write_report([run], tmp_path / "report")[0].as_uri())
    page.wait_for_selector("html[data-drawn=true]")
    canvas = page.locator("#dendrogram canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 30, box["y"] + box["height"] - 9)
    page.locator("#vg-tooltip-element").get_by_text("onerror").wait_for()
    assert alerts == [] and page.locator("img").count() == 0
    page.close()


def test_a_table_sorts_both_ways_and_keeps_what_is_missing_last(opened: "playwright.Page"):
    table = opened.locator("#results table")
    head = table.locator("thead th", has_text=re.compile("^ARI"))
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert table.locator("tbody tr").last.locator("th").inner_text() == "FedAvg"  # it has no clusters
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert table.locator("tbody tr").last.locator("th").inner_text() == "FedAvg"
    table.locator("thead th", has_text=re.compile("^accuracy")).get_by_role("button").click()
    number = "cells => cells.map(cell => +(cell.dataset.value ?? cell.textContent))"
    values = table.locator("tbody td:nth-child(2)").evaluate_all(number)
    assert values == sorted(values, reverse=True)


def test_the_table_of_all_clients_sorts(opened: "playwright.Page"):
    table = opened.locator("#client-table table")
    table.get_by_role("button", name="accuracy %").click()
    assert table.locator("tbody tr").first.locator("td").last.inner_text() == "90.00"
    table.get_by_role("button", name="accuracy %").click()
    assert table.locator("tbody tr").first.locator("td").last.inner_text() == "81.00"


def test_a_click_on_the_legend_singles_out_a_method(fresh: "playwright.Page"):
    lines = "[...document.querySelectorAll('#curves .mark-line path')]"
    faint = f"{lines}.filter((line) => +line.getAttribute('opacity') < 0.5).length"
    assert fresh.evaluate(faint) == 0
    fresh.locator("#curves .role-legend-label text", has_text="FLT").click()
    fresh.wait_for_function(f"{faint} === 2")


def test_another_metric_can_be_chosen(fresh: "playwright.Page"):
    fresh.locator("#metric").select_option(label="Worst decile")
    fresh.locator("#curves [aria-label^='Worst decile by round']").first.wait_for()


def test_what_a_method_does_not_have_is_a_sentence(opened: "playwright.Page"):
    choose(opened, "FLT, seed 0")
    assert "did not change over rounds" in opened.locator("[data-chart=membership] .empty").inner_text()
    assert not opened.locator("#membership").is_visible()


def test_choosing_another_run_draws_its_charts(opened: "playwright.Page"):
    for name, shown, count in (("FeSEM, seed 0", True, 3), ("FedAvg, seed 0", False, 0), ("FeSEM, seed 0", True, 3)):
        choose(opened, name)
        assert opened.locator("#membership").is_visible() == shown
        assert opened.locator("#cluster-table tbody tr").count() == count


def test_a_run_that_goes_on_says_what_is_not_written_yet(browser: "playwright.Browser", tmp_path: Path):
    run = write_run(tmp_path / "run", MadeUp("flt"), has_ended=False)
    page = browser.new_page()
    page.goto(write_report([run], tmp_path / "report")[0].as_uri())
    page.wait_for_selector("html[data-drawn=true]")
    for chart in ("signatures", "relatedness", "dendrogram", "labels"):
        assert "has not ended" in page.locator(f"[data-chart={chart}] .empty").inner_text()
        assert not page.locator(f"#{chart}").is_visible()
    page.close()


def test_colours_change_with_the_button_and_in_print_they_are_light(fresh: "playwright.Page"):
    fresh.get_by_role("button", name="Use dark colours").click()
    assert fresh.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    fresh.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert fresh.evaluate("document.documentElement.dataset.theme") == "light"
    fresh.evaluate("dispatchEvent(new Event('afterprint'))")
    assert fresh.evaluate("document.documentElement.dataset.theme") == "dark"


def test_everything_that_reacts_has_a_name_and_every_picture_words(opened: "playwright.Page"):
    unnamed = opened.evaluate(
        """() => [...document.querySelectorAll("button, select, [role=img]")]
          .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim())).length"""
    )
    assert unnamed == 0
    assert opened.locator("table caption").count() == opened.locator("table.data").count()


@pytest.mark.slow
@pytest.mark.on_demand
def test_2400_clients_100_rounds_and_4_methods_are_thinned_to_what_a_browser_draws_at_once(
    browser: "playwright.Browser", tmp_path: Path
):
    """benchmarks/report.py measures the seconds, which depend on the machine."""
    for method in ("fedavg", "flt", "fesem", "flhc"):
        made = MadeUp(method, clients=2400, rounds=100, clusters=47, reclusters=method == "fesem", every=100)
        write_run(tmp_path / "all" / method, made, has_clusters=method != "fedavg", has_signatures=method == "flt")
    path = write_report([tmp_path / "all"], tmp_path / "report")[0]
    assert path.stat().st_size < 10e6
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(180_000)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn=true]")
    marks = page.evaluate(
        """() => JSON.parse(document.getElementById("data").textContent).runs.map((run) =>
          Object.values(run).flatMap((chart) => Object.values(chart.tables ?? {}))
            .reduce((sum, rows) => sum + rows.reduce((n, row) => n + (row.share?.length ?? 1), 0), 0))"""
    )
    assert max(marks) < 40_000
    page.close()
