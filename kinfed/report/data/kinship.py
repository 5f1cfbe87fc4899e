"""Who was found to be kin with whom: the colours of groups, and an order in which kin stand together."""

from dataclasses import dataclass

import numpy as np

from kinfed.report.data.tree import leaves
from kinfed.runs.reader import Run, Whole


@dataclass(frozen=True)
class Kinship:
    """Colours are numbers from 0 on, the largest group first; -1: in no group."""

    names: list[int]  # of the found groups, as groups.csv has them, by colour
    found: Whole | None  # [clients] colour of the found group
    planted: Whole | None  # [clients] colour of the planted group: that of the found group it has most in common with
    order: Whole  # [clients] kin together, in the tree's order where there is one


def kinship(run: Run) -> Kinship:
    """Groups of a run with their colours."""
    if run.found is None:
        planted = None if run.true_clusters is None else by_size(run.true_clusters)[1]
        return Kinship([], None, planted, ordered(run, planted))
    names, found = by_size(run.found)
    planted = None if run.true_clusters is None else matched(run.true_clusters, found)
    return Kinship(names, found, planted, ordered(run, found))


def by_size(clusters: Whole) -> tuple[list[int], Whole]:
    """The names of groups, the largest first, and each client's place in that list (-1: in none)."""
    names, counts = np.unique(clusters[clusters >= 0], return_counts=True)
    ranked = names[np.argsort(-counts, kind="stable")]
    places = np.full(len(clusters), -1, dtype=np.int64)
    for place, name in enumerate(ranked):
        places[clusters == name] = place
    return ranked.tolist(), places


def matched(clusters: Whole, colours: Whole) -> Whole:
    """The groups with the colour of that one of the others with which they have most clients in common.

    Each colour is given once; groups for which none is left have further ones.
    """
    from scipy.optimize import linear_sum_assignment

    names, places = by_size(clusters)
    common = np.zeros((len(names), max(len(names), int(colours.max(initial=-1)) + 1)))
    both = (places >= 0) & (colours >= 0)
    np.add.at(common, (places[both], colours[both]), 1)
    _, chosen = linear_sum_assignment(-common)
    return np.where(places >= 0, np.append(chosen, -1)[places], -1).astype(np.int64)


def ordered(run: Run, colours: Whole | None) -> Whole:
    """Clients by group, and in a group by their place in the tree; who is in no group comes last."""
    place = np.full(run.count, run.count, dtype=np.int64)
    tree = run.arrays("tree")
    if tree is not None:
        members = tree["members"].astype(np.int64)
        place[members[leaves(tree["merges"].astype(float), len(members))]] = np.arange(len(members))
    cluster = np.zeros(run.count, dtype=np.int64) if colours is None else colours
    first = {int(g): int(place[cluster == g].min()) for g in np.unique(cluster)}
    by_cluster = np.array([np.inf if g < 0 else first[int(g)] for g in cluster])
    found: Whole = np.lexsort((np.arange(run.count), place, cluster, by_cluster))
    return found
