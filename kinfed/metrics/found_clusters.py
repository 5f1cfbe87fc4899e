"""What a method found out about its clients, measured: clusters, graph and signatures.

ARI, NMI, purity, FLIS' clustering error (methods 5.8), REPA's uniformity (5.9).
"""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinfed.capabilities import FindsClusters, RelatesClients
from kinfed.clustering.kmeans import Part, kmeans
from kinfed.federation import Federation
from kinfed.keys import base_key
from kinfed.method import Method
from kinfed.metrics.dry_runs import compute_signatures, correlation, dry_run

State = TypeVar("State")
MANY = 10_000  # clients of which all pairs are compared; of more no clustering error is measured


@dataclass(frozen=True)
class FoundClusters:
    """Clusters and neighbours of the clients that a method assigned."""

    clusters: Tensor  # [clients]; -1: not assigned, not there yet, or a look-alike
    neighbours: Tensor | None  # [G, clients] bool: each different set of neighbours once, if the method relates clients
    whose: Tensor | None  # [clients]: which of these sets is a client's
    members: Tensor  # ids of the clients that train and are assigned
    labels: Tensor | None  # [members, classes] how many samples of each label they train on, where that is known
    true_clusters: Tensor | None = None  # [clients], where there is a ground truth

    @classmethod
    def by(cls, method: Method[State], state: State, fed: Federation) -> "FoundClusters | None":
        """What a method found by now; None if it looks for no clusters."""
        clusters = current_clusters(method, state, fed)
        if clusters is None:
            return None
        related = method.neighbours(state) if isinstance(method, RelatesClients) and fed.count <= MANY else None
        neighbours, whose = (related.rows.cpu(), related.whose.cpu()) if related else (None, None)
        members = fed.clients.cpu()[clusters[fed.clients.cpu()] >= 0]
        held = fed.labels_held[members] if fed.sees_samples and fed.population.has_classes else None
        return cls(clusters, neighbours, whose, members, held, fed.true_clusters)

    @property
    def own(self) -> Tensor:
        """The members' clusters."""
        return self.clusters[self.members]

    @property
    def together(self) -> Tensor:
        """Who is in whose cluster, bool [members, members]."""
        if self.neighbours is None or self.whose is None:
            return self.own[:, None] == self.own
        return self.neighbours[:, self.members][self.whose[self.members]]

    def is_like(self, other: "FoundClusters") -> bool:
        """Whether nothing is different from what was found before."""
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in parts)

    def metrics(self) -> dict[str, float]:
        """How the clusters fit the ground truth, and the members' labels."""
        metrics: dict[str, float] = {}
        if self.true_clusters is not None and bool(((self.clusters >= 0) & (self.true_clusters >= 0)).any()):
            metrics |= agreement(self.clusters, self.true_clusters)
        else:
            metrics["clusters"] = float(len(self.clusters[self.clusters >= 0].unique()))
        if self.labels is None:
            return metrics
        if 1 < len(self.members) <= MANY:
            error, right = clustering_error(self.together, belong_together(self.labels))
            metrics |= {"clustering_error": error, "clustering_accuracy": right}
        even = uniformity(self.labels, self.own)
        return metrics if even is None else metrics | {"uniformity": even}

    def references(self, seed: int) -> dict[str, float]:
        """The uniformity of chance, and of clustering the labels themselves; nothing if all clusters are of one."""
        if self.labels is None or uniformity(self.labels, self.own) is None:
            return {}
        by_name = {
            "uniformity_random": uniformity_of_chance(self.labels, self.own, base_key(seed, "uniformity") % 2**63),
            "uniformity_labels": uniformity_of_labels(self.labels, self.own),
        }
        return {name: value for name, value in by_name.items() if value is not None}


def current_clusters(method: Method[State], state: State, fed: Federation) -> Tensor | None:
    """The clusters found for the real clients that are there ([clients], -1 for all others), where there are any."""
    if not isinstance(method, FindsClusters):
        return None
    here = torch.zeros(fed.count, dtype=torch.bool).index_fill(0, fed.real.cpu(), True)
    return torch.where(here, method.cluster_assignment(state).cpu(), -1)


def correlations(method: Method[State], state: State, fed: Federation, drift: Tensor | None) -> dict[str, float]:
    """How the similarity of signatures correlates with that of clients' labels, and of their images."""
    with dry_run(fed):
        vectors = compute_signatures(method, state, fed)
    sound = vectors.isfinite().all(1)
    clients, seen = fed.clients[sound].cpu(), cosines(vectors[sound])
    seed = base_key(fed.seed, "bootstrap", fed.round) % 2**63
    metrics = correlation("labels", seen, cosines(fed.labels_held[clients]), seed)
    return metrics if drift is None else metrics | correlation("drift", seen, drift[clients[:, None], clients], seed)


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
