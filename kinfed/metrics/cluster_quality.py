"""Quality of found clusters: ARI, NMI and purity, FLIS' clustering error (methods 5.8), REPA's uniformity (5.9)."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinfed.clustering.kmeans import Part, kmeans

DRAWS = 100  # random assignments that the reference of uniformity is the mean of


def agreement(found: Tensor, true: Tensor) -> dict[str, float]:
    """ARI, NMI, purity, and the number of clusters found, over clients that have both labels (>= 0)."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score  # seconds: not for every command
    from sklearn.metrics.cluster import contingency_matrix

    both = (found >= 0) & (true >= 0)
    ours, theirs = found[both].cpu().numpy(), true[both].cpu().numpy()
    table = contingency_matrix(ours, theirs)  # [found, true]
    return {
        "ari": float(adjusted_rand_score(theirs, ours)),
        "nmi": float(normalized_mutual_info_score(theirs, ours)),
        "purity": float(table.max(1).sum() / table.sum()),
        "clusters": float(len(table)),
    }


def pair_quality(related: Tensor, true_clusters: Tensor) -> tuple[float, float]:
    """Precision and recall of the related pairs of different clients."""
    others = ~torch.eye(len(true_clusters), dtype=torch.bool, device=true_clusters.device)
    true, found = (true_clusters[:, None] == true_clusters) & others, related.bool() & others
    hits = float((true & found).sum())
    return hits / max(1.0, float(found.sum())), hits / max(1.0, float(true.sum()))


def belong_together(counts: Tensor) -> Tensor:
    """FLIS' truth, bool [n, n]: j belongs with i if they share at least half (rounded up) of the labels of i."""
    held = (counts > 0).double()
    return held @ held.T >= (held.sum(1, keepdim=True) / 2).ceil()


def clustering_error(together: Tensor, truth: Tensor) -> tuple[float, float]:
    """FP + FN of the clusters around each client, and (TP + TN)/n with the client itself as a hit; means over clients.

    together[i, j]: j is in the cluster of i; truth[i, j]: it should be. [n, n] both.
    """
    wrong = (together.bool() ^ truth).fill_diagonal_(False).sum(1).double()
    return float(wrong.mean()), float(1 - wrong.mean() / len(truth))


def cosines(vectors: Tensor) -> Tensor:
    """Cosine similarities of rows: [n, n]; a row of zeros has similarity 0 with all."""
    units = normalize(vectors if vectors.is_floating_point() else vectors.double(), dim=1)
    return (units @ units.T).double()


def uniformity(vectors: Tensor, clusters: Tensor) -> float | None:
    """The mean over clusters of the mean cosine of their pairs; clusters of one are left out, None if all are.

    vectors: [n, d]; clusters: [n]. The cosines of all pairs of a cluster add up to |Σ v|² - Σ |v|².
    """
    units = normalize(vectors.double(), dim=1)
    member = (clusters == clusters.unique()[:, None]).double()
    size, itself = member.sum(1), member @ units.square().sum(1)
    pairs = size * (size - 1)  # ordered ones: each unordered pair twice, as in the sum
    means = ((member @ units).square().sum(1) - itself)[pairs > 0] / pairs[pairs > 0]
    return float(means.mean()) if len(means) else None


def uniformity_of_chance(counts: Tensor, clusters: Tensor, seed: int, draws: int = DRAWS) -> float | None:
    """The mean uniformity of random clusters of the same sizes."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = (clusters[torch.randperm(len(clusters), generator=generator)] for _ in range(draws))
    found = [value for some in shuffled if (value := uniformity(counts, some)) is not None]
    return sum(found) / len(found) if found else None


def uniformity_of_labels(counts: Tensor, clusters: Tensor) -> float | None:
    """The uniformity of k-means on the label shares themselves (normalised counts), with as many clusters as found."""
    points = normalize(counts.double(), dim=1)
    parts = [Part(some, torch.ones(len(some), dtype=torch.bool)) for some in points.split(1024)]
    centres = kmeans(parts, len(clusters.unique()), torch.tensor(0)).points
    return uniformity(counts, torch.cdist(points, centres).argmin(1))
