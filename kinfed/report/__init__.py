"""Reports: runs as one page, charts and tables. `import kinfed.report` loads nothing heavy."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfed.report.method_charts import plot_accuracies, plot_convergence, plot_cost
    from kinfed.report.page import make_page, write_report
    from kinfed.report.run_charts import (
        plot_dendrogram,
        plot_labels,
        plot_membership,
        plot_relatedness,
        plot_signatures,
    )
    from kinfed.report.series import Series, gather
    from kinfed.report.vega import Chart
    from kinfed.runs.reader import Run, read_runs

__all__ = [
    "Chart", "Run", "Series", "gather", "make_page", "plot_accuracies", "plot_convergence", "plot_cost",
    "plot_dendrogram", "plot_labels", "plot_membership", "plot_relatedness", "plot_signatures", "read_runs",
    "write_report",
]  # fmt: skip
PLACES = {
    "kinfed.report.page": ["make_page", "write_report"],
    "kinfed.report.series": ["Series", "gather"],
    "kinfed.report.vega": ["Chart"],
    "kinfed.report.method_charts": ["plot_accuracies", "plot_convergence", "plot_cost"],
    "kinfed.report.run_charts": [
        "plot_dendrogram", "plot_labels", "plot_membership", "plot_relatedness", "plot_signatures",
    ],
    "kinfed.runs.reader": ["Run", "read_runs"],
}  # fmt: skip


def __getattr__(name: str) -> object:
    for place, names in PLACES.items():
        if name in names:
            return getattr(import_module(place), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
