"""Runs side by side: how they ended, paired statistics, the tables of a comparison."""

from kinfed.comparison.outcomes import (
    COLUMNS,
    NOTHING,
    Column,
    Outcome,
    as_csv,
    columns_for,
    is_useful,
    mean_and_spread,
    means_by_method,
    runs_as_csv,
    summary_table,
)
from kinfed.comparison.paired import Interval, Measured, Pair
from kinfed.comparison.results_table import (
    Cell,
    comparison_table,
    headline,
    make_cell,
    make_cells,
    markdown_table,
    pairs_as_csv,
    win_matrix,
)

__all__ = [
    "COLUMNS", "NOTHING", "Cell", "Column", "Interval", "Measured", "Outcome", "Pair", "as_csv", "columns_for",
    "comparison_table", "headline", "is_useful", "make_cell", "make_cells", "markdown_table", "mean_and_spread",
    "means_by_method", "pairs_as_csv", "runs_as_csv", "summary_table", "win_matrix",
]  # fmt: skip
