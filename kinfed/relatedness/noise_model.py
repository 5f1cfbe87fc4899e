"""A model of clusters for points of measured noise: coordinates, a mixture, and how many clusters there are.

In the coordinates the sampling noise of every client is known: variance 1 per sample. The parts of one client differ by
sampling alone, so their differences, pooled over clients, measure the noise covariance. Of the directions in which
clients differ, those are kept in which noise alone would not: the edge of the spectrum of a ratio of two covariances
(Wachter 1980; Silverstein 1985; Johnstone 2001).

Client m of cluster c is drawn from N(centre_c, spread + noise_c / n_m): the spread between clients of a cluster is the
same in all clusters and learnt, the noise of one sample is measured (extreme deconvolution, Bovy et al. 2011). The
number of clusters first minimises BIC. BIC alone cuts clients along a line into dozens: two clusters then merge while
their clients vary so much along the axis between them that they may as well be one, or while a merge lowers BIC.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from math import log, pi

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kinfed.clustering.hierarchy import Tree, cut_distances
from kinfed.signatures import Signatures

LEAST_DIRECTIONS = 16  # that are looked at, where the signature has as many
CLIENTS_PER_DIRECTION = 3  # for every further one: with fewer clients the kept directions fit noise
NOISIEST = 4.0  # times the median noise: what one client may add to the pooled noise, lest a lying one spoils it
FARTHEST = 100.0  # times the median distance from the centre: how far a client counts at most, for the same reason
TRACY_WIDOM = 2.02  # 99 % quantile of the largest eigenvalue of noise, in units of its scale
CANDIDATES = (*range(1, 11), 12, 14, 17, 20, 24, 29, 35, 40)  # clusters; merging finds the numbers between
PATIENCE = 3  # candidates without a lower BIC before the search ends
STEPS = 50  # of EM, at most
SEARCH_STEPS = 12  # of EM for a candidate: separate clusters settle in a few
MEASURED = 10.0  # degrees of freedom that the pooled noise counts in a cluster's own: a small cluster measures badly
COMMON = 4.0  # clients that the common spread counts in that of two clusters, for the same reason
SEPARATE = 0.05  # share of the variance within two clusters above which they merge; a uniform distribution has 0.25
FEW = 8.0  # clients: two clusters of so many in all merge at half that share


@dataclass(frozen=True)
class PooledParts:
    """Clients' parts taken together."""

    means: Tensor  # [M, d]
    sizes: Tensor  # [M] samples
    noise: Tensor  # [M, parts, d]: each row has the covariance of one sample
    freedom: Tensor  # [M] degrees of freedom of these rows

    @staticmethod
    def of(known: Signatures) -> "PooledParts":
        """Of signatures that are the means of parts and their numbers of samples; computed in double."""
        parts, counts = known.centroids.cpu().double(), known.shares.cpu().double()
        sizes = counts.sum(1)
        means = (parts * counts[..., None]).sum(1) / sizes[:, None]
        noise = counts.sqrt()[..., None] * (parts - means[:, None])
        return PooledParts(means, sizes, noise, ((counts > 0).sum(1) - 1).clamp(min=0).double())

    def limit_noise(self) -> Tensor:
        """Noise rows in which no client has more than a few times the median variance: [M, parts, d]."""
        variance = self.noise.square().sum((1, 2)) / self.freedom.clamp(min=1)
        measured = variance[self.freedom > 0]
        usual = measured.median() if len(measured) else variance.new_ones(())
        weight = (NOISIEST * usual / variance.clamp(min=1e-30)).clamp(max=1)
        return self.noise * weight.sqrt()[:, None, None]


@dataclass(frozen=True)
class Coordinates:
    """The map from mean embeddings to points whose noise is the identity over the number of samples."""

    centre: Tensor  # [d]
    basis: Tensor  # [d, q]; in the first `kept` directions clients differ by more than noise
    kept: int
    farthest: float  # distance from the centre, in units of the noise
    p_value: float = 1.0  # how often clients that are alike differ as much in all directions together

    def transform(self, pooled: PooledParts) -> Tensor:
        """One point for each client: [M, q]; those beyond the farthest distance are moved in to it."""
        points = (pooled.means - self.centre) @ self.basis
        distance = points.norm(dim=1) * pooled.sizes.sqrt()
        moved: Tensor = points * (self.farthest / distance.clamp(min=self.farthest))[:, None]
        return moved


