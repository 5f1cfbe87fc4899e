"""FLT's signature of a client: k-means centroids of its samples in an encoder's latent space.

No labels are needed, and nothing but k points (and the share of samples near each) leaves it.
"""

import logging
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kinfed.checks import above_zero, at_least, fraction, within
from kinfed.client import Client
from kinfed.clustering.kmeans import Centroids, Part, kmeans
from kinfed.errors import ConfigError
from kinfed.federation import Federation
from kinfed.models import AutoEncoder, choose_autoencoder, encoder_of, encoder_shape, encoder_shapes, make_autoencoder
from kinfed.params import Params
from kinfed.privacy import UNPROTECTED, Protection, SignaturePrivacy
from kinfed.signatures.pretraining import Pretraining
from kinfed.signatures.signature import Signature
from kinfed.training import SAME_RATE, LocalTraining

Tuning = Literal["none", "own_copy", "sequential"]
log = logging.getLogger("kinfed")
MOST = 10_000  # centroids, each a row of a table for every client
LONGEST = 8.0  # no step of Adam is as long, in learning rates: |m| / √v < 7.3 for any gradients (Cauchy and Schwarz)


@dataclass(frozen=True)
class EncoderCentroids(Signature):
    """k-means centroids of a client's samples in the latent space of an auto-encoder, which the server trains."""

    k: int = 5  # centroids of every client
    k_by_labels: bool = False  # as many as the client has labels, at most k: the oracle of FLT's code
    tuning: Tuning = "own_copy"  # of the encoder, by the clients
    tuning_epochs: int = 5  # J, of a client's tuning
    tuning_batch_size: int = 10  # samples of a step
    tuning_lr: float = 1e-3  # learning rate of Adam
    tuning_decay: float = 1.0  # sequential: its factor after tuning_decay_epochs; below 1, clients tune in random order
    tuning_decay_epochs: int = 10  # counted over all clients that have tuned before
    own_statistics: bool = False  # BatchNorm normalises each embedded sample by its own statistics, not running ones
    autoencoder: str = "auto"  # by the samples' shape; or package.module:function, (shape, latent) -> torch.nn.Module
    latent: int = 128  # e, numbers of an embedded sample
    restarts: int = 10  # of k-means
    seed: int = 0  # of the auto-encoder's first weights
    pretraining: Pretraining = field(default_factory=Pretraining)
    protection: Protection = UNPROTECTED  # by the section [privacy.signature]

    def __post_init__(self) -> None:
        if self.k < 1 or self.latent < 1 or self.restarts < 1:
            raise ConfigError(
                f"k, latent and restarts must be at least 1, got {self.k}, {self.latent}, {self.restarts}"
            )
        within(1, MOST, k=self.k)
        within(1, 10**6, latent=self.latent)
        at_least(1, tuning_epochs=self.tuning_epochs)
        at_least(1, tuning_batch_size=self.tuning_batch_size)
        at_least(1, tuning_decay_epochs=self.tuning_decay_epochs)
        above_zero(tuning_lr=self.tuning_lr, tuning_decay=self.tuning_decay)
        fraction(tuning_decay=self.tuning_decay)
        within(0, 2**64 - 1, seed=self.seed)
        if self.tuning not in ("none", "own_copy", "sequential"):
            raise ConfigError(f"tuning must be 'none', 'own_copy' or 'sequential', got '{self.tuning}'")
        if self.tuning_decay < 1 and self.tuning != "sequential":
            raise ConfigError(f"tuning_decay goes with tuning = 'sequential', got '{self.tuning}'")

    def size(self, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
        return self.k, self.latent

    def encoder(self, fed: Federation) -> Params:
        shape, public = encoder_shape(fed.x), fed.x[fed.population.public.to(fed.device)]
        network = choose_autoencoder(shape) if self.autoencoder == "auto" else self.autoencoder
        log.info("signatures: k-means centroids in the latent space of the auto-encoder %s", network)
        weights = self.pretraining(self.network(shape), public)
        return encoder_of(weights) if self.tuning == "none" else weights

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        return tuple(self.network(each).init() for each in encoder_shapes(shape))

    def check(self, x: Tensor) -> None:
        if self.autoencoder != "auto":
            self.network(encoder_shape(x)).check(x, self.latent)

    def tunes_in_turn(self) -> bool:
        return self.tuning == "sequential"

    def needs_server_samples(self) -> bool:
        return self.pretraining.source == "public"

    def needs_shares(self) -> bool:
        return self.k_by_labels or bool(self.protection.min_samples) or self.protection.is_private

    def protect(self, protection: SignaturePrivacy) -> "EncoderCentroids":
        if protection.is_private and (self.tuning != "none" or self.k_by_labels):
            raise ConfigError(
                "privacy.signature.epsilon needs signature.tuning = 'none' and no k_by_labels: a tuned encoder has "
                f"seen all samples of a client; got '{self.tuning}' and {str(self.k_by_labels).lower()}"
            )
        return replace(self, protection=protection)

    def network(self, shape: tuple[int, ...]) -> AutoEncoder:
        """The auto-encoder for samples of this shape; for token ids, of that of their frequencies."""
        return make_autoencoder(self.autoencoder, shape, self.latent, self.seed)

    def rates_in_turn(self, turn: int) -> Tensor:
        if self.tuning_decay == 1:
            return SAME_RATE
        epochs, every = range(turn * self.tuning_epochs, (turn + 1) * self.tuning_epochs), self.tuning_decay_epochs
        return torch.tensor([self.tuning_lr * self.tuning_decay ** (epoch // every) for epoch in epochs])

    def stands_still(self, encoder: Params, rates: Tensor, shape: tuple[int, ...]) -> bool:
        """Whether Adam's longest step changes no weight; running statistics may change where embeddings use none."""
        if not len(rates):
            return False
        buffers, step = self.network(shape).buffers, LONGEST * float(rates.max())
        if buffers and not self.own_statistics:
            return False
        weights = (w for name, w in encoder.items() if name not in buffers)
        return all(bool(((w + step == w) & (w - step == w)).all()) for w in weights)

    def tune(self, client: Client, encoder: Params, rates: Tensor = SAME_RATE) -> Params:
        """Client: the weights after J epochs of reconstruction training on the client's own images."""
        network = self.network(encoder_shape(client.train.x))
        training = LocalTraining(self.tuning_epochs, self.tuning_batch_size, self.tuning_lr, optimiser="adam")
        return training(client, encoder, network.gradient, rates)[0]

    def compute(self, client: Client, encoder: Params, classes: int) -> Centroids:
        """Client: its samples, embedded and summed up by k-means; it may tune its own copy of the encoder before."""
        network = self.network(encoder_shape(client.train.x))
        weights = self.tune(client, encoder) if self.tuning == "own_copy" else encoder
        clip, alone = self.protection.clip_embeddings, self.own_statistics
        parts = [Part(clip(network.embed(weights, batch.x, alone)), batch.mask) for batch in client.train.in_order()]
        if self.protection.is_private:
            return self.protection.cluster_privately(parts, self.k, client)
        used = count_labels(client, classes) if self.k_by_labels else None
        return self.protection.release_centroids(kmeans(parts, self.k, client.key, used, self.restarts), client)


def count_labels(client: Client, classes: int) -> Tensor:
    """How many different labels the client's training samples have."""
    if client.train.y.is_floating_point() or client.train.y.dim() > 1:
        raise ConfigError("k_by_labels counts a client's labels, and the targets are no classes: leave it out")
    held = torch.zeros(classes, dtype=torch.bool, device=client.key.device)
    for batch in client.train.in_order():
        samples = one_hot(batch.y.clamp(min=0), classes).bool() & (batch.mask & (batch.y >= 0))[:, None]
        held = held | samples.any(0)
    return held.sum().clamp(min=1)
