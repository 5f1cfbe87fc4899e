"""What a run knows of its clients, as numbers to draw: map, matrix, distances, dendrogram, labels, clusters' curves."""

import logging
from dataclasses import dataclass

import numpy as np
import torch

from kinfed.methods import title_of
from kinfed.report.cluster_order import leaves
from kinfed.runs.reader import TRAINS, Run
from kinfed.runs.run_tables import Numbers, Whole

log = logging.getLogger("kinfed")
NEIGHBOURS, MIN_DIST, SEED = 15, 0.3, 42
FEW = NEIGHBOURS  # below this all are UMAP's neighbours of each other, and it knows no more than distances say
MOST = 2000  # clients on a map
MATRIX_CELLS = 80  # a side at most; each stands for several clients where there are more
LABEL_CELLS = 240  # columns at most, likewise
ALL_PAIRS = 4000  # clients up to which distances of all pairs are shown
DISTANCE_BINS = 40
ROUNDS = 100  # of a cluster's curve


@dataclass(frozen=True)
class SignatureMap:
    """Signatures in the plane."""

    clients: Whole  # [n]
    points: Numbers  # [n, 2] in 0..1, mostly wider than high
    projection: str


@dataclass(frozen=True)
class Matrix:
    """Shares of related pairs in blocks of clients, 0 to 1, and their mean distances where they are known."""

    before: Numbers  # [cells, cells]
    after: Numbers
    apart_before: Numbers | None  # [cells, cells]; NaN: not compared
    apart_after: Numbers | None
    measure: str  # what a distance is
    order: Whole  # [clients] of `after`
    edges: Whole  # cell c is of the places edges[c] to edges[c + 1] - 1 in the order


@dataclass(frozen=True)
class Distances:
    """How far pairs of clients are apart, as a histogram: related pairs and all others."""

    measure: str
    edges: Numbers  # of the bins
    related: Whole
    others: Whole
    cut: float | None  # from this distance on clients were not merged; None: no single threshold decides


@dataclass(frozen=True)
class ClusterCurves:
    """Means of the main metric over the training clients of each cluster."""

    rounds: Whole  # [k]
    colours: list[int]  # of the clusters, the largest first
    sizes: list[int]
    means: Numbers  # [clusters, k]; NaN: no client of it was scored


@dataclass(frozen=True)
class Confusion:
    """How many test samples of each class (row) were taken for each class (column), by cluster."""

    clusters: Whole  # [k] names; -1: in none
    counts: Whole  # [k, classes, classes], or one column more: in no class


@dataclass(frozen=True)
class Tree:
    """Merge i joins (left[i], low_left[i]) and (right[i], low_right[i]) at heights[i]; leaves stand at 0, 1, 2, …"""

    members: Whole  # clients, from left to right
    clusters: Whole  # colours of their clusters
    left: Numbers
    right: Numbers
    low_left: Numbers
    low_right: Numbers
    heights: Numbers
    colours: Whole  # of the cluster that a merge is inside of; -1: above the cut
    cut: float | None  # between the last merge that was made and the first that was not; None: all are one cluster


@dataclass(frozen=True)
class Labels:
    """Shares of each label among the training samples, the mean over the clients of a column."""

    shares: Numbers  # [labels, columns]
    order: Whole  # [clients] those with labelled samples, by cluster
    edges: Whole  # column c is of the places edges[c] to edges[c + 1] - 1 in the order


def map_of(run: Run) -> SignatureMap | None:
    """The map of a run's signatures; None where it wrote none."""
    arrays = run.arrays("signatures")
    if arrays is None or not len(arrays["clients"]):
        return None
    clients, points = arrays["clients"].astype(np.int64), arrays["points"].astype(np.float32)
    if len(clients) > MOST:
        some = np.sort(np.random.default_rng(SEED).choice(len(clients), MOST, replace=False))
        clients, points = clients[some], points[some]
    flat, projection = (points.astype(float), "PCA") if len(points) < FEW else (umap(points, run), "UMAP")
    return SignatureMap(clients, rescale(flat), projection)


