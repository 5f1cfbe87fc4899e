"""With whom clients average: of those that a method relates to a client, how many are of its true cluster.

    python -m benchmarks.partners RUN...

RUN is the folder of a run whose method relates clients (relatedness.npz), or one with several. A row for each run:
related clients without the client itself, the share of them that is of its cluster, and the share of its cluster that
is related to it; means over clients, of the first share also the least mean of a cluster.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import ConfigError
from kinfed.runs.reader import Run, runs_at

HEADER = (
    "| run | clients | related to a client | of these in its cluster | least cluster | of its cluster related |\n"
    "|---|---:|---:|---:|---:|---:|"
)


@dataclass(frozen=True)
class Partners:
    """Of each client, those that are related to it."""

    count: NDArray[np.int64]  # how many there are
    right: NDArray[np.float64]  # the share of them that is of its cluster; NaN where there are none
    found: NDArray[np.float64]  # the share of its cluster that is among them; NaN where it is alone in it

    @classmethod
    def of(cls, related: NDArray[np.bool_], true: NDArray[np.int64]) -> "Partners":
        """By who is related to whom and the true clusters."""
        others = ~np.eye(len(true), dtype=bool)
        same, chosen = (true[:, None] == true) & others, related & others
        count, both = chosen.sum(1), (chosen & same).sum(1)
        with np.errstate(invalid="ignore"):
            return cls(count, both / count, both / same.sum(1))


def main() -> None:
    """Prints a table of all runs."""
    runs = [run for folder in sys.argv[1:] for run in runs_at(Path(folder))]
    if not runs:
        raise SystemExit("wanted folders of runs: python -m benchmarks.partners RUN...")
    print(HEADER)
    for run in runs:
        print(row_of(run))


def row_of(run: Run) -> str:
    """The line of a run."""
    arrays, true = run.arrays("relatedness"), run.true_clusters
    if arrays is None or true is None:
        raise ConfigError(f"{run.path}: wanted a run that relates clients and has true clusters")
    found = Partners.of(arrays["related"], true)
    least = min(float(np.nanmean(found.right[true == cluster])) for cluster in np.unique(true))
    numbers = f"{found.count.mean():.1f} | {np.nanmean(found.right):.2f} | {least:.2f} | {np.nanmean(found.found):.2f}"
    return f"| {run.path.name} | {len(true)} | {numbers} |"


if __name__ == "__main__":
    main()
