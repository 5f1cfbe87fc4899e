"""How large a report of 2,400 clients, 100 rounds and 4 methods is, and how soon a browser has drawn it.

    python -m benchmarks.report                    # all clients listed in every round, three maps by UMAP
    python -m benchmarks.report --clients 240      # smaller

The folders are made up, but written by the run folder's own writers. Needs playwright, chromium and the extra `report`.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kinfed.report.page import write_report
from tests.report.folders import MadeUp, write_run

METHODS = ("fedavg", "flt", "fesem", "flhc")
T = tuple[float, Path]


def timed(work: Callable[[], Path]) -> T:
    """Seconds, and what came of it."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def write_all(folder: Path, clients: int, rounds: int) -> Path:
    """Run folders of all methods: one without clusters, one that finds them anew every round."""
    for method in METHODS:
        made = MadeUp(
            method, clients=clients, rounds=rounds, clusters=min(47, clients // 4), reclusters=method == "fesem"
        )
        write_run(folder / method, made, has_clusters=method != "fedavg")
    return folder


def opening_seconds(page: Path, width: int, until: str) -> float:
    """The median of five openings: until the page answers ("ready"), or every chart is drawn ("drawn")."""
    from playwright.sync_api import sync_playwright

    seconds = []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(5):
            opened = browser.new_page(viewport={"width": width, "height": 900})
            began = time.perf_counter()
            opened.goto(page.as_uri())
            opened.wait_for_selector(f"html[data-{until}=true]")
            seconds.append(time.perf_counter() - began)
            opened.close()
        browser.close()
    return sorted(seconds)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2400)
    parser.add_argument("--rounds", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        runs = write_all(Path(place) / "runs", asked.clients, asked.rounds)
        held = sum(path.stat().st_size for path in runs.rglob("*") if path.is_file()) / 1e6
        seconds, page = timed(lambda: write_report([runs], Path(place) / "report")[0])
        print(f"{asked.clients} clients, {asked.rounds} rounds, {len(METHODS)} methods: {held:.0f} MB of run folders")
        print(f"made in {seconds:.1f} s, {page.stat().st_size / 1e6:.2f} MB")
        for width in (390, 1440):
            ready, drawn = (opening_seconds(page, width, until) for until in ("ready", "drawn"))
            print(f"at {width} px ready in {ready:.2f} s, all charts drawn in {drawn:.2f} s")


if __name__ == "__main__":
    main()
