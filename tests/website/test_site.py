"""The site is built without a warning, its search finds what users look for, and its pages fit a phone and a screen."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.test_browser import CHROMIUM, WIDTHS, playwright

pytestmark = [
    pytest.mark.on_demand,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]
ROOT = Path(__file__).parents[2]
PAGES = ("index", "tutorial", "reference/config", "reference/methods/flt", "reference/api/api", "results/flt")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "website.build_site", str(out)]  # in a process where extensions may be deprecated
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr  # a warning, as of a broken link, is an error
    return out


@pytest.fixture(scope="module")
def chromium() -> "Iterator[playwright.Browser]":
    with playwright.sync_playwright() as p:
        started = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def test_search_finds_the_pages_of_the_words_that_users_type(site: Path, chromium):
    page = chromium.new_page()
    for word, wanted in {
        "hyperparameter": "Sweeps",
        "non-IID": "Glossary",
        "docker": "A federation over a network",
    }.items():
        page.goto(f"{(site / 'search.html').as_uri()}?q={word}")
        page.wait_for_selector("ul.search li")
        assert any(wanted in link.inner_text() for link in page.query_selector_all("ul.search li a")), word
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values())
def test_pages_fit_their_window_and_ask_nothing_of_other_hosts(site: Path, chromium, width: int, scheme: str):
    page = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda sent: said.append(sent.url) if not sent.url.startswith("file:") else None)
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.context.close()
    assert said == []
