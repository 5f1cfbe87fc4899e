"""The page and its tables, as files."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kinfed.cli import app
from kinfed.progress import heard
from kinfed.report.data.map import umap
from kinfed.report.page import page
from kinfed.report.series import gather
from kinfed.report.tables import in_latex, latex, markdown, results
from tests.report.folders import Told, write_run
from tests.test_cli import assert_refused, python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "all"
    for seed in (0, 1):
        write_run(place / f"flt-{seed}", Told("flt", seed=seed, clients=5))
    write_run(place / "fedavg", Told("fedavg", clients=5), has_clusters=False)
    return place


def test_the_page_holds_everything_and_asks_for_nothing(folder: Path):
    html = page(gather([folder]))
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", html), "a link to another file"
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", html)
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "$" not in re.sub(r"<script.*?</script>", "", html, flags=re.S)


def test_the_page_says_what_was_run_and_what_came_of_it(folder: Path):
    html = page(gather([folder]))
    assert "<title>fedavg and flt on digits · kinfed report</title>" in html
    for fact in ("5 clients", "4 rounds", "partition disjoint_classes", "seeds 0, 1"):
        assert f"<span>{fact}</span>" in html
    assert "as much as" not in html and "It found 3 groups, which fit the planted ones with an ARI of 1.00." not in html
    assert "fedavg serves clients best" in html  # its one seed is the better of flt's two
    assert "method = &quot;flt&quot;" in html


def test_data_cannot_end_the_script_they_are_in(tmp_path: Path):
    run = write_run(tmp_path / "one", Told("flt", clients=5))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('model = "mlp_200"', 'model = "</script><b>"'))
    html = page(gather([run]))
    assert html.count("</script>") == 2 and "&lt;/script&gt;&lt;b&gt;" in html
    assert json.loads(re.findall(r'id="data">(.*?)</script>', html, flags=re.S)[0])["series"][0]["name"] == "flt"


def test_a_run_without_clusters_has_a_sentence_instead_of_pictures(folder: Path):
    html = page(gather([folder / "fedavg"]))
    assert "None of these methods looks for groups" in html and 'id="kin-runs"' not in html


def test_a_stopped_run_is_named(tmp_path: Path):
    run = write_run(tmp_path / "one", Told("flt", clients=5), has_ended=False)
    config = (run / "config.toml").read_text().replace("rounds = 4", "rounds = 9", 1)
    (run / "config.toml").write_text(config)
    assert "flt, seed 0 has not ended: it is shown as of round 4 of 9." in page(gather([run]))


def test_the_best_of_a_column_is_marked(folder: Path):
    header, rows = results(gather([folder]))
    best = {name: [row[0].shown for row in rows if row[at].is_best] for at, name in enumerate(header)}
    assert best["accuracy %"] == ["fedavg"] and best["clusters"] == [] and best["MB moved"] == []


def test_tables_in_latex_and_markdown(folder: Path):
    series = gather([folder])
    tex, text = latex(series), markdown(series)
    assert r"accuracy \% & variance" in tex and r"\textbf{" in tex and r"$\pm$ 0.07" in tex
    assert len({line.count("&") for line in tex.splitlines() if "&" in line}) == 1
    assert text.splitlines()[3].startswith("| flt | 8") and "± 0.07" in text
    assert in_latex(r"a_b 50% {x} ~ \y") == r"a\_b 50\% \{x\} \textasciitilde{} \textbackslash{}y"


def test_the_command_writes_the_page_and_the_tables(folder: Path, tmp_path: Path):
    words = ["report", str(folder), "--out", str(tmp_path / "out"), "--latex", "--markdown"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.output == f"written to {tmp_path / 'out' / 'index.html'} and 2 more files\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index.html", "results.md", "results.tex"]
    assert_refused(CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")]), "no run at", "kinfed run")
    assert_refused(CliRunner().invoke(app, ["report", str(folder), "--figures", "pgn"]), "did you mean 'png'?")


def test_importing_reports_loads_nothing_heavy():
    heavy = ("torch", "numpy", "matplotlib", "scipy", "umap")
    assert python(f"import sys, kinfed.report; print([n for n in {heavy} if n in sys.modules])") == "[]\n"
    assert "kinfed.report" in sys.modules


def test_what_takes_long_is_said_beforehand(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr("kinfed.relatedness.embeddings.project", lambda points, *how: points[:, :2])
    with heard(said.append):
        umap(np.zeros((20, 3), np.float32))
    umap(np.zeros((20, 3), np.float32))
    assert said == ["drawing the signature map of 20 clients (UMAP)"]
