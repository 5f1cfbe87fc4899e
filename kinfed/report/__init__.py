"""Reports: what runs came to, as one page, figures and tables. `import kinfed.report` loads nothing heavy."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfed.report.page import page
    from kinfed.report.reading import Run, read_runs
    from kinfed.report.series import Series, gather

PLACES = {"Run": "reading", "Series": "series", "gather": "series", "page": "page", "read_runs": "reading"}
__all__ = ["Run", "Series", "gather", "page", "read_runs"]


def __getattr__(name: str) -> object:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
