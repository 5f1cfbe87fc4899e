"""The page in a real browser: Debian's chromium, driven by Playwright."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfed.report.writing import write_report
from tests.report.folders import Told, write_run

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),
]
WIDTHS = {"phone": 390, "desk": 1440}


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
        write_run(place / "all" / f"flt-{seed}", Told("flt", seed=seed))
    write_run(place / "all" / "fesem", Told("fesem", regroups=True))
    write_run(place / "all" / "fedavg", Told("fedavg"), has_clusters=False)
    return write_report([place / "all"], place / "report")[0]


@pytest.fixture
def opened(browser: "playwright.Browser", report: Path, request: pytest.FixtureRequest) -> Iterator["playwright.Page"]:
    """The page as a person sees it; complaints on the console and requests to anywhere are failures."""
    width, scheme = getattr(request, "param", ("desk", "light"))
    size = {"width": WIDTHS[width], "height": 900}
    page = browser.new_context(viewport=size, color_scheme=scheme).new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda sent: said.append(sent.url) if sent.url != report.as_uri() else None)
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready=true]")
    page.wait_for_selector("#bands-chart svg, #matrix-after canvas")
    yield page
    page.context.close()
    assert said == []


@pytest.mark.parametrize("opened", [(w, s) for w in WIDTHS for s in ("light", "dark")], indirect=True)
def test_every_picture_is_drawn_and_nothing_is_wider_than_the_screen(opened: "playwright.Page"):
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for chart in opened.query_selector_all(".chart"):
        if chart.is_visible():
            assert chart.query_selector("svg, canvas"), chart.get_attribute("id")
    dark = opened.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert opened.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")


def test_pointing_at_a_curve_tells_its_values(opened: "playwright.Page"):
    chart = opened.locator("#curves svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    opened.mouse.move(box["x"] + box["width"] - 14, box["y"] + box["height"] / 2)
    tip = opened.locator(".tip")
    assert tip.is_visible() and "Round 4" in tip.inner_text()
    assert "flt" in tip.inner_text() and "85.78 % ± 0.07" in tip.inner_text()
    opened.mouse.move(2, 2)
    assert not tip.is_visible()


def test_arrow_keys_do_the_same(opened: "playwright.Page"):
    opened.locator("#curves svg").focus()
    opened.keyboard.press("ArrowLeft")
    assert "Round 3" in opened.locator(".tip").inner_text()


def test_pointing_at_the_map_names_the_client_and_its_clusters(opened: "playwright.Page"):
    opened.get_by_role("radio", name="flt, seed 0").first.click()
    spot = opened.evaluate(
        """() => {
          const run = JSON.parse(document.getElementById("data").textContent).runs.find((run) => run.map);
          return [run.map.xy[0], run.map.xy[1], run.map.clients[0]];
        }"""
    )
    canvas = opened.locator("#map-found canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x = box["x"] + 19 + spot[0] * (box["width"] - 38)
    y = box["y"] + box["height"] / 2 - (spot[1] - 0.5) * (box["width"] - 38)
    opened.mouse.move(x, y)
    said = opened.locator(".tip").inner_text()
    assert f"Client {spot[2]}" in said and "found" in said and "planted" in said


def test_a_table_sorts_both_ways_and_keeps_what_is_missing_last(opened: "playwright.Page"):
    table = opened.locator("#results table")
    head = table.locator("thead th", has_text=re.compile("^ARI"))
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert table.locator("tbody tr").last.locator("th").inner_text() == "fedavg"  # it has no groups
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert table.locator("tbody tr").last.locator("th").inner_text() == "fedavg"
    table.locator("thead th", has_text=re.compile("^accuracy")).get_by_role("button").click()
    values = table.locator("tbody td:nth-child(2)").evaluate_all("cells => cells.map(cell => +cell.dataset.value)")
    assert values == sorted(values, reverse=True)


def test_the_table_of_all_clients_sorts_and_turns_pages(opened: "playwright.Page"):
    table = opened.locator("#client-table table")
    table.get_by_role("button", name="accuracy %").click()
    assert table.locator("tbody tr").first.locator("td").last.inner_text() == "90.00"
    table.get_by_role("button", name="accuracy %").click()
    assert table.locator("tbody tr").first.locator("td").last.inner_text() == "81.00"


def test_a_method_can_be_hidden(opened: "playwright.Page"):
    lines = opened.locator("#curves path.line")
    before = lines.count()
    opened.locator("#convergence .legend button", has_text="flt").click()
    assert lines.count() == before - 1
    assert opened.locator("#cost .legend button", has_text="flt").get_attribute("aria-pressed") == "false"


def test_another_metric_can_be_chosen(opened: "playwright.Page"):
    opened.get_by_role("radio", name="Worst decile").click()
    assert opened.locator("#curves svg").get_attribute("aria-label").startswith("Worst decile by round")


def test_what_a_method_does_not_have_is_a_sentence(opened: "playwright.Page"):
    opened.get_by_role("radio", name="flt, seed 0").first.click()
    assert "found its groups once" in opened.locator("#bands .empty").inner_text()
    assert not opened.locator("#bands-chart").is_visible()


def test_choosing_another_run_draws_its_pictures(browser: "playwright.Browser", tmp_path: Path):
    for method, planted in (("flt", 3), ("fesem", 4)):
        told = Told(method, clients=12, planted=planted, regroups=True, rounds=planted)
        write_run(tmp_path / "all" / method, told)
    page = browser.new_page()
    page.goto(write_report([tmp_path / "all"], tmp_path / "report")[0].as_uri())
    page.wait_for_selector("#bands-chart svg")
    for name, changes in (("fesem", 3), ("flt", 2), ("fesem", 3)):
        page.locator("#kin-runs").get_by_role("radio", name=f"{name}, seed 0").click()
        assert f"{changes} changes" in page.locator("#bands-chart svg").get_attribute("aria-label")
        assert f"{changes + 1} groups" in page.locator("#tree-chart svg").get_attribute("aria-label")
        assert page.locator("#groups tbody tr").count() == changes + 1
    page.close()


def test_a_run_that_goes_on_says_what_is_not_written_yet(browser: "playwright.Browser", tmp_path: Path):
    run = write_run(tmp_path / "run", Told("flt"), has_ended=False)
    page = browser.new_page()
    page.goto(write_report([run], tmp_path / "report")[0].as_uri())
    page.wait_for_selector("#curves svg")
    for picture in ("map", "matrix", "tree", "labels"):
        assert "flt has not ended yet" in page.locator(f"#{picture} .empty").inner_text()
        assert not page.locator(f"#{picture} .chart").first.is_visible()
    page.close()


def test_colours_change_with_the_button_and_in_print_they_are_light(opened: "playwright.Page"):
    opened.get_by_role("button", name="Use dark colours").click()
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.evaluate("document.documentElement.dataset.theme") == "light"
    opened.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.evaluate("document.documentElement.dataset.theme") == "dark"


def test_everything_that_reacts_has_a_name_and_every_picture_words(opened: "playwright.Page"):
    unnamed = opened.evaluate(
        """() => [...document.querySelectorAll("button, select, [role=img]")]
          .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim())).length"""
    )
    assert unnamed == 0
    assert opened.locator("table caption").count() == opened.locator("table.data").count()


@pytest.mark.slow
def test_2400_clients_100_rounds_and_4_methods_open_in_3_seconds_and_10_megabytes(
    browser: "playwright.Browser", tmp_path: Path
):
    for method in ("fedavg", "flt", "fesem", "flhc"):
        told = Told(method, clients=2400, rounds=100, planted=47, regroups=method == "fesem", every=100)
        write_run(tmp_path / "all" / method, told, has_clusters=method != "fedavg", has_signatures=method == "flt")
    page = write_report([tmp_path / "all"], tmp_path / "report")[0]
    assert page.stat().st_size < 10e6
    assert min(opening_seconds(browser, page) for _ in range(3)) < 3  # the machine may be busy with other tests


def opening_seconds(browser: "playwright.Browser", page: Path) -> float:
    """How long it takes until everything is drawn."""
    opened = browser.new_page(viewport={"width": 1440, "height": 900})
    began = time.perf_counter()
    opened.goto(page.as_uri())
    opened.wait_for_selector("#bands-chart svg, #map-found canvas")
    opened.wait_for_selector("#client-table tbody tr")
    seconds = time.perf_counter() - began
    opened.close()
    return seconds