def umap(points: "np.typing.NDArray[np.float32]", run: Run) -> Numbers:
    """UMAP's projection of these points: [n, 2]."""
    from kinfed.relatedness.embeddings import project

    name = f"{title_of(run.method)} seed {run.seed}"
    log.info("drawing the signature map of %s, %d clients (UMAP)", name, len(points))
    neighbours = min(NEIGHBOURS, max(4, len(points) // 4))  # clusters of few clients would be drawn into one
    return project(torch.from_numpy(points), 2, neighbours, MIN_DIST, SEED).double().numpy()


def first_two(points: Numbers) -> Numbers:
    """The points in their first two principal directions."""
    middle = points - points.mean(0)
    u, s, _ = np.linalg.svd(middle, full_matrices=False)
    both: Numbers = np.pad(u * s, ((0, 0), (0, 2)))[:, :2]
    return both


def rescale(points: Numbers) -> Numbers:
    """The points turned to spread from left to right, both axes by the same factor, in the middle of 0..1."""
    turned = first_two(points)
    low, high = turned.min(0), turned.max(0)
    width = max(float((high - low).max()), 1e-9)
    found: Numbers = (turned - (low + high) / 2) / width + 0.5
    return found


def matrix_of(run: Run, order: Whole) -> Matrix | None:
    """The related-clients matrix of a run; None if its method has none."""
    arrays = run.arrays("relatedness")
    if arrays is None:
        return None
    rows = arrays["sets"] if "sets" in arrays else arrays["related"]
    whose = arrays.get("set_of", np.arange(len(rows))).astype(np.int64)
    edges = np.unique(np.linspace(0, len(whose), min(MATRIX_CELLS, len(whose)) + 1).astype(np.int64))
    own = np.arange(len(whose))
    before, after = (shrink(rows.astype(bool), whose, places, edges) for places in (own, order))
    measured = measure_pairs(run)
    if measured is None:
        return Matrix(before, after, None, None, "", order, edges)
    first, then = (average_blocks(measured[0], places, edges) for places in (own, order))
    return Matrix(before, after, first, then, measured[1], order, edges)


def place_cut(heights: Numbers, cut: float) -> float:
    """Where a cut is drawn: a merge at the cut is not made, so there it is half-way down to the last that is."""
    below = max((float(height) for height in heights if height < cut), default=0.0)
    return (below + cut) / 2 if cut in heights.tolist() else cut


def measure_pairs(run: Run) -> tuple[Numbers, str, float | None] | None:
    """Distances between clients ([clients, clients], NaN: not compared), what they are, and where they were cut.

    They are the heights at which the method merged two clients, else distances of signatures; None where a run has
    neither, or too many clients.
    """
    tree, seen = run.arrays("tree"), run.arrays("signatures")
    if run.count > ALL_PAIRS or run.count < 2:
        return None
    apart = np.full((run.count, run.count), np.nan)
    if tree is not None and len(tree["merges"]):
        from scipy.cluster.hierarchy import cophenet
        from scipy.spatial.distance import squareform

        members, cut = tree["members"].astype(np.int64), float(tree["height"])
        apart[np.ix_(members, members)] = squareform(cophenet(tree["merges"].astype(float)))
        heights = tree["merges"][:, 2].astype(float)
        return apart, "height of the merge", place_cut(heights, cut) if np.isfinite(cut) else None
    if seen is not None and len(seen["clients"]) > 1:
        from scipy.spatial.distance import cdist

        clients, points = seen["clients"].astype(np.int64), seen["points"].astype(float)
        apart[np.ix_(clients, clients)] = cdist(points, points)
        return apart, "distance of signatures", None
    return None


def average_blocks(apart: Numbers, order: Whole, edges: Whole) -> Numbers:
    """Mean distances of blocks of clients in this order, of pairs that were compared: [cells, cells]."""
    known = ~np.isnan(apart)
    both = []
    for matrix in (np.where(known, apart, 0.0), known.astype(float)):
        rows = np.add.reduceat(matrix[np.ix_(order, order)], edges[:-1], axis=0)
        both.append(np.add.reduceat(rows, edges[:-1], axis=1))
    total, pairs = both
    found: Numbers = np.where(pairs > 0, total / np.maximum(pairs, 1), np.nan)
    return found


def distances_of(run: Run) -> Distances | None:
    """The distances of all pairs of a run's clients; None where they are not known, or nothing relates clients."""
    measured = measure_pairs(run)
    if measured is None or (are_related := find_related(run)) is None:  # of many clients no matrix is made
        return None
    apart, measure, cut = measured
    pairs = np.triu(~np.isnan(apart), 1)
    near, far = apart[pairs & are_related], apart[pairs & ~are_related]
    both = np.concatenate([near, far])
    if not len(both):
        return None
    high = max(float(both.max()), cut or 0.0)
    edges = np.linspace(0, high if high > 0 else 1.0, DISTANCE_BINS + 1)
    related, others = (np.histogram(some, edges)[0].astype(np.int64) for some in (near, far))
    return Distances(measure, edges, related, others, cut)


def find_related(run: Run) -> "np.typing.NDArray[np.bool_] | None":
    """Which pairs of clients are related: [clients, clients]; None where nothing says so."""
    arrays = run.arrays("relatedness")
    if arrays is not None and "related" in arrays:
        return arrays["related"].astype(bool)
    return None if run.found is None else (run.found[:, None] == run.found) & (run.found >= 0)


def curves_of(run: Run, colours: Whole, most: int) -> ClusterCurves | None:
    """The curves of the largest clusters that these colours stand for; None where no client was scored."""
    history, found = run.history, []
    for colour in range(min(most, int(colours.max(initial=-1)) + 1)):
        members = np.flatnonzero((colours == colour) & [role in TRAINS for role in run.roles])
        scores = history.scores[:, members]
        known = ~np.isnan(scores)
        if known.any():
            means = np.where(known, scores, 0).sum(1) / np.maximum(known.sum(1), 1)
            found.append((colour, len(members), np.where(known.any(1), means, np.nan)))
    if not found:
        return None
    some = np.unique(np.linspace(0, len(history.rounds) - 1, min(ROUNDS, len(history.rounds))).astype(int))
    means = np.stack([each[2][some] for each in found])
    return ClusterCurves(history.rounds[some], [each[0] for each in found], [each[1] for each in found], means)


def confusion_of(run: Run) -> Confusion | None:
    """The confusion matrices of a run; None where it wrote none."""
    arrays = run.arrays("confusion")
    if arrays is None:
        return None
    return Confusion(arrays["clusters"].astype(np.int64), arrays["counts"].astype(np.int64))


def shrink(rows: "np.typing.NDArray[np.bool_]", whose: Whole, order: Whole, edges: Whole) -> Numbers:
    """The share of related pairs in each block of clients, in this order; client i's neighbours are rows[whose[i]].

    A block's rows are a mixture of the different sets of neighbours, so no client-by-client matrix is made.
    """
    starts, sizes = edges[:-1], np.diff(edges)
    shares = np.add.reduceat(rows[:, order].astype(np.float32), starts, axis=1) / sizes
    block = np.repeat(np.arange(len(sizes)), sizes)
    mixture = np.zeros((len(sizes), len(rows)), dtype=np.float32)
    np.add.at(mixture, (block, whose[order]), 1)
    found: Numbers = (mixture / sizes[:, None]) @ shares
    return found


def tree_of(run: Run, colours: Whole) -> Tree | None:
    """The dendrogram by which a method found these clusters ([clients]); None if it merges no clients."""
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
    crossing = x[pairs[:, 0]] > x[pairs[:, 1]]
    one, other = np.where(crossing[:, None], pairs[:, ::-1], pairs).T
    height = place_cut(merges[:, 2], cut) if np.isfinite(cut) else None
    leaf = members[order]
    return Tree(
        leaf, colours[leaf], x[one], x[other], low[one], low[other], merges[:, 2], cluster[len(members) :], height
    )


def labels_of(run: Run, order: Whole) -> Labels | None:
    """The label shares of a run's clients in this order; None where the run wrote none."""
    if run.labels is None:
        return None
    held = order[run.labels.sum(1)[order] > 0]
    counts = run.labels[held].astype(float)
    shares = counts / counts.sum(1, keepdims=True)
    edges = np.unique(np.linspace(0, len(held), min(LABEL_CELLS, len(held)) + 1).astype(np.int64))
    means = np.add.reduceat(shares, edges[:-1]) / np.diff(edges)[:, None]
    return Labels(means.T, held, edges)
