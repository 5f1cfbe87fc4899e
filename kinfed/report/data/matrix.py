"""Who is related to whom, as a small grey picture: in the clients' own order, and with kin together."""

from dataclasses import dataclass

import numpy as np

from kinfed.runs.reader import Numbers, Run, Whole

CELLS = 240  # a side at most; each stands for several clients where there are more


@dataclass(frozen=True)
class Matrix:
    """Shares of related pairs in blocks of clients, 0 to 1."""

    before: Numbers  # [cells, cells]
    after: Numbers
    order: Whole  # [clients] of `after`
    edges: Whole  # cell c is of the places edges[c] to edges[c + 1] - 1 in the order


def matrix_of(run: Run, order: Whole) -> Matrix | None:
    """The related-clients matrix of a run; None if its method has none."""
    arrays = run.arrays("relatedness")
    if arrays is None:
        return None
    rows = arrays["sets"] if "sets" in arrays else arrays["related"]
    whose = arrays.get("set_of", np.arange(len(rows))).astype(np.int64)
    edges = np.unique(np.linspace(0, len(whose), min(CELLS, len(whose)) + 1).astype(np.int64))
    own = np.arange(len(whose))
    before, after = (shrunk(rows.astype(bool), whose, places, edges) for places in (own, order))
    return Matrix(before, after, order, edges)


def shrunk(rows: "np.typing.NDArray[np.bool_]", whose: Whole, order: Whole, edges: Whole) -> Numbers:
    """The share of related pairs in each block of clients, in this order; client i's relatives are rows[whose[i]].

    A block's rows are a mixture of the different sets of relatives, so no client-by-client matrix is made.
    """
    starts, sizes = edges[:-1], np.diff(edges)
    heard = np.add.reduceat(rows[:, order].astype(np.float32), starts, axis=1) / sizes
    block = np.repeat(np.arange(len(sizes)), sizes)
    mixture = np.zeros((len(sizes), len(rows)), dtype=np.float32)
    np.add.at(mixture, (block, whose[order]), 1)
    found: Numbers = (mixture / sizes[:, None]) @ heard
    return found
