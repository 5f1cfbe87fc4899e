"""Charts for notebooks and files: what they show."""

import builtins
import html
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import kinfed.report
from kinfed import report
from kinfed.errors import ConfigError
from kinfed.report.method_charts import HEIGHT, LINE, round_axis, span_of, spread_apart
from kinfed.report.page import all_charts, write_report
from kinfed.report.vega import CLUSTER_COLOURS, COLOURS, PADDING, THEMES, VERSION, WIDER, load_renderer
from kinfed.runs.writer import write_confusions
from tests.report.folders import MadeUp, write_run, write_sweep

pytest.importorskip("vl_convert", reason="charts need vl-convert-python: pip install 'kinfed[report]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(place / f"flt-{seed}", MadeUp("flt", seed=seed))
    write_run(place / "fesem", MadeUp("fesem", reclusters=True))
    write_run(place / "fedavg", MadeUp("fedavg"), has_clusters=False)
    return place


def test_the_metric_is_shown_against_each_parameter_of_a_sweep(tmp_path: Path, folder: Path):
    chart = report.plot_parameters(write_sweep(tmp_path / "sweep"))
    assert [panel["title"] for panel in chart.panels] == ["lr", "momentum"]
    x, colour = (chart.panels[0]["layer"][0]["encoding"][name] for name in ("x", "color"))
    assert x["title"] == "training.lr" and x["scale"]["type"] == "log" and colour["title"] == "momentum"
    assert [(row["p0"], row["p1"], row["seeds"]) for row in chart.tables["points"]] == [
        (0.01, 0.0, 2), (0.01, 0.9, 2), (0.1, 0.0, 2), (0.1, 0.9, 2),
    ]  # fmt: skip
    low, high = (chart.tables["points"][at]["mean"] for at in (0, 3))
    assert high - low == pytest.approx(4.9) and "validation accuracy" in chart.panels[0]["description"]
    with pytest.raises(ConfigError, match="no parameter to plot against"):
        report.plot_parameters(folder)


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


def test_an_axis_of_few_rounds_names_each_of_them_once():
    assert round_axis(1, 2)["values"] == [1, 2] and round_axis(0, 9)["values"] == list(range(10))
    assert "values" not in round_axis(1, 100)


def kinds_of(chart: report.Chart) -> list[str]:
    """The kinds of marks in a chart's layers."""
    return [layer["mark"]["type"] for layer in chart.panels[0]["layer"]]


def test_names_stand_at_the_ends_of_curves_and_not_on_each_other(folder: Path):
    chart = report.plot_convergence([folder])
    ends = sorted(row["y"] for row in chart.tables["ends"])
    assert [row["method"] for row in chart.tables["ends"]] == ["FedAvg", "FLT", "FeSEM"]
    low, high = span_of(chart.data)
    assert np.diff(ends).min() >= (high - low) * LINE / HEIGHT * 0.999  # though all three end at the same accuracy
    assert low <= ends[0] and ends[-1] <= high * 1.0001  # five digits are kept
    assert spread_apart(np.array([1.0, 9.0, 5.0]), 0, 10).tolist() == [1, 9, 5]  # far apart: nobody moves


def test_zooming_in_shows_where_the_better_half_of_the_methods_ends(folder: Path):
    zoom = report.plot_convergence([folder]).panels[0]["usermeta"]["zoom"]
    assert zoom["x"] == [2, 4] and 40 < zoom["y"][0] < zoom["y"][1] < 90  # rounds 2 to 4 of 4: 42.9 % to 85.8 %


def test_a_band_is_drawn_where_there_are_several_seeds(folder: Path):
    assert "area" in kinds_of(report.plot_convergence([folder]))
    assert "area" not in kinds_of(report.plot_convergence(folder / "fesem"))


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
    first = related.tables["cells1"][0]
    assert first["share"] == [100] * 4 + [0] * 8 and first["apart"][0] == 0 and len(first["apart"]) == 12
    assert min(first["tone"][:4]) > 50 > max(first["tone"][4:])  # related pairs have tones of their own
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


def test_curves_of_clusters_are_means_over_their_clients(folder: Path):
    chart = report.plot_cluster_curves(folder / "flt-0")
    assert chart.data.sizes == [4, 4, 4] and chart.data.rounds.tolist() == [1, 2, 3, 4]
    tenths = np.floor(10 * np.arange(12) / 12)  # folders.score: a point less for each tenth of the clients
    wanted = [0.9 - 0.01 * tenths[cluster::3].mean() for cluster in range(3)]
    assert np.sort(chart.data.means[:, -1]) == pytest.approx(np.sort(wanted))
    assert len(chart.tables["curves"]) == 12 and chart.tables["ends"][0]["said"].endswith("4 clients")
    with pytest.raises(ConfigError, match="clusters whose clients were scored"):
        report.plot_cluster_curves(folder / "fedavg")


def test_distances_show_related_pairs_others_and_the_cut(folder: Path):
    chart = report.plot_distances(folder / "flt-0")
    assert chart.data.related.sum() == 3 * 6 and chart.data.others.sum() == 66 - 18 and chart.data.cut == 8.0
    assert max(row["to"] for row in chart.tables["bins"] if row["pairs"] == "related") < 8
    assert min(row["from"] for row in chart.tables["bins"] if row["pairs"] == "not related") > 8
    assert chart.panels[0]["layer"][-1]["encoding"] == {"x": {"datum": 8.0}}


def test_a_confusion_matrix_is_of_all_clients_and_of_the_worst_cluster(folder: Path):
    chart = report.plot_confusion(folder / "flt-0")
    assert chart.data.counts.shape == (3, 10, 10) and len(chart.panels) == 2
    assert chart.panels[0]["title"] == "all clients: 90.0% right"  # folders.confuse: 12 of 120 samples are wrong
    assert chart.panels[1]["title"] == "cluster 2, the worst: 80.0% right"
    assert chart.tables["cells1"][2]["share"][:4] == [0, 0, 80, 20] and chart.tables["cells1"][2]["count"][3] == 8


def test_samples_of_no_class_have_a_column_and_count_as_wrong(tmp_path: Path):
    run = write_run(tmp_path / "run", MadeUp("fedavg"), has_clusters=False)
    counts = torch.zeros(1, 10, 11, dtype=torch.long)
    counts[0, 4, 4], counts[0, 4, 10] = 3, 1
    write_confusions(run, (torch.tensor([-1]), counts))
    chart = report.plot_confusion(run)
    assert chart.panels[0]["title"] == "all clients: 75.0% right"
    assert chart.tables["cells0"][4]["share"] == [0, 0, 0, 0, 75, 0, 0, 0, 0, 0, 25]
    assert (
        chart.tables["cells0_places"][-1] == {"at": 10, "name": "no class"} and len(chart.tables["cells0_rows"]) == 10
    )


def test_class_names_are_carried_to_charts(tmp_path: Path):
    run = write_run(tmp_path / "run", MadeUp("flt", names=("it's", "b\\c", *"defghijk")))
    for chart in (report.plot_labels(run), report.plot_confusion(run)):
        svg = html.unescape(chart._repr_svg_())
        assert ">it's<" in svg and ">b\\c<" in svg


def test_an_svg_leaves_room_for_the_wider_letters_of_other_fonts(folder: Path):
    chart = report.plot_accuracies([folder / "fedavg"])
    even = load_renderer().vegalite_to_svg(chart.to_dict(), VERSION)
    wide, narrow = (int(re.search(r'width="(\d+)"', svg)[1]) for svg in (chart._repr_svg_(), even))
    assert wide - narrow == WIDER - PADDING > 20


def test_a_run_without_the_data_says_what_it_lacks(folder: Path):
    with pytest.raises(ConfigError, match=r"fedavg has no tree\.npz: its method does not merge clients"):
        report.plot_dendrogram(folder / "fedavg")
    with pytest.raises(ConfigError, match=r"evaluation\.signatures"):
        report.plot_signatures(folder / "fedavg")


def test_charts_are_written_as_files_for_what_there_is(folder: Path, tmp_path: Path):
    _, *written = write_report([folder / "fedavg"], tmp_path, ["png", "svg"])
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
    assert len(CLUSTER_COLOURS["light"]) == len(CLUSTER_COLOURS["dark"]) == 8
    for scheme in ("light", "dark"):
        assert not set(COLOURS[scheme]) & set(CLUSTER_COLOURS[scheme])  # no cluster has a method's colour
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
