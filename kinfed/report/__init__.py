"""Reports: what runs came to, as one page, figures and tables. `import kinfed.report` loads nothing heavy."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfed.report.figures.kin import (
        plot_dendrogram,
        plot_labels,
        plot_membership,
        plot_relatedness,
        plot_signatures,
    )
    from kinfed.report.figures.series import plot_accuracies, plot_convergence, plot_cost
    from kinfed.report.page import page
    from kinfed.report.series import Series, gather
    from kinfed.runs.reader import Run, read_runs

__all__ = [
    "Run", "Series", "gather", "page", "plot_accuracies", "plot_convergence", "plot_cost", "plot_dendrogram",
    "plot_labels", "plot_membership", "plot_relatedness", "plot_signatures", "read_runs",
]  # fmt: skip
PLACES = {
    "page": ["page"],
    "series": ["Series", "gather"],
    "figures.series": ["plot_accuracies", "plot_convergence", "plot_cost"],
    "figures.kin": ["plot_dendrogram", "plot_labels", "plot_membership", "plot_relatedness", "plot_signatures"],
}


def __getattr__(name: str) -> object:
    if name in ("Run", "read_runs"):
        return getattr(import_module("kinfed.runs.reader"), name)
    for place, names in PLACES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{place}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
