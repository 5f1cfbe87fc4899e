"""Who was in which group, round by round: bands that split and merge."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kinfed.report.data.kinship import by_size, matched
from kinfed.report.reading import Run, Whole

BANDS = 48  # groups that have a band of their own; the others share one
COLUMNS = 120  # changes that are shown


@dataclass(frozen=True)
class Membership:
    """Groups keep their colour from change to change, where most of their clients stay."""

    rounds: Whole  # [k] when groups changed, the first time included
    last: int  # round of the run
    groups: Whole  # [k, clients] colour; -1: in none, BANDS: in one of the small ones
    changes: int  # in all; k is smaller where there were too many to show


def membership(run: Run) -> Membership | None:
    """The groups over rounds; None if the method looks for none, or found them once and for all."""
    if len(run.groups) < 2:
        return None
    some = np.unique(np.linspace(0, len(run.groups) - 1, min(COLUMNS, len(run.groups))).astype(int))
    kept = [run.groups[at] for at in some]
    colours = [by_size(kept[0][1])[1]]
    for _, groups in kept[1:]:
        colours.append(matched(groups, colours[-1]))
    rounds = np.array([round for round, _ in kept])
    return Membership(rounds, int(run.rounds["round"][-1]), gathered(np.stack(colours)), len(run.groups) - 1)


def gathered(colours: Whole) -> Whole:
    """The same with the groups that are largest over all rounds numbered first, and small ones put together."""
    names, counts = np.unique(colours[colours >= 0], return_counts=True)
    ranked = names[np.argsort(-counts, kind="stable")]
    place = np.full(int(names.max(initial=0)) + 2, -1, dtype=np.int64)
    place[ranked] = np.minimum(np.arange(len(ranked)), BANDS)
    found: Whole = np.where(colours >= 0, place[colours], -1)
    return found


def flows(groups: Whole) -> list[list[tuple[int, int, int]]]:
    """Between each two changes: from which group to which how many clients went, who stayed included."""
    steps = []
    for before, after in pairwise(groups):
        pairs, counts = np.unique(np.stack([before, after], 1), axis=0, return_counts=True)
        steps.append([(int(a), int(b), int(n)) for (a, b), n in zip(pairs, counts, strict=True)])
    return steps
