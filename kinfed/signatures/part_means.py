"""A client as the mean embeddings of a few random parts of its samples: the parts differ by sampling noise alone.

So the server can tell how much two clients differ beyond the noise of their own samples (relatedness `calibrated`). No
sample leaves the client. Labels are not needed; with them, clients also differ whose labels mean something else.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, one_hot, pad

from kinfed.checks import within
from kinfed.client import Batch, Client, Samples, Task
from kinfed.clustering.kmeans import Centroids
from kinfed.errors import ConfigError
from kinfed.federation import Federation, run_fedavg
from kinfed.keys import fold, normal
from kinfed.models import (
    TOKENS,
    AutoEncoder,
    Model,
    count_tokens,
    encoder_of,
    encoder_shape,
    encoder_shapes,
    find_autoencoder,
    make_autoencoder,
)
from kinfed.params import Params
from kinfed.privacy import UNPROTECTED, Protection, SignaturePrivacy
from kinfed.signatures.feature_moments import balance_features, project, share_targets, standardise_moments
from kinfed.signatures.pretraining import Pretraining
from kinfed.signatures.signature import Signature, Signatures

Embedding = Literal["auto", "autoencoder", "pca", "random", "model"]
LEAST_RANDOM = 8  # random features, of samples with fewer numbers, too: one or two may miss where clients differ
ENOUGH = 2000  # server's samples that an auto-encoder is worth training on
WIDEST = 4096  # numbers of a sample; larger images are averaged down to so many
AT_ONCE = 4096  # samples
log = logging.getLogger("kinfed")


@dataclass(frozen=True)
class PartMeans(Signature):
    """Mean embeddings of random parts of a client's samples, by an encoder that stays as the server made it."""

    parts: int = 4  # of a client's samples, as even as can be
    embedding: Embedding = "auto"  # auto: an auto-encoder, pca or random features, by the samples that the server has
    model_rounds: int = 3  # embedding = "model": rounds of FedAvg, after which the common model embeds samples
    labels: bool = False  # also the means by label and the labels' shares, or moments with numbers; else one mean
    latent: int = 128  # e, numbers of an embedded sample, at most as many as it has (random features: or 8)
    autoencoder: str = "auto"  # by the samples' shape; or package.module:function, (shape, latent) -> torch.nn.Module
    seed: int = 0  # of the auto-encoder's first weights, and of random features
    pretraining: Pretraining = field(default_factory=Pretraining)  # of the auto-encoder; its samples are those of pca
    protection: Protection = UNPROTECTED  # by the section [privacy.signature]
    model: Model | None = None  # whose last layer's inputs are the embedding; the method's own

    def __post_init__(self) -> None:
        if self.embedding not in get_args(Embedding):
            raise ConfigError(f"embedding must be one of {', '.join(get_args(Embedding))}, got '{self.embedding}'")
        within(2, 100, parts=self.parts)
        within(0, 10**6, model_rounds=self.model_rounds)
        within(1, 10**6, latent=self.latent)
        within(0, 2**64 - 1, seed=self.seed)

    def size(self, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
        return self.parts, classes * (1 + self.width(shape)) if self.labels else self.width(shape)

    def width(self, shape: tuple[int, ...]) -> int:
        """Numbers of an embedded sample."""
        if self.embedding == "model":
            return min(self.latent, self.common_model().features_width())
        fewest = LEAST_RANDOM if self.embedding in ("auto", "random") else 1
        return min(self.latent, max(prod(shape), fewest))

    def for_model(self, model: Model) -> "PartMeans":
        return replace(self, model=model) if self.embedding == "model" else self

    def common_model(self) -> Model:
        """The model that embeds samples; ConfigError where the method has given none."""
        if self.model is None:
            raise ConfigError("signature.embedding = 'model' is for flt: this method compares clients before it trains")
        return self.model

    def encoder(self, fed: Federation) -> Params:
        shape, public = tuple(fed.x.shape[1:]), fed.x[fed.population.public.to(fed.device)]
        kind = self.choose(shape, public)
        log.info("signatures: mean embeddings by %s", NAMES[kind])
        if kind == "model":
            first = {name: w.to(fed.device) for name, w in self.common_model().init().items()}
            return run_fedavg(find_train_task(fed), first, self.model_rounds, fed)
        if kind == "random":
            return self.random_seed(fed.device)
        if kind == "pca":
            return fit_principal_components(self.pretraining.load(public), self.width(shape))
        return encoder_of(self.pretraining(self.network(encoder_shape(fed.x), self.width(shape)), public))

    def choose(self, shape: tuple[int, ...], public: Tensor) -> Embedding:
        """The embedding that the samples of the server allow, unless one is set."""
        if self.embedding != "auto":
            return self.embedding
        if self.pretraining.source.endswith(".safetensors"):
            return "autoencoder"
        if self.pretraining.source == "public" and not len(public):
            return "random"
        is_named = self.autoencoder != "auto"
        many = is_named or self.pretraining.source != "public" or len(public) >= ENOUGH
        if many and self.has_network(shape):
            return "autoencoder"
        return "pca" if self.width(shape) <= prod(shape) else "random"  # so few numbers need no fewer

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        if self.embedding == "model":
            return ()  # it is the method's own
        width, known = self.width(shape), [self.random_seed(torch.device("cpu"))]
        for each in encoder_shapes(shape):
            numbers = flatten(torch.zeros(1, *each)).shape[1]
            known.append({"mean": torch.zeros(numbers), "directions": torch.zeros(numbers, width)})
            if self.has_network(each):
                known.append(encoder_of(self.network(each, width).init()))
        return tuple(known)

    def check(self, x: Tensor) -> None:
        shape = encoder_shape(x)
        if self.autoencoder != "auto" and self.has_network(shape):
            width = self.width(tuple(x.shape[1:]))
            self.network(shape, width).check(x, width)

    def needs_server_samples(self) -> bool:
        return self.pretraining.source == "public" and self.embedding in ("pca", "autoencoder")

    def needs_shares(self) -> bool:
        return True

    def has_parts(self) -> bool:
        return True

    def protect(self, protection: SignaturePrivacy) -> "PartMeans":
        return replace(self, protection=protection)

    def network(self, shape: tuple[int, ...], width: int = 0) -> AutoEncoder:
        """The auto-encoder for samples of this shape, embedded as so many numbers; 0: as many as they allow."""
        return make_autoencoder(self.autoencoder, shape, width or self.width(shape), self.seed)

    def has_network(self, shape: tuple[int, ...]) -> bool:
        """Whether the auto-encoder takes samples of this shape; ConfigError where there is none of its name."""
        if self.autoencoder != "auto":
            find_autoencoder(self.autoencoder)
        try:
            self.network(shape)
        except ConfigError:
            return False
        return True

    def random_seed(self, device: torch.device) -> Params:
        """What random features are drawn from; clients are sent no weights."""
        return {"seed": torch.tensor([float(self.seed % 2**24)], device=device)}

    def embed(self, encoder: Params, x: Tensor) -> Tensor:
        """Samples [b, ...] embedded: [b, e]."""
        if self.embedding == "model":
            return project(self.common_model().features(encoder, x), self.width(tuple(x.shape[1:]))).float()
        if "directions" in encoder:
            return (flatten(x) - encoder["mean"]) @ encoder["directions"]
        if set(encoder) == {"seed"}:
            centred = 4 * flatten(x) - 2 if x.dtype == torch.uint8 else flatten(x)
            return (centred @ draw_features(encoder["seed"], centred.shape[1], self.width(tuple(x.shape[1:])))).relu()
        return self.network(encoder_shape(x), self.width(tuple(x.shape[1:]))).embed(encoder, x)

    def compute(self, client: Client, encoder: Params, classes: int) -> Centroids:
        """Client: the mean embedding of each part [parts, d], and in place of shares its number of samples [parts]."""
        counts, sums = torch.zeros(self.parts, dtype=torch.double, device=client.key.device), torch.zeros(())
        # copies tell of no further noise; but one sample replaced may not change which others count
        samples = client.train if self.protection.is_private else client.train.drop_copies()
        used = (samples.size // max(1, self.protection.min_samples)).clamp(1, self.parts)
        for batch, part in split_batches(samples, client.key, used):
            belongs = (one_hot(part, self.parts) * batch.mask[:, None]).double()
            features, cells = self.embed(encoder, batch.x), belongs
            if self.labels:
                weights = share_targets(batch.y, classes, bounded=self.protection.is_private)
                cells = (belongs[:, :, None] * weights[:, None]).flatten(1)
                features = pad(features, (1, 0), value=1.0)
            features = self.protection.clip_embeddings(features).double()
            sums = sums + cells.mT @ features.where(batch.mask[:, None], 0.0)  # padding adds zeros: no bit changes
            counts = counts + belongs.sum(0)
        return self.protection.release_means(
            sums.reshape(self.parts, -1) / counts.clamp(min=1)[:, None], counts, client
        )

    def drop_labels(self, known: Signatures, shape: tuple[int, ...], numbers: bool = False) -> Signatures:
        """What these signatures would be without labels, or without numbers: the mean embedding of each part."""
        if not self.labels:
            return known
        by_label = known.centroids.unflatten(2, (-1, 1 + self.width(shape)))
        return Signatures((by_label[:, :, -1] if numbers else by_label.sum(2))[..., 1:], known.shares)

    def compare_by(
        self, known: Signatures, like: Signatures, fed: Federation, model: Model
    ) -> tuple[Signatures, Signatures]:
        """What is compared: samples alone, and samples with targets; numbers in units of their noise in `like`."""
        shape, numbers = tuple(fed.x.shape[1:]), not model.task.has_classes()
        return self.drop_labels(known, shape, numbers), self.scale_numbers(known, like, model)

    def scale_numbers(self, known: Signatures, like: Signatures, model: Model) -> Signatures:
        if not self.labels:
            return known
        rule = balance_features if model.task.has_classes() else standardise_moments
        return rule(known, like, known.centroids.shape[2] // model.target_groups)


NAMES = {
    "autoencoder": "an auto-encoder",
    "pca": "principal components of the server's samples",
    "random": "random features",
    "model": "the common model",
}


def find_train_task(fed: Federation) -> Task:
    """The method's task that trains the model it is sent."""
    task: Task = getattr(fed.method, "train")  # noqa: B009 - every method of signatures has one, no protocol says so
    return task


def draw_features(seed: Tensor, numbers: int, width: int) -> Tensor:
    """Weights of random features: [numbers, width]; the same on every device."""
    key = fold(seed.long()[0], torch.arange(2 * numbers * width, device=seed.device))
    drawn: Tensor = normal(key).view(numbers, width) / (numbers * width) ** 0.5
    return drawn.float()


def flatten(x: Tensor) -> Tensor:
    """Samples as vectors, pixels scaled to 0..1, tokens as frequencies; large images are averaged down: [b, d]."""
    if x.dtype in TOKENS:
        return count_tokens(x)
    x = x.float() if x.is_floating_point() else x.float() / 255
    if x.dim() == 4 and x[0].numel() > WIDEST:
        x = adaptive_avg_pool2d(x, max(1, int((WIDEST / x.shape[1]) ** 0.5)))
    return x.flatten(1)


def fit_principal_components(x: Tensor, width: int) -> Params:
    """The mean of samples and their leading principal directions: [d] and [d, width]."""
    blocks = x.split(AT_ONCE)
    mean = torch.stack([flatten(block).double().sum(0) for block in blocks]).sum(0) / len(x)
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.double, device=x.device)
    for apart in (flatten(block).double() - mean for block in blocks):
        covariance = covariance + apart.mT @ apart
    directions = torch.linalg.eigh(covariance)[1].flip(1)[:, :width]
    return {"mean": mean.float(), "directions": directions.float().contiguous()}


def split_batches(samples: Samples, key: Tensor, parts: int | Tensor) -> Iterator[tuple[Batch, Tensor]]:
    """All samples in batches, and the part of each: [b]; parts are drawn at random and differ by one sample at most."""
    part = pad(samples.shuffle(key).argsort() % parts, (0, samples.width))
    for step, batch in enumerate(samples.in_order()):
        yield batch, part[step * samples.width :][: len(batch.mask)]
