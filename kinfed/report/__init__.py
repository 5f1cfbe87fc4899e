"""Reports: runs as one page, charts and tables. `import kinfed.report` loads nothing heavy.

The package can be called: `kinfed.report("runs/demo")` writes a report, whether or not it was imported before.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfed.report.matrix_charts import plot_confusion, plot_distances, plot_labels, plot_relatedness
    from kinfed.report.method_charts import plot_accuracies, plot_convergence, plot_cost
    from kinfed.report.page import make_page, write_report
    from kinfed.report.parameter_chart import plot_parameters
    from kinfed.report.run_charts import plot_cluster_curves, plot_dendrogram, plot_membership, plot_signatures
    from kinfed.report.series import Series, gather
    from kinfed.report.vega import Chart
    from kinfed.runs.reader import Run, read_runs

__all__ = [
    "Chart", "Run", "Series", "gather", "make_page", "plot_accuracies", "plot_cluster_curves", "plot_confusion",
    "plot_convergence", "plot_cost", "plot_dendrogram", "plot_distances", "plot_labels", "plot_membership",
    "plot_parameters", "plot_relatedness", "plot_signatures", "read_runs", "write_report",
]  # fmt: skip
PLACES = {
    "kinfed.report.page": ["make_page", "write_report"],
    "kinfed.report.series": ["Series", "gather"],
    "kinfed.report.vega": ["Chart"],
    "kinfed.report.method_charts": ["plot_accuracies", "plot_convergence", "plot_cost"],
    "kinfed.report.parameter_chart": ["plot_parameters"],
    "kinfed.report.run_charts": ["plot_cluster_curves", "plot_dendrogram", "plot_membership", "plot_signatures"],
    "kinfed.report.matrix_charts": ["plot_confusion", "plot_distances", "plot_labels", "plot_relatedness"],
    "kinfed.runs.reader": ["Run", "read_runs"],
}  # fmt: skip


def __getattr__(name: str) -> object:
    for place, names in PLACES.items():
        if name in names:
            return getattr(import_module(place), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ReportModule(ModuleType):
    """The package as a function."""

    def __call__(
        self, *runs: Path | str, out: Path | str | None = None, figures: Sequence[str] = (), latex: bool = False,
        markdown: bool = False,
    ) -> Path:  # fmt: skip
        """Writes the report of these runs or comparisons, figures and tables on demand; gives back the page."""
        from kinfed.report.page import report_folder, write_report

        folder = out or report_folder([Path(run) for run in runs])
        return write_report(runs, folder, figures, latex=latex, markdown=markdown)[0]


sys.modules[__name__].__class__ = ReportModule
