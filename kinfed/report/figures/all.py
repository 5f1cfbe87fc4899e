"""Every figure of a report, written as files."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.errors import ConfigError
from kinfed.report.data.curves import shown_metrics
from kinfed.report.figures.canvas import save
from kinfed.report.figures.kin import plot_dendrogram, plot_labels, plot_membership, plot_relatedness, plot_signatures
from kinfed.report.figures.series import plot_accuracies, plot_convergence, plot_cost
from kinfed.report.series import Series
from kinfed.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_ONE_RUN: dict[str, "Callable[[Run], tuple[Figure, object]]"] = {
    "signatures": plot_signatures,
    "relatedness": plot_relatedness,
    "dendrogram": plot_dendrogram,
    "labels": plot_labels,
    "membership": plot_membership,
}


def write_figures(series: Sequence[Series], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Writes all figures of these series; of each series' first seed those of one run."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures(series):
        for kind in kinds:
            written.append(folder / f"{name}.{kind}")
            save(figure, written[-1])
    return written


def figures(series: Sequence[Series]) -> "Iterator[tuple[str, Figure]]":
    """The names and figures that there are data for."""
    for metric in shown_metrics(series):
        yield f"convergence-{metric.name}", plot_convergence(series, metric.name)[0]
    yield "cost", plot_cost(series)[0]
    yield "accuracies", plot_accuracies(series)[0]
    for one in series:
        for name, draw in OF_ONE_RUN.items():
            try:
                figure, _ = draw(one.runs[0])
            except ConfigError:  # the run has no such data
                continue
            yield f"{name}-{file_name(one.name)}-seed{one.runs[0].seed}", figure


def file_name(name: str) -> str:
    """A series' name without letters that file names should not have."""
    return "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in name)
