"""The front door: run and compare methods, resume, read and report runs, from Python and from the command line.

A method is a name, an object or a whole config; data are the name of a dataset or a `Population`. Every run writes its
folder, so that reports, resuming and export work for all of them alike.
"""

from kinfed.api.comparisons import Comparison, compare, load_comparison, resume_comparison
from kinfed.api.one_run import RunResult, export_run, load_run, report, resume, run

__all__ = [
    "Comparison", "RunResult", "compare", "export_run", "load_comparison", "load_run", "report", "resume",
    "resume_comparison", "run",
]  # fmt: skip
