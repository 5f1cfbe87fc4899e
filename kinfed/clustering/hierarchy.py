"""Agglomerative clustering: distances, a tree of merges and where it is cut; clusters of a relatedness graph."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinfed.checks import at_least
from kinfed.clustering.micro_clusters import cut_into, link, refuse_too_many
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.clustering.silhouettes import WORTH, fit_to_most, silhouette
from kinfed.errors import ConfigError

Metric = Literal["l1", "l2", "cosine"]
Linkage = Literal["single", "complete", "average", "ward"]
Tree = npt.NDArray[np.float64]  # scipy's: one merge in a row, its height in column 2


@dataclass(frozen=True)
class Dendrogram:
    """The merges by which members became clusters, and the height from which on none was made."""

    members: Tensor  # [m] ids of the clients that were merged
    merges: Tensor  # [m - 1, 4] scipy's: two clusters, the height of their merge, how many are in it
    height: float

    @staticmethod
    def none(device: torch.device) -> "Dendrogram":
        """Nobody was merged."""
        nobody = torch.zeros(0, dtype=torch.long, device=device)
        return Dendrogram(nobody, torch.zeros(0, 4, dtype=torch.double, device=device), 0.0)

    @staticmethod
    def of(members: Tensor, apart: Tensor, linkage: Linkage, height: float) -> "Dendrogram":
        """The tree of members that are so far apart ([m, m]), cut at this height."""
        found = torch.from_numpy(merges(apart, linkage)).to(members.device)
        return Dendrogram(members.clone(), found, height)  # a copy: checkpoints hold no tensor twice

    def clusters(self) -> Tensor:
        """The cluster of each member: [m]."""
        return cut(self.merges.cpu().numpy(), self.height).to(self.members.device)


@dataclass(frozen=True)
class Hierarchy:
    """Groups of points where the tree of merges is cut; "average" is the mean of all pairs (UPGMA).

    A merge at the threshold is not made. Instead of it `quantile` says which share of the merges is made; without
    either it is searched among quantiles of the merge heights by the silhouette of the distances, which looks at no
    test samples.
    """

    metric: Metric = "l2"  # between two updates
    linkage: Linkage = "ward"  # between two clusters; ward goes with l2 alone
    threshold: float | None = None  # T; none: searched
    quantile: float | None = None  # of the merge heights, as T: it does not hang on how long updates are
    candidates: int = 100  # thresholds tried in a search

    def __post_init__(self) -> None:
        if self.linkage == "ward" and self.metric != "l2":
            raise ConfigError(f"linkage 'ward' needs metric 'l2', got '{self.metric}'")
        at_least(1, candidates=self.candidates)
        at_least(0, threshold=self.threshold or 0.0)
        if self.quantile is not None and (self.threshold is not None or not 0 <= self.quantile <= 1):
            raise ConfigError(f"quantile must be in [0, 1] and without a threshold, got {self.quantile}")

    def merge(self, members: Tensor, points: Tensor, doubted: int = 0) -> Dendrogram:
        """The tree of these members, each one of the points, and where it is cut; so many of them may lie."""
        apart = distances(points, points, self.metric)
        tree = merges(apart, self.linkage)
        height = self.threshold if self.quantile is None else height_at(tree, self.quantile)
        height = search_height(apart, self.linkage, self.candidates, doubted) if height is None else height
        return Dendrogram(members.clone(), torch.from_numpy(tree).to(points.device), height)

    def predict(self, unseen: Tensor, points: Tensor, clusters: Tensor) -> Tensor:
        """The cluster of these points that each unseen point would merge with first: [s]."""
        return nearest_cluster(unseen, points, clusters, self.metric, self.linkage)


def distances(points: Tensor, others: Tensor, metric: Metric) -> Tensor:
    """Distances from each point to each other one: [a, b]."""
    if metric == "cosine":
        return 1 - normalize(points, dim=1) @ normalize(others, dim=1).T
    exact = "donot_use_mm_for_euclid_dist"  # the fast way puts equal points apart
    return torch.cdist(points, others, p={"l1": 1.0, "l2": 2.0}[metric], compute_mode=exact)


def merges(apart: Tensor, linkage: Linkage) -> Tree:
    """The tree of merges of points that are so far apart ([m, m])."""
    from scipy.cluster.hierarchy import linkage as link
    from scipy.spatial.distance import squareform

    if len(apart) < 2:
        return np.zeros((0, 4))
    both = apart.cpu().double().numpy()
    tree: Tree = link(squareform(((both + both.T) / 2).clip(min=0), checks=False), method=linkage)
    return tree


def cut(tree: Tree, height: float) -> Tensor:
    """The clusters that are left when merging stops before this height: [m]. A merge at the height is not made."""
    from scipy.cluster.hierarchy import fcluster

    if not len(tree):
        return torch.zeros(1, dtype=torch.long)
    return torch.from_numpy(fcluster(tree, np.nextafter(height, -np.inf), criterion="distance")).long() - 1


def height_at(tree: Tree, quantile: float) -> float:
    """The height below which this share of the merges lies; above all of them for 1."""
    heights = [*np.sort(tree[:, 2]), np.inf]
    return float(heights[math.ceil(quantile * len(tree))])


def bipartition(points: Tensor) -> tuple[Tensor, Tensor]:
    """Who is in the second of two parts, [m] bool, and the largest cosine similarity across them (complete linkage)."""
    from scipy.cluster.hierarchy import to_tree

    apart = distances(points, points, "cosine")
    second = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    second[to_tree(merges(apart, "complete")).get_right().pre_order()] = True
    return second, 1 - apart[second][:, ~second].min()


def search_height(apart: Tensor, linkage: Linkage, candidates: int, doubted: int = 0) -> float:
    """The best height to cut the tree of points that are so far apart ([m, m]); the doubted hide no clusters."""

    def measure(some: Tensor) -> Tensor:
        return apart[some][:, some]

    def fit(some: Tensor) -> Tensor:
        own = measure(some)
        tree = merges(own, linkage)
        return cut(tree, best_height(tree, own, candidates))

    some, clusters = fit_to_most(len(apart), doubted, fit, measure)
    heights = merges(measure(some), linkage)[:, 2]
    made = len(some) - len(clusters.unique())  # merges, the lowest
    if len(some) == len(apart):
        return float(heights[made]) if made < len(heights) else math.inf
    return step_above(merges(apart, linkage), heights[:made].max(initial=0.0))


def step_above(tree: Tree, height: float) -> float:
    """Half-way from this height to the next merge."""
    return (height + float(tree[tree[:, 2] > height, 2].min(initial=np.inf))) / 2


def best_height(tree: Tree, apart: Tensor, candidates: int) -> float:
    """The cut with the largest silhouette among quantiles of the merge heights; above all merges if none is good.

    It looks at distances alone: no test samples, no further training.
    """
    best, chosen = WORTH, float("inf")
    if len(tree) < 2:
        return chosen
    for height in np.unique(np.quantile(tree[:, 2], np.linspace(0, 1, candidates), method="higher")):
        score = silhouette(apart, cut(tree, float(height)))
        best, chosen = (score, float(height)) if score > best else (best, chosen)
    return chosen


def nearest_cluster(unseen: Tensor, points: Tensor, clusters: Tensor, metric: Metric, linkage: Linkage) -> Tensor:
    """The cluster that each unseen point would merge with first: [s]."""
    names = clusters.unique()
    apart = distances(unseen, points, metric)
    ways = []
    for name in names:
        near = apart[:, clusters == name]
        if linkage == "ward":  # √(2n/(n+1)) · distance to the cluster's mean
            mean, n = points[clusters == name].mean(0, keepdim=True), near.shape[1]
            ways.append((2 * n / (n + 1)) ** 0.5 * distances(unseen, mean, "l2")[:, 0])
        else:
            ways.append({"single": near.amin(1), "complete": near.amax(1), "average": near.mean(1)}[linkage])
    nearest: Tensor = names[torch.stack(ways, 1).argmin(1)]
    return nearest


MOST_ROWS = 8192  # different rows of a graph that Ward's linkage compares
COLUMNS = 4096  # columns


def components(related: Tensor) -> Tensor:
    """The connected component of each client: [clients]."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    return torch.from_numpy(connected_components(csr_matrix(related.cpu().numpy()), directed=False)[1]).long()


