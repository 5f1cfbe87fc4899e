"""REPA's client signature: an encoder that clients learn together, and statistics of the samples it embeds.

No labels are needed, and the order of the samples does not matter. As in torch, n - 1 is the divisor of `var`, `std`
and `covariance`; for a single sample they are 0.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn

from kinfed.client import Client, Task
from kinfed.clustering.kmeans import Part
from kinfed.errors import ConfigError, DataError
from kinfed.federation import Federation, run_fedavg
from kinfed.models import Model, SupervisedAutoEncoder, encoder_of, encoder_shape, encoder_shapes, repa_ae, repa_series
from kinfed.params import Params, each_leaf
from kinfed.signatures.pretraining import from_file
from kinfed.training import LocalTraining

Statistic = Literal[
    "mean", "quartiles", "std", "var", "min", "max", "skewness", "kurtosis", "covariance", "correlation"
]  # fmt: skip
Parts = Sequence[Part]
log = logging.getLogger("kinfed")
QUARTILES = (0.25, 0.5, 0.75)
ROUNDING = 1e-9  # of a mean in double: less than any two numbers in single precision differ by


def summarise(parts: Parts, statistics: Sequence[Statistic]) -> Tensor:
    """These statistics of all samples that count, one after the other: [numbers]. Sums are made in double."""
    return torch.cat([STATISTICS[name](parts) for name in statistics]).float()


def mean(parts: Parts) -> Tensor:
    """The mean of each dimension: [d]."""
    total = torch.zeros_like(parts[0].x[0], dtype=torch.double)
    for x, mask in parts:  # one after the other: a part of padding adds zeros and changes no bit
        total = total + torch.where(mask[:, None], x, 0.0).double().sum(0)
    return total / _count(parts).clamp(min=1)


def quartiles(parts: Parts) -> Tensor:
    """The three quartiles of each dimension, linear between samples: [3d]."""
    x, mask = (torch.cat(columns) for columns in zip(*parts, strict=True))
    ordered = torch.where(mask[:, None], x, torch.inf).sort(0).values.double()  # padding comes last
    last, found = (_count(parts) - 1).clamp(min=0), []
    for share in QUARTILES:
        position = share * last.double()
        below = position.floor().long()
        low, high = (ordered.index_select(0, row[None])[0] for row in (below, torch.minimum(below + 1, last)))
        found.append(low + (high - low) * (position - below))
    return torch.cat(found)


def variance(parts: Parts) -> Tensor:
    """The variance of each dimension: [d]."""
    centre = mean(parts)
    total = torch.zeros_like(centre)
    for x, mask in parts:
        total = total + ((x - centre) * mask[:, None]).square().sum(0)
    return total / (_count(parts) - 1).clamp(min=1)


def deviation(parts: Parts) -> Tensor:
    """The standard deviation of each dimension: [d]."""
    return variance(parts).sqrt()


def least(parts: Parts) -> Tensor:
    """The least value of each dimension: [d]."""
    return torch.stack([torch.where(mask[:, None], x, torch.inf).amin(0) for x, mask in parts]).amin(0).double()


def most(parts: Parts) -> Tensor:
    """The largest value of each dimension: [d]."""
    return torch.stack([torch.where(mask[:, None], x, -torch.inf).amax(0) for x, mask in parts]).amax(0).double()


def skewness(parts: Parts) -> Tensor:
    """The skewness of each dimension, without a correction for few samples: [d]; 0 for what is constant."""
    return _standard_moment(parts, 3)


def kurtosis(parts: Parts) -> Tensor:
    """The excess kurtosis of each dimension, without a correction for few samples: [d]; 0 for what is constant."""
    moment = _standard_moment(parts, 4)
    return torch.where(moment == 0, 0.0, moment - 3)


def covariance(parts: Parts) -> Tensor:
    """The upper triangle of the covariance matrix, with its diagonal: [d (d + 1) / 2]."""
    matrix = _covariances(parts)
    return _upper(matrix, offset=0)


def correlation(parts: Parts) -> Tensor:
    """The upper triangle of the correlation matrix, without its diagonal: [d (d - 1) / 2]; 0 for what is constant."""
    matrix = _covariances(parts)
    spread = matrix.diagonal().clamp(min=0).sqrt()
    scale = spread[:, None] * spread
    related = torch.where(scale == 0, 0.0, matrix / scale)
    return _upper(related, offset=1)


STATISTICS: dict[Statistic, Callable[[Parts], Tensor]] = {
    "mean": mean,
    "quartiles": quartiles,
    "std": deviation,
    "var": variance,
    "min": least,
    "max": most,
    "skewness": skewness,
    "kurtosis": kurtosis,
    "covariance": covariance,
    "correlation": correlation,
}


def _count(parts: Parts) -> Tensor:
    """How many samples count."""
    return torch.stack([mask.sum() for _, mask in parts]).sum()


def _upper(matrix: Tensor, offset: int) -> Tensor:
    row, column = torch.triu_indices(len(matrix), len(matrix), offset, device=matrix.device)
    return matrix[row, column]


def _standard_moment(parts: Parts, power: int) -> Tensor:
    """The mean of so high a power of each dimension, made standard: [d]; 0 for what is constant."""
    centre, samples = mean(parts), _count(parts).clamp(min=1)
    spread = (variance(parts) * (samples - 1) / samples).sqrt()
    is_constant = spread <= ROUNDING * centre.abs()
    total = torch.zeros_like(centre)
    for x, mask in parts:
        total = total + (torch.where(is_constant, 0.0, (x - centre) / spread) * mask[:, None]).pow(power).sum(0)
    return total / samples


def _covariances(parts: Parts) -> Tensor:
    centre = mean(parts)
    total = torch.zeros_like(centre)[:, None] * centre
    for x, mask in parts:
        apart = (x - centre) * mask[:, None]
        total = total + apart.T @ apart
    return total / (_count(parts) - 1).clamp(min=1)


@dataclass(frozen=True)
class EmbeddingStatistics:
    """Which statistics a client sends, and how the clients come to the encoder."""

    statistics: tuple[Statistic, ...] = ("mean", "quartiles")  # of its embedded samples, what a client sends
    reconstruction: float = 0.1  # λ, its share of the encoder's loss; 0: CLF, 1: AE, between: SAE
    encoder: str = ""  # a .safetensors file with its weights; empty: learnt by the training clients
    encoder_rounds: int = 30  # of the encoder's own federated training
    training: LocalTraining = LocalTraining(epochs=2, batch_size=32, lr=1e-3, optimiser="adam")  # of the encoder

    def __post_init__(self) -> None:
        unknown = [name for name in self.statistics if name not in STATISTICS]
        if unknown or not self.statistics:
            raise ConfigError(f"statistics must be some of {', '.join(STATISTICS)}, got {self.statistics}")
        if self.encoder_rounds < 0 or not 0 <= self.reconstruction <= 1:
            got = f"{self.encoder_rounds} and {self.reconstruction}"
            raise ConfigError(f"wanted encoder_rounds >= 0 and reconstruction in [0, 1], got {got}")

    def network(self, model: Model, shape: tuple[int, ...]) -> SupervisedAutoEncoder:
        """The encoder and its heads, for samples as encoders take them and the outputs of this model."""
        is_image = len(shape) == 3 and min(shape[1:]) >= 4 and shape[1] % 2 == shape[2] % 2 == 0
        build = repa_ae if is_image else repa_series
        return SupervisedAutoEncoder(
            partial(cast("Callable[..., nn.Module]", build), shape, model.classes, self.reconstruction),
            model.seed, model.mean, model.std, model.classes, self.reconstruction, model.task,
        )  # fmt: skip

    def networks(self, model: Model, shape: tuple[int, ...]) -> tuple[Params, ...]:
        """Client: the networks whose weights it may be sent, for samples of this shape."""
        return tuple(self.network(model, each).init() for each in encoder_shapes(shape))

    def check_targets(self, y: Tensor) -> None:
        """Raise ConfigError where the encoder would learn from targets that are sequences."""
        if y.dim() == 2 and not y.is_floating_point() and self.reconstruction < 1:
            raise ConfigError("REPA's encoder learns one target a sample, got sequences: set reconstruction = 1")

    def learn(self, model: Model, task: Task, fed: Federation) -> Params:
        """The encoder's weights: FedAvg of the whole network among the training clients, or a file's."""
        self.check_targets(fed.y)
        origin = f"of {self.encoder}" if self.encoder else "that clients learn"
        log.info("signatures: %s of samples embedded by an encoder %s", ", ".join(self.statistics), origin)
        whole = self.network(model, encoder_shape(fed.x)).init()
        if self.encoder:
            return from_file(Path(self.encoder), encoder_of(whole), fed.device)
        whole = each_leaf(lambda w: w.to(fed.device), whole)
        return encoder_of(run_fedavg(task, whole, self.encoder_rounds, fed))

    def check(self) -> None:
        """Raises DataError where the file with the encoder's weights is not here."""
        if self.encoder and not Path(self.encoder).is_file():
            raise DataError(f"no encoder at {self.encoder}: give an existing .safetensors file, or leave it out")

    def train(self, model: Model, client: Client, params: Params) -> Params:
        """The weights of encoder and heads after some epochs on the client's samples."""
        return self.training(client, params, self.network(model, encoder_shape(client.train.x)).gradient)[0]

    def compute(self, model: Model, client: Client, encoder: Params) -> Tensor:
        """Statistics of the client's embedded samples: [numbers]. It needs neither labels nor training."""
        network = self.network(model, encoder_shape(client.train.x))
        parts = [Part(network.embed(encoder, batch.x), batch.mask) for batch in client.train.in_order()]
        return summarise(parts, self.statistics)
