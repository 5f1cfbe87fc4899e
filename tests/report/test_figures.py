"""Figures for notebooks: what they show, and as files."""

import builtins
from pathlib import Path

import numpy as np
import pytest

from kinfed import report
from kinfed.errors import ConfigError
from kinfed.report.figures.all import write_figures
from kinfed.report.figures.canvas import colour
from tests.report.folders import Told, write_run

pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install 'kinfed[report]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(place / f"flt-{seed}", Told("flt", seed=seed))
    write_run(place / "fesem", Told("fesem", regroups=True))
    write_run(place / "fedavg", Told("fedavg"), has_clusters=False)
    return place


def test_curves_are_drawn_as_the_data_say(folder: Path):
    figure, data = report.plot_convergence([folder])
    axis = figure.axes[0]
    assert [line.get_label() for line in axis.lines] == [curve.name for curve in data] == ["fedavg", "flt", "fesem"]
    for line, curve in zip(axis.lines, data, strict=True):
        assert np.array_equal(line.get_ydata(), curve.mean)
    assert len(axis.collections) == 1  # one of them has two seeds, so one band
    assert axis.lines[1].get_color() == colour(1)
    assert report.plot_cost([folder])[0].axes[0].get_xlabel() == "MB moved both ways"


def test_histograms_have_one_row_a_method(folder: Path):
    figure, data = report.plot_accuracies([folder])
    assert len(figure.axes) == len(data) == 3
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert sum(heights) == pytest.approx(1)


def test_every_picture_of_a_run_comes_with_its_data(folder: Path):
    assert report.plot_relatedness(folder / "flt-0")[1].after[0].tolist() == [1] * 4 + [0] * 8
    assert report.plot_dendrogram(folder / "flt-0")[1].cut == 8.0
    assert report.plot_labels(folder / "flt-0")[1].shares.shape == (3, 12)
    assert report.plot_membership(folder / "fesem")[1].changes == 3
    figure, seen = report.plot_signatures(folder / "flt-0")
    drawn = np.concatenate([np.asarray(dots.get_offsets()) for dots in figure.axes[0].collections])
    assert sorted(map(tuple, drawn)) == sorted(map(tuple, seen.points))


def test_a_run_without_the_data_says_what_it_lacks(folder: Path):
    with pytest.raises(ConfigError, match=r"fedavg has no tree\.npz: its method does not merge clients"):
        report.plot_dendrogram(folder / "fedavg")
    with pytest.raises(ConfigError, match=r"evaluation\.signatures"):
        report.plot_signatures(folder / "fedavg")


def test_figures_are_written_as_files_for_what_there_is(folder: Path, tmp_path: Path):
    written = write_figures(report.gather([folder / "fedavg"]), tmp_path / "figures", ["png", "svg"])
    names = {path.name for path in written}
    assert {"convergence-accuracy.png", "cost.svg", "accuracies.svg", "labels-fedavg-seed0.png"} <= names
    assert not [name for name in names if name.startswith(("dendrogram", "signatures", "membership"))]
    assert all(path.read_bytes().startswith((b"\x89PNG", b"<?xml")) for path in written)


def test_without_matplotlib_the_error_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def missing(name: str, *rest: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'kinfed\[report\]'"):
        report.plot_convergence([folder])