def ward(related: Tensor, clusters: int) -> Tensor:
    """At most `clusters` clusters of clients whose rows of the graph are alike (Ward's linkage, Euclidean)."""
    from scipy.cluster.hierarchy import fcluster, linkage

    refuse_too_many(clusters, len(related))
    if len(related) == 1:
        return torch.zeros(1, dtype=torch.long)
    tree = linkage(related.cpu().float().numpy(), method="ward")
    return torch.from_numpy(fcluster(tree, clusters, criterion="maxclust")).long() - 1


def cut_distances(apart: Tensor, clusters: int, linkage: Linkage) -> Tensor:
    """So many clusters of clients that are so far apart ([m, m]): [m]."""
    refuse_too_many(clusters, len(apart))
    tree = merges(apart, linkage)
    return cut_into(tree, clusters)


def ward_of_neighbours(neighbours: NeighbourSets, clusters: int) -> Tensor:
    """The same from the different rows of the graph alone: [clients]."""
    clients = len(neighbours.whose)
    refuse_too_many(clusters, clients)
    if len(neighbours.rows) > MOST_ROWS:
        raise ConfigError(
            f"Ward's linkage compares up to {MOST_ROWS} different sets of neighbours, got {len(neighbours.rows)} of "
            f"{clients} clients: set clusters = 0"
        )
    counts = neighbours.sizes().double()
    weight = (2 * counts[:, None] * counts / (counts[:, None] + counts)).sqrt()
    return cut_into(link(weight * row_distances(neighbours.rows), counts, "ward"), clusters)[neighbours.whose.cpu()]


def row_distances(rows: Tensor) -> Tensor:
    """Euclidean distances between the rows of a bool matrix: [rows, rows]."""
    common = torch.zeros(len(rows), len(rows), dtype=torch.double, device=rows.device)
    for part in rows.split(COLUMNS, 1):
        common += part.float() @ part.float().T
    size = common.diagonal()
    return (size[:, None] + size - 2 * common).sqrt()


def average_linkage(distances: Tensor, height: float) -> Tensor:
    """Groups whose members are nearer than `height` to each other on average (UPGMA): [clients]."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if len(distances) == 1:
        return torch.zeros(1, dtype=torch.long)
    apart = distances.cpu().double().numpy()
    tree = linkage(squareform((apart + apart.T) / 2, checks=False), method="average")
    return torch.from_numpy(fcluster(tree, height, criterion="distance")).long() - 1
