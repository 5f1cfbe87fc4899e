"""Who was in which group, round by round: bands that split and merge."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kinfed.report.data.kinship import by_size, matched
from kinfed.runs.reader import Run, Whole

BANDS = 48  # groups that have a band of their own; the others share one
COLUMNS = 120  # changes that are shown


@dataclass(frozen=True)
class Membership:
    """A group has the colour that it has in the end; before, that of the group most of whose clients it had."""

    rounds: Whole  # [k] when groups changed, the first time included
    last: int  # round of the run
    clusters: Whole  # [k, clients] colour; -1: in none, BANDS: in one of the small ones
    changes: int  # in all; k is smaller where there were too many to show


def membership(run: Run) -> Membership | None:
    """The groups over rounds; None if the method looks for none, or found them once and for all."""
    if len(run.clusters) < 2:
        return None
    some = np.unique(np.linspace(0, len(run.clusters) - 1, min(COLUMNS, len(run.clusters))).astype(int))
    kept = [run.clusters[at] for at in some]
    rounds = np.array([round for round, _ in kept])
    colours = np.minimum(coloured([clusters for _, clusters in kept]), BANDS)
    return Membership(rounds, int(run.rounds["round"][-1]), colours, len(run.clusters) - 1)


def coloured(groupings: Sequence[Whole]) -> Whole:
    """Colours of groupings that follow each other, the last one's by size: [k, clients]."""
    found = [by_size(groupings[-1])[1]]
    for clusters in reversed(groupings[:-1]):
        found.append(matched(clusters, found[-1]))
    return np.stack(found[::-1])


def flows(clusters: Whole) -> list[list[tuple[int, int, int]]]:
    """Between each two changes: from which group to which how many clients went, who stayed included."""
    steps = []
    for before, after in pairwise(clusters):
        pairs, counts = np.unique(np.stack([before, after], 1), axis=0, return_counts=True)
        steps.append([(int(a), int(b), int(n)) for (a, b), n in zip(pairs, counts, strict=True)])
    return steps
