"""A mixture of clusters for points of known noise, and how many clusters there are.

Client m of cluster c is drawn from N(centre_c, spread + noise_c / n_m). The spread between clients of a cluster is the
same in all clusters and learnt; the noise of one sample is measured (extreme deconvolution, Bovy et al. 2011). The
number of clusters first minimises BIC. Then two clusters merge while the clients of either vary so much along the axis
between them that they may as well be one, or while one cluster fewer lowers BIC. BIC alone cuts clients along a line
into dozens.
"""

from dataclasses import dataclass, replace
from math import log, pi

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kinfed.clustering.hierarchy import Tree

CANDIDATES = (*range(1, 11), 12, 14, 17, 20, 24, 29, 35, 40)  # clusters; merging finds the numbers between
PATIENCE = 3  # candidates without a lower BIC before the search ends
STEPS = 50  # of EM, at most
SEARCH_STEPS = 12  # of EM for a candidate: separate clusters settle in a few
MEASURED = 10.0  # degrees of freedom that the pooled noise counts in a cluster's own: a small cluster measures badly
COMMON = 4.0  # clients that the common spread counts in that of two clusters, for the same reason
SEPARATE = 0.05  # share of the variance within two clusters above which they merge; a uniform distribution has 0.25
FEW = 8.0  # clients: two clusters of so many in all merge at half that share


@dataclass(frozen=True)
class Observed:
    """What the mixture is fitted on."""

    points: Tensor  # [M, r]
    noise: Tensor  # [M]: variance of a point, in units of the pooled noise of one sample
    moments: Tensor  # [M, r, r]: sums of squares and products of its noise rows
    freedom: Tensor  # [M]: degrees of freedom of these


@dataclass(frozen=True)
class Mixture:
    """Clusters that were fitted, and the probability of each for each client."""

    weights: Tensor  # [C]
    centres: Tensor  # [C, r]
    noise: Tensor  # [C, r, r]: covariance of one sample
    spread: Tensor  # [r, r]: covariance of clients within a cluster, without noise
    probability: Tensor  # [M, C]
    bic: float

    def __len__(self) -> int:
        return len(self.weights)

    def log_density(self, points: Tensor, noise: Tensor) -> Tensor:
        """Logarithm of weight times density of each cluster at points [M, r] with this noise [M]: [M, C]."""
        axes, along = find_axes(self.noise, self.spread)
        variance = along[:, None] + noise[:, None]
        square = (((points - self.centres[:, None]) @ axes).square() / variance + variance.log()).sum(2)
        volume = torch.linalg.slogdet(self.noise)[1] + points.shape[1] * log(2 * pi)
        density: Tensor = self.weights.clamp(min=1e-12).log() - (square.mT + volume) / 2
        return density

    def within_share(self) -> float:
        """The share of the variance between clients, noise left out, that is within clusters."""
        apart = self.centres - self.weights @ self.centres
        between, within = float((self.weights @ apart.square()).sum()), float(self.spread.trace())
        return within / max(within + between, 1e-30)


