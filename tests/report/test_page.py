"""The page and its tables, as files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kinfed.cli import app
from kinfed.progress import forward_log
from kinfed.report.page import make_page
from kinfed.report.report_tables import escape_latex, latex_table, markdown_table, results
from kinfed.report.run_views import umap
from kinfed.report.series import gather
from kinfed.report.vega import SCHEMA
from kinfed.runs.reader import Run
from tests.report.folders import MadeUp, write_run
from tests.test_cli import assert_refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "all"
    for seed in (0, 1):
        write_run(place / f"flt-{seed}", MadeUp("flt", seed=seed, clients=5))
    write_run(place / "fedavg", MadeUp("fedavg", clients=5), has_clusters=False)
    return place


def own_parts(html: str) -> str:
    """The page without the bundle of Vega, which knows how to load files but is given none."""
    return re.sub(r"<script>\(\(\) => \{.*?\}\)\(\);</script>", "", html, count=1, flags=re.S)


def test_the_page_holds_everything_and_asks_for_nothing(folder: Path):
    html = own_parts(make_page(gather([folder])))
    assert len(html) < 300_000
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", html), "a link to another file"
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", html)
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {SCHEMA}  # a name, not an address
    assert "$" not in re.sub(r"<script.*?</script>", "", html, flags=re.S)


def test_the_page_says_what_was_run_and_what_came_of_it(folder: Path):
    html = make_page(gather([folder]))
    assert "<title>FedAvg and FLT on digits · kinfed report</title>" in html
    for fact in ("5 clients", "4 rounds", "partition disjoint_classes", "seeds 0, 1"):
        assert f"<span>{fact}</span>" in html
    assert "No method is clearly best: FedAvg at " in html  # on their common seed no client differs
    assert "method = &quot;flt&quot;" in html


def test_clients_that_python_gave_are_own_data_of_no_partition(tmp_path: Path):
    write_run(tmp_path / "own", MadeUp("flt", clients=5, settings=("data.name=own:9fb727c1258daa84",)))
    html = make_page(gather([tmp_path]))
    assert "<title>FLT on own data · kinfed report</title>" in html
    assert "<span>partition " not in html


def test_contents_of_runs_cannot_become_markup(tmp_path: Path):
    run = write_run(tmp_path / "one", MadeUp("flt", clients=5))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('model = "mlp_200"', 'model = "</script><b>"'))
    roles = (run / "clients.csv").read_text().replace("trains", "<script>alert(1)</script>")
    (run / "clients.csv").write_text(roles)
    html = make_page(gather([run]))
    assert html.count("</script>") == 3 and "&lt;/script&gt;&lt;b&gt;" in html and "<script>alert" not in html
    data = json.loads(re.findall(r'id="data">(.*?)</script>', html, flags=re.S)[0])
    assert data["runs"][0]["signatures"]["tables"]["clients"][0]["role"] == "<script>alert(1)</script>"


def test_a_run_without_clusters_has_a_sentence_instead_of_pictures(folder: Path):
    html = make_page(gather([folder / "fedavg"]))
    assert "None of these methods looks for clusters" in html and "<div hidden>" in html


def test_a_stopped_run_is_named(tmp_path: Path):
    run = write_run(tmp_path / "one", MadeUp("flt", clients=5), has_ended=False)
    config = (run / "config.toml").read_text().replace("rounds = 4", "rounds = 9", 1)
    (run / "config.toml").write_text(config)
    assert "FLT, seed 0 has not ended: it is shown as of round 4 of 9." in make_page(gather([run]))


def test_the_best_of_a_column_is_marked(folder: Path):
    header, rows = results(gather([folder]))
    best = {name: [row[0].shown for row in rows if row[at].is_best] for at, name in enumerate(header)}
    assert best["accuracy %"] == best["clusters"] == best["MB moved"] == [], "on their common seed they are equal"
    assert best["worst decile %"] == ["FedAvg"], "one common seed has no interval: as shown"


def test_tables_in_latex_and_markdown(folder: Path):
    series = gather([folder])
    tex, text = latex_table(series), markdown_table(series)
    assert r"accuracy \% & to best (95 \% CI) & variance" in tex and r"\textbf{" in tex and r"$\pm$ 0.07" in tex
    assert len({line.count("&") for line in tex.splitlines() if "&" in line}) == 1
    assert text.splitlines()[3].startswith("| FLT | 8") and "± 0.07" in text
    assert escape_latex(r"a_b 50% {x} ~ \y") == r"a\_b 50\% \{x\} \textasciitilde{} \textbackslash{}y"


def test_the_command_writes_the_page_and_the_tables(folder: Path, tmp_path: Path):
    words = ["report", str(folder), "--out", str(tmp_path / "out"), "--latex", "--markdown"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.output == f"written to {tmp_path / 'out' / 'index.html'} and 2 more files\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index.html", "results.md", "results.tex"]
    assert_refused(CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")]), "no run at", "kinfed run")
    assert_refused(CliRunner().invoke(app, ["report", str(folder), "--figures", "pgn"]), "did you mean 'png'?")


def test_what_takes_long_is_said_beforehand_of_which_run(folder: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr("kinfed.relatedness.embeddings.project", lambda points, *how: points[:, :2])
    runs = [Run(folder / f"flt-{seed}") for seed in (0, 1)]
    with forward_log(said.append):
        for run in runs:
            umap(np.zeros((20, 3), np.float32), run)
    umap(np.zeros((20, 3), np.float32), runs[0])
    assert said == [f"drawing the signature map of FLT seed {seed}, 20 clients (UMAP)" for seed in (0, 1)]