def fit_coordinates(pooled: PooledParts) -> Coordinates:
    """Coordinates for these clients."""
    rows, centre = pooled.limit_noise().flatten(0, 1), find_centre(pooled)
    scaled = limit_distance((pooled.means - centre) * pooled.sizes.sqrt()[:, None])
    clients, freedom = len(scaled), max(float(pooled.freedom.sum()), 1.0)
    width = min(scaled.shape[1], max(LEAST_DIRECTIONS, clients // CLIENTS_PER_DIRECTION), max(1, int(freedom / 2)))
    subspace = find_leading(torch.cat([scaled, rows]), width)
    projected = rows @ subspace
    whiten = subspace @ invert_root(projected.mT @ projected / freedom)
    points = scaled @ whiten
    values, turn = torch.linalg.eigh(points.mT @ points / clients)
    kept = int((values > edge_of_noise(len(values), clients, freedom)).sum())
    farthest = FARTHEST * max(float(points.norm(dim=1).median()), 1.0)
    p_value = find_p_value(float(values.sum()) * clients / freedom, len(values), clients - 1, freedom)
    return Coordinates(centre, whiten @ turn.flip(1), kept, farthest, p_value)


def find_centre(pooled: PooledParts) -> Tensor:
    """The mean over all samples, after far clients are moved in towards the median: [d]."""
    median, root = pooled.means.median(0).values, pooled.sizes.sqrt()[:, None]
    return median + (root * limit_distance((pooled.means - median) * root)).sum(0) / pooled.sizes.sum()


def limit_distance(points: Tensor) -> Tensor:
    """Points moved in to the farthest distance from the origin: [M, d]."""
    distance: Tensor = points.norm(dim=1)
    return points * (FARTHEST * distance.median() / distance.clamp(min=1e-30)).clamp(max=1)[:, None]


def find_leading(rows: Tensor, width: int) -> Tensor:
    """The leading principal directions of rows [n, d]: [d, width]."""
    wide = len(rows) < rows.shape[1]
    ordered: Tensor = torch.linalg.svd(rows, False)[2].mT if wide else torch.linalg.eigh(rows.mT @ rows)[1].flip(1)
    return ordered[:, :width]


def invert_root(covariance: Tensor) -> Tensor:
    """A matrix A with Aᵀ · covariance · A = 1; directions without variance count as having very little."""
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = vectors / values.clamp(min=max(1e-6 * float(values.max()), 1e-30)).sqrt()
    return root


def edge_of_noise(width: int, clients: int, freedom: float) -> float:
    """The largest variance over clients that noise alone has in 99 % of cases, where the noise is estimated too."""
    one, two = width / clients, min(width / freedom, 0.9)
    edge = ((1 + (1 - (1 - one) * (1 - two)) ** 0.5) / (1 - two)) ** 2
    root, inverse = clients**0.5 + width**0.5, clients**-0.5 + width**-0.5
    return float(edge * (1 + TRACY_WIDOM * inverse ** (1 / 3) / root))  # Johnstone 2001: σ / μ


def find_p_value(trace: float, width: int, between: float, within: float) -> float:
    """The p-value of a trace of the variance between clients over that within them, of so many degrees of freedom.

    Clients that each differ a little in many directions pass no edge in any of them, but have more in all together
    (Hotelling and Lawley's trace; McKeon 1974 has its distribution).
    """
    from scipy.special import fdtrc

    if between < 1 or within < width + 4:
        return 1.0
    numbers, rest = width * between, within - width
    ratio = (within + between - width - 1) * (within - 1) / ((rest - 3) * rest)
    freedom = 4 + (numbers + 2) / (ratio - 1)
    scale = numbers * (freedom - 2) / (freedom * (rest - 1))
    return float(fdtrc(numbers, freedom, trace / scale))


def group_alike(points: Tensor, sizes: Tensor, freedom: float, level: float) -> Tensor:
    """Few clients [M, q] of these sizes [M] in groups, within which they differ by no more than noise: [M].

    Those two groups are merged first that most likely are of one source, until no p-value reaches the level.
    """
    groups = [[client] for client in range(len(points))]
    while len(groups) > 1:
        pairs = list(combinations(groups, 2))
        p_values = [compare_members(points, sizes, freedom, one + other) for one, other in pairs]
        if max(p_values) < level:
            break
        one, other = pairs[p_values.index(max(p_values))]
        groups = [one + other, *(group for group in groups if group not in (one, other))]
    labels = torch.zeros(len(points), dtype=torch.long)
    for name, members in enumerate(sorted(groups)):
        labels[members] = name
    return labels


def group_apart(points: Tensor, sizes: Tensor, times: float) -> Tensor | None:
    """Few clients [M, q] of these sizes [M] in groups of two at least that stand apart: [M]; None where none do.

    The nearest clients of two groups are at least so many times as far from each other, squared, as any of one group.
    """
    apart = torch.cdist(points, points).square() / (1 / sizes[:, None] + 1 / sizes)
    found, least = None, times
    for groups in range(2, len(points) // 2 + 1):
        labels = cut_distances(apart, groups, "complete")
        same = labels[:, None] == labels
        ratio = float(apart[~same].min() / apart[same].max())
        if ratio >= least and int(labels.bincount().min()) > 1:
            found, least = labels, ratio
    return found


def compare_members(points: Tensor, sizes: Tensor, freedom: float, members: list[int]) -> float:
    """The p-value of the differences between these clients: how often noise alone makes as much of them."""
    points, sizes = points[members], sizes[members]
    apart = points - sizes @ points / sizes.sum()
    return find_p_value(float(sizes @ apart.square().sum(1)) / freedom, points.shape[1], len(members) - 1, freedom)


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
