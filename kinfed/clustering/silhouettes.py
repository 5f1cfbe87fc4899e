"""How clear clusters are, by distances alone; and whether a few points keep clusters of the others from being found."""

from collections.abc import Callable

import torch
from torch import Tensor

WORTH = 0.1  # a silhouette below this is what clients without clusters show too
CLEAR = 0.4  # of the silhouette of all points' clusters: as clear those of the others must be, to leave some out
Fit = Callable[[Tensor], Tensor]  # which points [n] -> the cluster of each [n]
Measure = Callable[[Tensor], Tensor]  # which points [n] -> their distances [n, n]


def silhouette(apart: Tensor, clusters: Tensor) -> float:
    """The silhouette of clusters of points with these distances ([m, m]), up to 1; 0 for one, or clusters of one."""
    from sklearn.metrics import silhouette_score

    if not 1 < len(clusters.unique()) < len(clusters):
        return 0.0
    square = ((apart + apart.T) / 2).cpu().double().fill_diagonal_(0).clamp(min=0)
    return float(silhouette_score(square.numpy(), clusters.cpu().numpy(), metric="precomputed"))


def find_large(clusters: Tensor, doubted: int) -> Tensor:
    """The points of all clusters ([m]) but the smallest, which have at most the doubted together."""
    names, sizes = clusters.unique(return_counts=True)
    order = sizes.argsort(stable=True)
    small = names[order][sizes[order].cumsum(0) <= doubted]
    return (~torch.isin(clusters, small)).nonzero()[:, 0]


def fit_to_most(count: int, doubted: int, fit: Fit, measure: Measure) -> tuple[Tensor, Tensor]:
    """The points that clusters are fitted to, and the cluster of each: [n], [n].

    All, or all but at most the doubted, where these are clusters and the others have clearer ones without them.
    """
    clusters = fit(torch.arange(count))
    everyone = torch.arange(count, device=clusters.device)
    others = find_large(clusters, doubted)
    if len(others) == count:
        return everyone, clusters
    apart, found = measure(others), fit(others)
    has_clusters = len(found[find_large(found, doubted)].unique()) > 1  # and not another few alone
    least = max(WORTH, silhouette(apart, clusters[others]), CLEAR * silhouette(measure(everyone), clusters))
    return (others, found) if has_clusters and silhouette(apart, found) > least else (everyone, clusters)
