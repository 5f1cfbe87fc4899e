"""Charts for notebooks and files: what they show."""

import builtins
import subprocess
import sys
from pathlib import Path

import pytest

import kinfed.report
from kinfed import report
from kinfed.errors import ConfigError
from kinfed.report.page import all_charts, write_charts
from kinfed.report.vega import COLOURS, THEMES
from tests.report.folders import MadeUp, write_run

pytest.importorskip("vl_convert", reason="charts need vl-convert-python: pip install 'kinfed[report]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(place / f"flt-{seed}", MadeUp("flt", seed=seed))
    write_run(place / "fesem", MadeUp("fesem", reclusters=True))
    write_run(place / "fedavg", MadeUp("fedavg"), has_clusters=False)
    return place


def test_curves_show_what_the_data_say(folder: Path):
    chart = report.plot_convergence([folder])
    assert [curve.name for curve in chart.data] == ["FedAvg", "FLT", "FeSEM"]
    for curve in chart.data:
        points = [row for row in chart.tables["curves"] if row["method"] == curve.name]
        assert [row["x"] for row in points] == [1, 2, 3, 4]
        assert [row["y"] for row in points] == pytest.approx(curve.mean, rel=1e-4)
    last = {"x": 4, "from": 3.5, "to": 4, "m0": "85.83 %", "m1": "85.78 ± 0.07 %", "m2": "85.83 %"}
    assert chart.tables["rounds"][-1] == last
    assert chart.panels[0]["description"].startswith("Mean accuracy by round: FedAvg ends at 85.83")


def test_a_band_is_drawn_where_there_are_several_seeds(folder: Path):
    marks = [layer["mark"] for layer in report.plot_convergence([folder]).panels[0]["layer"]]
    assert "area" in marks
    assert "area" not in [layer["mark"] for layer in report.plot_convergence(folder / "fesem").panels[0]["layer"]]


def test_cost_is_along_megabytes(folder: Path):
    rows = report.plot_cost(str(folder / "fesem")).tables["curves"]
    assert [row["x"] for row in rows] == [0.024, 0.048, 0.072, 0.096]  # 12 clients, 1 kB each way


def test_histograms_have_one_panel_a_method_and_count_all_clients(folder: Path):
    chart = report.plot_accuracies([folder])
    assert len(chart.panels) == len(chart.data) == 3
    assert [sum(row["clients"] for row in chart.tables[f"bins{at}"]) for at in range(3)] == [12, 24, 12]


def test_charts_of_a_run_show_its_data(folder: Path):
    flt = folder / "flt-0"
    related = report.plot_relatedness(flt)
    assert related.data.after[0].tolist() == [1] * 4 + [0] * 8
    assert related.tables["cells1"][0] == {"row": 0, "share": [100] * 4 + [0] * 8}
    assert [row["to"] for row in related.tables["strip1"]] == [4, 8, 12]  # three clusters of four
    tree = report.plot_dendrogram(flt)
    assert tree.data.cut == 8.0 and len(tree.tables["merges"]) == 11 and len(tree.tables["members"]) == 12
    assert report.plot_labels(str(flt)).data.shares.shape == (3, 12)
    seen = report.plot_signatures(flt)
    assert [panel["title"] for panel in seen.panels] == ["by found cluster", "by ground-truth cluster"]
    assert seen.tables["clients"][1]["found"] == seen.tables["clients"][1]["true"] == "1"


def test_bands_add_up_to_all_clients(folder: Path):
    rows = report.plot_membership(folder / "fesem").tables["bands"]
    for first in (1, 2, 3, 4):
        assert sum(row["clients"] for row in rows if row["from"] == first) == 12
    # clients 1 and 11 are strays in round 1, client 2 in round 2: three of twelve move
    assert sum(row["moved"] for row in rows if row["from"] == 2) == 3


def test_a_run_without_the_data_says_what_it_lacks(folder: Path):
    with pytest.raises(ConfigError, match=r"fedavg has no tree\.npz: its method does not merge clients"):
        report.plot_dendrogram(folder / "fedavg")
    with pytest.raises(ConfigError, match=r"evaluation\.signatures"):
        report.plot_signatures(folder / "fedavg")


def test_charts_are_written_as_files_for_what_there_is(folder: Path, tmp_path: Path):
    written = write_charts(report.gather([folder / "fedavg"]), tmp_path / "figures", ["png", "svg"])
    names = {path.name for path in written}
    assert {"convergence-accuracy.png", "cost.svg", "accuracies.svg", "labels-fedavg-seed0.png"} <= names
    assert not [name for name in names if name.startswith(("dendrogram", "signatures", "membership"))]
    assert all(path.read_bytes().startswith((b"\x89PNG", b"<svg")) for path in written)


def test_every_chart_can_be_rendered(folder: Path, tmp_path: Path):
    for name, chart in all_charts(report.gather([folder / "fesem"])):
        chart.save(tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").stat().st_size > 2000, name
    assert chart._repr_svg_().startswith("<svg")
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        chart.save(tmp_path / "chart.pdf")


def test_light_and_dark_have_as_many_colours():
    assert len(COLOURS["light"]) == len(COLOURS["dark"]) == 8
    assert THEMES["light"].keys() == THEMES["dark"].keys()


def test_without_the_extra_the_error_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    real = builtins.__import__

    def missing(name: str, *rest: object) -> object:
        if name == "vl_convert":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'kinfed\[report\]'"):
        report.plot_convergence([folder]).save(tmp_path / "x.png")
    with pytest.raises(ConfigError, match=r"pip install 'kinfed\[report\]'"):
        report.write_report([folder], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_the_package_is_a_function_of_a_path_given_as_text(folder: Path, tmp_path: Path):
    page = kinfed.report(str(folder / "fedavg"), out=str(tmp_path / "out"))
    assert page == tmp_path / "out" / "index.html" and page.exists()


def test_importing_reports_loads_nothing_heavy():
    heavy = ("torch", "numpy", "vl_convert", "scipy", "umap")
    code = f"import sys, kinfed.report; print([n for n in {heavy} if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
