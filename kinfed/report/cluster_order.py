"""The colours of clusters, over rounds too, and an order of clients in which those of a cluster stand together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kinfed.clustering.kmeans import match_columns
from kinfed.runs.reader import Run
from kinfed.runs.run_tables import Numbers, Whole

BANDS = 48  # clusters that have a band of their own; the others share one
COLUMNS = 60  # changes that are shown


@dataclass(frozen=True)
class Coloring:
    """Colours are numbers from 0 on, the largest cluster first; -1: in no cluster."""

    names: list[int]  # of the found clusters, as clusters.csv has them, by colour
    found: Whole | None  # [clients] colour of the found cluster
    true: Whole | None  # [clients] colour of the ground-truth cluster: of the found one it shares most clients with
    order: Whole  # [clients] clusters in one piece, in the dendrogram's order where there is one

    @property
    def best(self) -> Whole | None:
        """The found clusters, or else the ground truth."""
        return self.true if self.found is None else self.found


@dataclass(frozen=True)
class Membership:
    """A cluster has the colour that it has in the end; before, that of the cluster it shares most clients with."""

    rounds: Whole  # [k] when clusters changed, the first time included
    last: int  # round of the run
    clusters: Whole  # [k, clients] colour; -1: in none, BANDS: in one of the small ones
    changes: int  # in all; k is smaller where there were too many to show


def color_clusters(run: Run) -> Coloring:
    """The clusters of a run with their colours."""
    if run.found is None:
        true = None if run.true_clusters is None else rank_by_size(run.true_clusters)[1]
        return Coloring([], None, true, order_clients(run, true))
    names, found = rank_by_size(run.found)
    true = None if run.true_clusters is None else match_colours(run.true_clusters, found)
    return Coloring(names, found, true, order_clients(run, found))


def rank_by_size(clusters: Whole) -> tuple[list[int], Whole]:
    """The names of clusters, the largest first, and each client's place in that list (-1: in none)."""
    names, counts = np.unique(clusters[clusters >= 0], return_counts=True)
    ranked = names[np.argsort(-counts, kind="stable")]
    places = np.full(len(clusters), -1, dtype=np.int64)
    for place, name in enumerate(ranked):
        places[clusters == name] = place
    return ranked.tolist(), places


def match_colours(clusters: Whole, colours: Whole) -> Whole:
    """The clusters with the colour of that one of the others with which they have most clients in common.

    Each colour is given once; clusters for which none is left have further ones.
    """
    names, places = rank_by_size(clusters)
    common = np.zeros((len(names), max(len(names), int(colours.max(initial=-1)) + 1)))
    both = (places >= 0) & (colours >= 0)
    np.add.at(common, (places[both], colours[both]), 1)
    chosen = match_columns(torch.from_numpy(common)).numpy()
    return np.where(places >= 0, np.append(chosen, -1)[places], -1).astype(np.int64)


def order_clients(run: Run, colours: Whole | None) -> Whole:
    """Clients by cluster, and in a cluster by their place in the dendrogram; those in no cluster come last."""
    place = np.full(run.count, run.count, dtype=np.int64)
    tree = run.arrays("tree")
    if tree is not None:
        members = tree["members"].astype(np.int64)
        place[members[leaves(tree["merges"].astype(float), len(members))]] = np.arange(len(members))
    cluster = np.zeros(run.count, dtype=np.int64) if colours is None else colours
    first = {int(c): int(place[cluster == c].min()) for c in np.unique(cluster)}
    by_cluster = np.array([np.inf if c < 0 else first[int(c)] for c in cluster])
    found: Whole = np.lexsort((np.arange(run.count), place, cluster, by_cluster))
    return found


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


def membership_of(run: Run) -> Membership | None:
    """The clusters over rounds; None if the method looks for none, or found them once and for all."""
    if len(run.clusters) < 2:
        return None
    some = np.unique(np.linspace(0, len(run.clusters) - 1, min(COLUMNS, len(run.clusters))).astype(int))
    kept = [run.clusters[at] for at in some]
    rounds = np.array([round for round, _ in kept])
    colours = np.minimum(color_history([clusters for _, clusters in kept]), BANDS)
    return Membership(rounds, int(run.rounds["round"][-1]), colours, len(run.clusters) - 1)


def color_history(history: Sequence[Whole]) -> Whole:
    """Colours of cluster assignments that follow each other, the last one's by size: [k, clients]."""
    found = [rank_by_size(history[-1])[1]]
    for clusters in reversed(history[:-1]):
        found.append(match_colours(clusters, found[-1]))
    return np.stack(found[::-1])
