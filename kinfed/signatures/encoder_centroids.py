"""FLT's signature of a client: k-means centroids of its rows in an encoder's latent space.

No labels are needed, and nothing but k points (and the share of rows near each) leaves it.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from kinfed.checks import within
from kinfed.client import Client
from kinfed.clustering.kmeans import Centroids, Part, kmeans
from kinfed.errors import ConfigError
from kinfed.models import AutoEncoder, make_autoencoder
from kinfed.params import Params
from kinfed.signatures.pretraining import Pretraining
from kinfed.training import LocalTraining

Tuning = Literal["none", "own_copy", "sequential"]
MOST = 10_000  # centroids, each a row of a table for every client


@dataclass(frozen=True)
class EncoderCentroids:
    """How a client is described; the auto-encoder's weights come from the server."""

    k: int = 5  # centroids of every client
    k_by_labels: bool = False  # as many as the client has labels, at most k: the oracle of FLT's code
    tuning: Tuning = "own_copy"  # of the encoder, by the clients
    tuning_epochs: int = 5  # J, of a client's tuning
    tuning_batch_size: int = 10  # rows of a step
    tuning_lr: float = 1e-3  # learning rate of Adam
    autoencoder: str = "auto"  # conv_ae for one channel, residual_ae for three
    latent: int = 128  # e, numbers that describe an image
    restarts: int = 10  # of k-means
    seed: int = 0  # of the auto-encoder's first weights
    pretraining: Pretraining = field(default_factory=Pretraining)

    def __post_init__(self) -> None:
        if self.k < 1 or self.latent < 1 or self.restarts < 1:
            raise ConfigError(
                f"k, latent and restarts must be at least 1, got {self.k}, {self.latent}, {self.restarts}"
            )
        within(1, MOST, k=self.k)
        within(0, 2**64 - 1, seed=self.seed)
        if self.tuning not in ("none", "own_copy", "sequential"):
            raise ConfigError(f"tuning must be 'none', 'own_copy' or 'sequential', got '{self.tuning}'")

    def network(self, shape: torch.Size) -> AutoEncoder:
        """The auto-encoder for images of this shape."""
        if len(shape) != 3:
            raise ConfigError(
                f"encoder signatures need images [channels, height, width], got rows of shape {tuple(shape)}"
            )
        return make_autoencoder(self.autoencoder, (shape[0], shape[1], shape[2]), self.latent, self.seed)

    def tune(self, client: Client, autoencoder: Params) -> Params:
        """The weights after J epochs of reconstruction training on the client's own images."""
        network = self.network(client.train.x.shape[1:])
        training = LocalTraining(self.tuning_epochs, self.tuning_batch_size, self.tuning_lr, optimiser="adam")
        return training(client, autoencoder, network.gradient)[0]

    def centroids(self, client: Client, weights: Params, classes: int) -> Centroids:
        """The client's rows, embedded and summed up by k-means."""
        network = self.network(client.train.x.shape[1:])
        parts = [Part(network.embed(weights, batch.x), batch.mask) for batch in client.train.in_order()]
        used = labels_held(client, classes) if self.k_by_labels else None
        return kmeans(parts, self.k, client.key, used, self.restarts)


def labels_held(client: Client, classes: int) -> Tensor:
    """How many different labels the client's training rows have."""
    held = torch.zeros(classes, dtype=torch.bool, device=client.key.device)
    for batch in client.train.in_order():
        rows = one_hot(batch.y.clamp(min=0), classes).bool() & (batch.mask & (batch.y >= 0))[:, None]
        held = held | rows.any(0)
    return held.sum().clamp(min=1)
