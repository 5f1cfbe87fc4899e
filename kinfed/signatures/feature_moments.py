"""A client as moments of its features: overall and by label (FLUX), and with numbers, in units of their noise (Auto).

For a label a client sends the mean features of its samples that have it. For a number it sends the mean of the number
times features, beside the mean features of all samples. A number has a unit, and features have another, so that the
server compares none of these moments as they are: it subtracts the usual number and the usual features, which leaves
covariances, and divides each by the noise that is measured between the parts of clients' samples.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kinfed.client import Client
from kinfed.keys import base_key, fold, normal
from kinfed.models import Model
from kinfed.params import Params
from kinfed.signatures.signature import Signatures
from kinfed.targets import as_columns, fill_unknown, is_known, mark_labels

ABSENT = -1.0  # both moments of a label that a client has not
LEVEL = 2.0  # how much the mean of a number counts, where its covariance with a feature counts 1
NOISIEST = 100.0  # times the usual noise: what one client counts at most, lest a lying one hides a difference
FAR = 100.0  # times the noise of labels: features whose noise is less, or more, by as much are in a unit of their own
OFFSET = 10.0  # times the noise of features about the usual ones: where that about zero is more, these are subtracted
LEAST_NOISE = 1e-6  # of the deviation between clients: with less, noise is no unit


def find_moments(client: Client, model: Model, params: Params, dimensions: int) -> Tensor:
    """Client: mean and standard deviation of its embedded samples, of all and of each label: [1 + labels, 2, d]."""
    number = total = squares = torch.zeros((), dtype=torch.double, device=client.key.device)
    for batch in client.train.in_order():
        x = project(model.features(params, batch.x), dimensions).where(batch.mask[:, None], 0.0)
        labels = mark_labels(batch.y, batch.mask, model.classes)
        member = torch.cat([batch.mask[:, None], labels], 1).double().T
        number, total = number + member.sum(1, keepdim=True), total + member @ x
        squares = squares + member @ x.square()
    mean = total / number.clamp(min=1)
    spread = (squares / number.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
    return torch.stack([mean, spread], 1).where(number[:, None] > 0, ABSENT).float()


def project(features: Tensor, dimensions: int) -> Tensor:
    """Features [b, e] along so many orthonormal directions, at most e, drawn once for all: [b, d]; double."""
    size = features.shape[1]
    key = torch.tensor(base_key("directions of features"), device=features.device)
    drawn = normal(fold(key, torch.arange(2 * size * size, device=key.device)[: 2 * size * dimensions]))
    directions: Tensor = torch.linalg.qr(drawn.view(size, -1))[0]
    return features.double() @ directions


def scale_moments(moments: Tensor, limits: Tensor) -> Tensor:
    """Each block of moments (one label, one moment) within its limits, 0 to 1: [clients, 1 + labels, 2, d]."""
    least, largest = limits
    scaled: Tensor = (moments - least) / (largest - least).where(largest > least, 1.0)
    return scaled


def find_limits(moments: Tensor) -> Tensor:
    """The least and the largest number of each block of moments: [2, 1 + labels, 2, 1]."""
    return torch.stack([moments.amin((0, 3)), moments.amax((0, 3))])[..., None]


def share_targets(y: Tensor, groups: int, bounded: bool = False) -> Tensor:
    """What a sample counts in each group of targets: [b, groups].

    One in that of its label; equal shares where it has none, or a sequence. Numbers count as what they are, so that
    means of groups are moments, and one in the last group; there alone where a sample has no number, or where what it
    counts must be `bounded`.
    """
    if y.is_floating_point():
        numbers = as_columns(fill_unknown(y)).double() * (0.0 if bounded else is_known(y)[:, None])
        return torch.cat([numbers, torch.ones_like(numbers[:, :1])], 1)
    equal = torch.full((len(y), groups), 1 / groups, dtype=torch.double, device=y.device)
    if y.dim() > 1:
        return equal
    return one_hot(y.clamp(min=0), groups).double().where(is_known(y)[:, None], equal)


def standardise_moments(known: Signatures, like: Signatures, width: int) -> Signatures:
    """Features, and covariances of numbers with features, in units of their noise in `like`; double.

    Signatures have `width` columns for each number and as many for all samples, the first of which has no feature.
    """
    usual = like.of((like.shares.sum(1) > 0) & like.centroids.isfinite().all(2).all(1))
    if not len(usual):
        return known
    centre = pool_parts(usual.centroids.double(), usual.shares).median(0).values.view(-1, width)
    one, other = (centre_moments(each.centroids.double(), centre) for each in (known, usual))
    weights = torch.ones_like(one[0, 0])
    weights[width - 1 :: width] = LEVEL
    return Signatures(one * weights / find_units(other, usual.shares), known.shares)


def balance_features(known: Signatures, like: Signatures, width: int) -> Signatures:
    """Signatures by label whose features are near zero, and in a unit near that of labels, as they are in `like`.

    Signatures have `width` columns for each label, the first of which is its share. Directions are looked for where
    signatures vary most, so that all others are hidden by features far from zero, which vary with their labels' shares,
    and features in a small unit by the shares themselves. The former are taken about the usual features, the latter in
    units of their noise. All have one unit, since samples of some size, such as pixels, are comparable. Where both
    suit, as of images, nothing changes.
    """
    usual = like.of((like.shares.sum(1) > 0) & like.centroids.isfinite().all(2).all(1))
    if not len(usual):
        return known
    centre = pool_parts(split_labels(usual, width).sum(2), usual.shares).median(0).values
    centre[0] = 0.0  # shares stay
    noise, about = (sum_feature_noise(each, width) for each in (usual, centre_features(usual, centre)))
    if noise > OFFSET * about > LEAST_NOISE * noise:
        known, noise = centre_features(known, centre), about
    if 1 / FAR <= noise <= FAR or not noise:
        return known
    by_label = split_labels(known, width)
    return Signatures(torch.cat([by_label[..., :1], by_label[..., 1:] / noise], 3).flatten(2), known.shares)


def split_labels(known: Signatures, width: int) -> Tensor:
    """Signatures by label, `width` columns of each: [M, parts, labels, width]; double."""
    by_label: Tensor = known.centroids.double().unflatten(2, (-1, width))
    return by_label


def centre_features(known: Signatures, centre: Tensor) -> Signatures:
    """Signatures by label about these features [width], the first of which, for the share, is 0."""
    by_label = split_labels(known, len(centre))
    return Signatures((by_label - by_label[..., :1] * centre).flatten(2), known.shares)


def sum_feature_noise(known: Signatures, width: int) -> float:
    """The noise of all features of one sample of each label together."""
    variance = pool_variance(known.centroids.double(), known.shares).view(-1, width)
    return float(variance[:, 1:].sum().sqrt())


def centre_moments(moments: Tensor, centre: Tensor) -> Tensor:
    """Moments [M, parts, groups * width] about the numbers and features of `centre` [groups, width].

    Mean features come first, then for each number its mean and its covariances: [M, parts, groups * width - 1].
    """
    by_group = moments.unflatten(2, centre.shape)
    features = by_group[:, :, -1:]
    numbers = by_group[:, :, :-1] - centre[:-1, :1] * features
    covariances = numbers[..., 1:] - numbers[..., :1] * centre[-1, 1:]
    return torch.cat([features[:, :, 0, 1:], torch.cat([numbers[..., :1], covariances], 3).flatten(2)], 2)


def find_units(moments: Tensor, counts: Tensor) -> Tensor:
    """The noise of one sample in each column of moments [M, parts, d]; where there is none, how clients differ: [d]."""
    means, unit = pool_parts(moments, counts), pool_variance(moments, counts).sqrt()
    apart = limit_mean((means - means.median(0).values).abs())
    unit = unit.where(unit > LEAST_NOISE * apart, apart)
    return unit.where(unit > 0, 1.0)


def pool_variance(moments: Tensor, counts: Tensor) -> Tensor:
    """The variance of one sample in each column of moments [M, parts, d], between the parts of clients: [d]."""
    noise = (counts.double()[..., None] * (moments - pool_parts(moments, counts)[:, None]).square()).sum(1)
    return limit_mean(noise / ((counts > 0).sum(1) - 1).clamp(min=1)[:, None])


def limit_mean(sizes: Tensor) -> Tensor:
    """The mean over clients of sizes [M, d], of which none counts more than so many times the usual one: [d]."""
    usual = sizes.where(sizes > 0, torch.nan).nanmedian(0).values.nan_to_num(0.0)
    return sizes.minimum(NOISIEST * usual).mean(0)


def pool_parts(moments: Tensor, counts: Tensor) -> Tensor:
    """The moments of all samples of each client: [M, d]."""
    weights = counts.double()[..., None]
    pooled: Tensor = (moments * weights).sum(1) / weights.sum(1)
    return pooled
