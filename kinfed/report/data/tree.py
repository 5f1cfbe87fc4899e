"""The dendrogram: merges as brackets in the plane, and the height at which it was cut."""

from dataclasses import dataclass

import numpy as np

from kinfed.runs.reader import Numbers, Run, Whole


@dataclass(frozen=True)
class Tree:
    """Merge i joins (left[i], low_left[i]) and (right[i], low_right[i]) at heights[i]; leaves stand at 0, 1, 2, …"""

    members: Whole  # clients, from left to right
    clusters: Whole  # colours of their groups
    left: Numbers
    right: Numbers
    low_left: Numbers
    low_right: Numbers
    heights: Numbers
    colours: Whole  # of the group that a merge is inside of; -1: above the cut
    cut: float | None  # None: nothing was cut, all are one group


def tree_of(run: Run, colours: Whole) -> Tree | None:
    """The tree by which a method found these groups ([clients]); None if it merges no clients."""
    arrays = run.arrays("tree")
    if arrays is None or not len(arrays["merges"]):
        return None
    merges, members = arrays["merges"].astype(float), arrays["members"].astype(np.int64)
    order = leaves(merges, len(members))
    cut = float(arrays["height"])
    pairs = merges[:, :2].astype(np.int64)
    x, low = np.zeros(2 * len(members) - 1), np.concatenate([np.zeros(len(members)), merges[:, 2]])
    cluster = np.full(len(low), -1, dtype=np.int64)
    x[order], cluster[: len(members)] = np.arange(len(members)), colours[members]
    for at, (a, b) in enumerate(pairs, start=len(members)):
        x[at] = (x[a] + x[b]) / 2
        cluster[at] = cluster[a] if low[at] < cut and cluster[a] == cluster[b] else -1
    turned = x[pairs[:, 0]] > x[pairs[:, 1]]
    one, other = np.where(turned[:, None], pairs[:, ::-1], pairs).T
    shown = cut if np.isfinite(cut) else None
    leaf = members[order]
    return Tree(
        leaf, colours[leaf], x[one], x[other], low[one], low[other], merges[:, 2], cluster[len(members) :], shown
    )


def leaves(merges: Numbers, count: int) -> Whole:
    """The leaves from left to right, so that no two brackets cross: [count]."""
    waiting, found = [2 * count - 2], []
    while waiting:
        node = waiting.pop()
        if node < count:
            found.append(node)
        else:
            a, b = int(merges[node - count, 0]), int(merges[node - count, 1])
            waiting += [b, a]
    return np.array(found, dtype=np.int64)