def find_axes(noise: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Axes [C, r, r] along which a cluster's noise is 1 and its spread is diagonal, and the spread there: [C, r]."""
    inverse = torch.linalg.inv(torch.linalg.cholesky(noise))
    values, turn = torch.linalg.eigh(inverse @ spread @ inverse.mT)
    return inverse.mT @ turn, values.clamp(min=0)


def choose_mixture(seen: Observed, most: int) -> Mixture:
    """The mixture with as many clusters as are separate, at most so many."""
    mixture = search_clusters(seen, most)
    while len(mixture) > 1:
        shares = compare_clusters(seen, mixture)
        if float(shares.max()) >= SEPARATE:
            mixture = merge_clusters(seen, mixture, *divmod(int(shares.argmax()), len(mixture)))
            continue
        fewer = merge_clusters(seen, mixture, *find_nearest(seen, mixture))
        if fewer.bic >= mixture.bic:
            break
        mixture = fewer
    return mixture


def search_clusters(seen: Observed, most: int) -> Mixture:
    """The mixture of least BIC among candidates that start from the cuts of a Ward tree."""
    tree, found, best = link_points(seen), list[Mixture](), 0
    for clusters in (number for number in CANDIDATES if number <= max(1, min(most, len(seen.points) // 2))):
        found.append(fit_labels(seen, cut_tree(tree, clusters), SEARCH_STEPS))
        best = min(range(len(found)), key=lambda i: found[i].bic)
        if len(found) - 1 - best >= PATIENCE:
            break
    return run_em(seen, found[best].probability, found[best].spread)


def fit_labels(seen: Observed, labels: Tensor, steps: int = STEPS, free: bool = True) -> Mixture:
    """The mixture near these clusters of clients (labels [M], 0 to C - 1), or of just these where none is free."""
    probability = one_hot(labels).double()
    values, turn = torch.linalg.eigh(pool_within(seen, probability))
    beyond = (turn * (values - 1).clamp(min=0.01)) @ turn.mT  # what varies within clusters and is not noise
    return run_em(seen, probability, beyond * seen.noise.median(), steps, free)


def fit_ward(seen: Observed, clusters: int) -> Mixture:
    """The mixture of just so many of Ward's clusters."""
    return fit_labels(seen, cut_tree(link_points(seen), clusters), free=False)


def link_points(seen: Observed) -> Tree:
    """Ward's tree in the metric of what varies within many small clusters (Art, Gnanadesikan and Kettenring 1982)."""
    from scipy.cluster.hierarchy import linkage

    usual = seen.points / seen.noise.median().sqrt()
    if len(usual) < 2:
        return np.zeros((0, 4))
    tree: Tree = linkage(usual.numpy(), "ward")
    many = max(2, min(len(usual) // 3, CANDIDATES[-1]))
    for _ in range(2):
        values, turn = torch.linalg.eigh(pool_within(seen, one_hot(cut_tree(tree, many)).double()))
        tree = linkage((usual @ (turn / values.clamp(min=1).sqrt())).numpy(), "ward")
    return tree


def cut_tree(tree: Tree, clusters: int) -> Tensor:
    """The cluster of each point: [M]."""
    from scipy.cluster.hierarchy import fcluster

    labels = fcluster(tree, clusters, "maxclust") if len(tree) else np.ones(1, dtype=np.int64)
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1])


def pool_within(seen: Observed, probability: Tensor) -> Tensor:
    """Covariance of clients about the means of their clusters, in units of their own noise: [r, r]."""
    total = (probability.mT @ (1 / seen.noise)).clamp(min=1e-12)
    centres = probability.mT @ (seen.points / seen.noise[:, None]) / total[:, None]
    apart = (seen.points - probability @ centres) / seen.noise.sqrt()[:, None]
    return apart.mT @ apart / max(len(apart) - probability.shape[1], 1)


def run_em(seen: Observed, probability: Tensor, spread: Tensor, steps: int = STEPS, free: bool = True) -> Mixture:
    """The mixture of most likelihood near these probabilities [M, C]; clusters that lose all clients are left out.

    Where clients are not free to change clusters, the probabilities stay.
    """
    before = -torch.inf
    for _ in range(steps):
        mixture = maximise(seen, probability[:, probability.sum(0) > 0.5], spread)
        density = mixture.log_density(seen.points, seen.noise)
        likelihood = float(density.logsumexp(1).sum())
        probability, spread = density.softmax(1) if free else probability, mixture.spread
        if likelihood - before < 0.02 + 1e-5 * len(density):
            break
        before = likelihood
    clients, (clusters, width) = len(density), mixture.centres.shape
    few = clients / max(clients - clusters - width, clients / 2)  # the spread fits those clients that it is learnt from
    cost = (clusters * (width + 1) - 1) * log(clients) * few
    return replace(mixture, probability=probability, bic=cost - 2 * likelihood)


def maximise(seen: Observed, probability: Tensor, spread: Tensor) -> Mixture:
    """The M step: centres weighted by precision, measured noise, and the spread that noise leaves over."""
    noise = pool_noise(seen, probability)
    axes, along = find_axes(noise, spread)
    variance, points, certain = along[:, None] + seen.noise[:, None], seen.points @ axes, probability.mT[..., None]
    precision = certain / variance  # [C, M, r]
    centres = (precision * points).sum(1) / precision.sum(1).clamp(min=1e-12)
    shrink = along[:, None] / variance
    apart = shrink * (points - centres[:, None]) * certain.sqrt()
    left = apart.mT @ apart + torch.diag_embed((certain * along[:, None] * (1 - shrink)).sum(1))
    back = torch.linalg.inv(axes)
    spread = (back.mT @ left @ back).sum(0) / len(probability)
    return Mixture(
        probability.mean(0), (centres[:, None] @ back)[:, 0], noise, (spread + spread.mT) / 2, probability, 0.0
    )


def pool_noise(seen: Observed, probability: Tensor) -> Tensor:
    """The measured noise of one sample in each cluster, shrunk towards that of all: [C, r, r]."""
    total = torch.einsum("mc,mij->cij", probability, seen.moments)
    count = (probability.mT @ seen.freedom)[:, None, None]
    return (total + MEASURED * torch.eye(total.shape[1], dtype=total.dtype)) / (count + MEASURED)


def find_nearest(seen: Observed, mixture: Mixture) -> tuple[int, int]:
    """The two clusters whose centres are nearest in units of a usual client's spread and noise."""
    total = mixture.spread + torch.einsum("c,cij->ij", mixture.weights, mixture.noise) * seen.noise.median()
    centres = torch.linalg.solve_triangular(torch.linalg.cholesky(total), mixture.centres.mT, upper=False).mT
    apart = torch.cdist(centres, centres).fill_diagonal_(torch.inf)
    return divmod(int(apart.argmin()), len(mixture))


def merge_clusters(seen: Observed, mixture: Mixture, one: int, other: int) -> Mixture:
    """The mixture refitted with two of its clusters as one."""
    probability = mixture.probability.clone()
    probability[:, other] += probability[:, one]
    rest = torch.arange(len(mixture)) != one
    return run_em(seen, probability[:, rest], mixture.spread)


def compare_clusters(seen: Observed, mixture: Mixture) -> Tensor:
    """The share of the variance within two clusters along the axis between them: [C, C], 0 from the diagonal up."""
    clients, clusters = mixture.probability.shape
    unbiased = replace(mixture, spread=mixture.spread * clients / max(clients - clusters, 1))
    shares = torch.zeros(clusters, clusters, dtype=torch.double)
    for pair in torch.tril_indices(clusters, clusters, -1).T.tolist():
        shares[pair[0], pair[1]] = compare_pair(seen, unbiased, pair)
    return shares


def compare_pair(seen: Observed, mixture: Mixture, pair: list[int]) -> float:
    """The share within two clusters, less what the noise of the estimate explains; more for few clients."""
    labels = mixture.probability.argmax(1)
    among = torch.isin(labels, torch.tensor(pair))
    labels, noise, members = labels[among], seen.noise[among], int(among.sum())
    between = mixture.centres[pair[0]] - mixture.centres[pair[1]]
    axis = torch.linalg.solve(mixture.spread + mixture.noise[pair].mean(0) * seen.noise.median(), between)
    axis = axis / axis.norm().clamp(min=1e-30)
    explained = (axis @ mixture.noise @ axis)[labels] * noise
    square = ((seen.points[among] - mixture.centres[labels]) @ axis).square() - explained
    own, chance = (float((part / noise).sum() / (1 / noise).sum().clamp(min=1e-30)) for part in (square, explained))
    within = (COMMON * float(axis @ mixture.spread @ axis) + members * own) / (COMMON + max(members - 2, 0))
    within = max(0.0, within - 2 * chance * (2 / (COMMON + members)) ** 0.5)
    share: float = within / max(within + float(between @ axis) ** 2 / 4, 1e-30)
    return share * (members + FEW) / max(members, 1)
