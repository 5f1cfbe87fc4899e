"""A client as the mean embeddings of a few random parts of its samples: the parts differ by sampling noise alone.

So the server can tell how much two clients differ beyond the noise of their own samples (relatedness `calibrated`). No
labels are needed, and no sample leaves the client.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from kinfed.checks import within
from kinfed.client import Batch, Client, Samples
from kinfed.clustering.kmeans import Centroids
from kinfed.errors import ConfigError
from kinfed.federation import Federation
from kinfed.models import AutoEncoder, encoder_of
from kinfed.params import Params
from kinfed.privacy import UNPROTECTED, Protection, SignaturePrivacy
from kinfed.signatures.encoder_centroids import make_network
from kinfed.signatures.pretraining import Pretraining
from kinfed.signatures.signature import Signature

Embedding = Literal["pca", "autoencoder"]
AT_ONCE = 4096  # samples


@dataclass(frozen=True)
class PartMeans(Signature):
    """Mean embeddings of random parts of a client's samples, by an encoder that stays as the server made it."""

    parts: int = 4  # of a client's samples, as even as can be
    embedding: Embedding = "pca"  # principal components of the server's samples, or the latent space of an auto-encoder
    latent: int = 64  # e, numbers of an embedded sample, at most as many as it has
    autoencoder: str = "auto"  # conv_ae for one channel, residual_ae for three
    seed: int = 0  # of the auto-encoder's first weights
    pretraining: Pretraining = field(default_factory=Pretraining)  # of the auto-encoder; its samples are those of pca
    protection: Protection = UNPROTECTED  # by the section [privacy.signature]

    def __post_init__(self) -> None:
        if self.embedding not in ("pca", "autoencoder"):
            raise ConfigError(f"embedding must be 'pca' or 'autoencoder', got '{self.embedding}'")
        within(2, 100, parts=self.parts)
        within(1, 10**6, latent=self.latent)
        within(0, 2**64 - 1, seed=self.seed)

    def size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return self.parts, self.latent if self.embedding == "autoencoder" else min(self.latent, prod(shape))

    def encoder(self, fed: Federation) -> Params:
        shape, public = tuple(fed.x.shape[1:]), fed.x[fed.population.public.to(fed.device)]
        if self.embedding == "pca":
            return find_components(self.pretraining.load(public), self.size(shape)[1])
        return encoder_of(self.pretraining(self.network(shape), public))

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        if self.embedding == "pca":
            return (find_components(torch.zeros(1, *shape), self.size(shape)[1]),)
        return (encoder_of(self.network(shape).init()),)

    def needs_server_samples(self) -> bool:
        return self.pretraining.source == "public"

    def needs_shares(self) -> bool:
        return True

    def has_parts(self) -> bool:
        return True

    def protect(self, protection: SignaturePrivacy) -> "PartMeans":
        return replace(self, protection=protection)

    def network(self, shape: tuple[int, ...]) -> AutoEncoder:
        """The auto-encoder for images of this shape."""
        return make_network(self.autoencoder, shape, self.latent, self.seed)

    def embed(self, encoder: Params, x: Tensor) -> Tensor:
        """Samples [b, ...] embedded: [b, e]."""
        if self.embedding == "autoencoder":
            return self.network(tuple(x.shape[1:])).embed(encoder, x)
        return (flatten(x) - encoder["mean"]) @ encoder["directions"]

    def compute(self, client: Client, encoder: Params, classes: int) -> Centroids:
        """Client: the mean embedding of each part [parts, d], and in place of shares its number of samples [parts]."""
        width = self.size(tuple(client.train.x.shape[1:]))[1]
        sums = torch.zeros(self.parts, width, dtype=torch.double, device=client.key.device)
        counts = torch.zeros(self.parts, dtype=torch.double, device=client.key.device)
        used = (client.train.size // max(1, self.protection.min_samples)).clamp(1, self.parts)
        for batch, part in split_batches(client.train, client.key, used):
            belongs = one_hot(part, self.parts).bool() & batch.mask[:, None]
            embedded = self.protection.clip_embeddings(self.embed(encoder, batch.x))[:, None].double()
            sums = sums + torch.where(belongs[..., None], embedded, 0.0).sum(0)  # padding adds zeros: no bit changes
            counts = counts + belongs.sum(0)
        return self.protection.release_means(sums / counts.clamp(min=1)[:, None], counts, client)


def flatten(x: Tensor) -> Tensor:
    """Samples as vectors, pixels scaled to 0..1: [b, d]."""
    return x.flatten(1).float() / (1 if x.is_floating_point() else 255)


def find_components(x: Tensor, width: int) -> Params:
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
