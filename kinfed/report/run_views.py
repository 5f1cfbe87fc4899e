"""What a method found out about the clients of one run, as numbers to draw: map, matrix, dendrogram, labels."""

import logging
from dataclasses import dataclass

import numpy as np
import torch

from kinfed.report.cluster_order import leaves
from kinfed.runs.reader import Numbers, Run, Whole

log = logging.getLogger("kinfed")
NEIGHBOURS, MIN_DIST, SEED = 15, 0.3, 42
FEW = NEIGHBOURS  # below this all are UMAP's neighbours of each other, and it knows no more than distances say
MOST = 2000  # clients on a map
MATRIX_CELLS = 80  # a side at most; each stands for several clients where there are more
LABEL_CELLS = 240  # columns at most, likewise


@dataclass(frozen=True)
class SignatureMap:
    """Signatures in the plane."""

    clients: Whole  # [n]
    points: Numbers  # [n, 2] in 0..1, mostly wider than high
    projection: str


@dataclass(frozen=True)
class Matrix:
    """Shares of related pairs in blocks of clients, 0 to 1."""

    before: Numbers  # [cells, cells]
    after: Numbers
    order: Whole  # [clients] of `after`
    edges: Whole  # cell c is of the places edges[c] to edges[c + 1] - 1 in the order


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
    cut: float | None  # None: nothing was cut, all are one cluster


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
    flat, projection = (points.astype(float), "PCA") if len(points) < FEW else (umap(points), "UMAP")
    return SignatureMap(clients, rescale(flat), projection)


def umap(points: "np.typing.NDArray[np.float32]") -> Numbers:
    """UMAP's projection of these points: [n, 2]."""
    from kinfed.relatedness.embeddings import project

    log.info("drawing the signature map of %d clients (UMAP)", len(points))
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
    return Matrix(before, after, order, edges)


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
    height = cut if np.isfinite(cut) else None
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
