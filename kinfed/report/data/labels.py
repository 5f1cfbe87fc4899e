"""Which labels clients hold, with kin standing together."""

from dataclasses import dataclass

import numpy as np

from kinfed.runs.reader import Numbers, Run, Whole

CELLS = 600  # columns at most; each stands for several clients where there are more


@dataclass(frozen=True)
class Labels:
    """Shares of each label among the training rows, the mean over the clients of a column."""

    shares: Numbers  # [labels, columns]
    order: Whole  # [clients] who has labelled rows, kin together
    edges: Whole  # column c is of the places edges[c] to edges[c + 1] - 1 in the order


def labels_of(run: Run, order: Whole) -> Labels | None:
    """The label shares of a run's clients in this order; None where the run wrote none."""
    if run.labels is None:
        return None
    held = order[run.labels.sum(1)[order] > 0]
    counts = run.labels[held].astype(float)
    shares = counts / counts.sum(1, keepdims=True)
    edges = np.unique(np.linspace(0, len(held), min(CELLS, len(held)) + 1).astype(np.int64))
    means = np.add.reduceat(shares, edges[:-1]) / np.diff(edges)[:, None]
    return Labels(means.T, held, edges)
