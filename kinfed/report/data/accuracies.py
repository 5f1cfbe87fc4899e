"""How accuracies are spread over clients: a histogram, and the tenth that fares worst."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfed.report.series import Series
from kinfed.runs.reader import Numbers, Whole

WIDTHS = (1.0, 2.0, 2.5, 5.0)  # of bins, in percentage points
MOST = 30  # bins


@dataclass(frozen=True)
class Spread:
    """The clients that train of all runs of a series; accuracies in percent."""

    name: str
    edges: Numbers  # of the bins; the same for all series
    counts: Whole
    mean: float  # over seeds
    worst_decile: float  # mean of the tenth that fares worst; over seeds


def spreads(series: Sequence[Series]) -> list[Spread]:
    """The spread of each series, in common bins."""
    scored = [
        (one.name, [100 * run.training_accuracies for run in one.runs if len(run.training_accuracies)])
        for one in series
    ]
    scored = [(name, runs) for name, runs in scored if runs]
    if not scored:
        return []
    edges = bins(min(float(values.min()) for _, runs in scored for values in runs))
    return [spread_of(name, runs, edges) for name, runs in scored]


def spread_of(name: str, runs: Sequence[Numbers], edges: Numbers) -> Spread:
    """The spread of the accuracies of these runs."""
    worst = [np.sort(values)[: max(1, len(values) // 10)].mean() for values in runs]
    counts = np.histogram(np.concatenate(runs), edges)[0].astype(np.int64)
    return Spread(name, edges, counts, float(np.mean([values.mean() for values in runs])), float(np.mean(worst)))


def bins(lowest: float) -> Numbers:
    """Edges from a round number below the lowest accuracy up to 100 percent, not too many."""
    width = next((w for w in WIDTHS if (100 - lowest) / w <= MOST), WIDTHS[-1])
    first = max(0.0, 100 - width * max(4, int(np.ceil((100 - lowest) / width - 1e-9))))
    return np.arange(first, 100 + width / 2, width)
