"""Signatures: each client as k weighted points, and the protocol by which clients compute theirs."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from kinfed.client import Client
from kinfed.clustering.kmeans import Centroids
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Replies
from kinfed.models import Model
from kinfed.params import Params
from kinfed.per_client import Each
from kinfed.privacy import SignaturePrivacy
from kinfed.training import SAME_RATE


@runtime_checkable
class Signature(Protocol):
    """How a client is summarised as k weighted points. A plug-in inherits from it, and so has all defaults."""

    @abstractmethod
    def size(self, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
        """k and d for samples of this shape and so many classes, or groups of targets: k points of d numbers each."""

    @abstractmethod
    def compute(self, client: Client, encoder: Params, classes: int) -> Centroids:
        """Client: its points [k, d], and the share of its samples that each stands for [k]; a pure tensor program."""

    def for_model(self, model: Model) -> "Signature":
        """The same signature for clients that train this model, where it embeds samples by it."""
        return self

    def encoder(self, fed: Federation) -> Params:
        """Server: the weights that clients are sent to compute their signatures."""
        return {}

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        """Client: the networks whose weights `encoder` holds, for samples of this shape."""
        return ()

    def check(self, x: Tensor) -> None:
        """Raises where the encoder that its settings name cannot be had, or does not take such samples."""

    def tune(self, client: Client, encoder: Params, rates: Tensor = SAME_RATE) -> Params:
        """Client: the encoder that the next client goes on from, where clients tune it in turn."""
        return encoder

    def rates_in_turn(self, turn: int) -> Tensor:
        """Server: the learning rate of each epoch of a client that tunes after so many others; empty: all the same."""
        return SAME_RATE

    def stands_still(self, encoder: Params, rates: Tensor, shape: tuple[int, ...]) -> bool:
        """Server: whether tuning at these rates changes nothing that clients with samples of this shape embed by."""
        return False

    def tunes_in_turn(self) -> bool:
        """Whether clients tune one encoder one after the other."""
        return False

    def needs_server_samples(self) -> bool:
        """Whether `encoder` takes samples that the server owns."""
        return False

    def needs_shares(self) -> bool:
        """Whether clients must send the shares of their points, whoever compares them."""
        return False

    def has_parts(self) -> bool:
        """Whether points are means of random parts of a client's samples, and shares the parts' numbers of samples."""
        return False

    def scale_numbers(self, known: "Signatures", like: "Signatures", model: Model) -> "Signatures":
        """Server: what is compared of signatures; where they hold targets that are numbers, in units like others'."""
        return known

    def protect(self, protection: SignaturePrivacy) -> "Signature":
        """The same signature with this protection; ConfigError where it has none."""
        raise ConfigError(
            f"privacy.signature is not supported by {type(self).__name__}; use encoder_centroids or part_means"
        )


@dataclass(frozen=True)
class Signatures:
    """What the server knows of the clients: one signature each."""

    centroids: Each  # [clients, k, d]
    shares: Each  # [clients, k] of the client's samples, or their numbers; all 0 for a client without a signature

    def __len__(self) -> int:
        return len(self.shares)

    @staticmethod
    def none(clients: int, k: int, width: int, device: torch.device) -> "Signatures":
        """No client has a signature yet."""
        return Signatures(torch.zeros(clients, k, width, device=device), torch.zeros(clients, k, device=device))

    def of(self, clients: Tensor) -> "Signatures":
        """The signatures of these clients."""
        return Signatures(self.centroids[clients], self.shares[clients])

    def split(self, size: int) -> list["Signatures"]:
        """These signatures in parts of so many clients."""
        both = zip(self.centroids.split(size), self.shares.split(size), strict=True)
        return [Signatures(points, shares) for points, shares in both]

    def update(self, replies: Replies) -> "Signatures":
        """With the signatures that these clients sent; without shares, all points weigh the same."""
        points, clients = replies["centroids"], replies.cohort
        shares = replies["shares"] if "shares" in replies.send else torch.full_like(points[..., 0], 1 / points.shape[1])
        return Signatures(self.centroids.index_copy(0, clients, points), self.shares.index_copy(0, clients, shares))

    def exist(self) -> Tensor:
        """Which clients have a signature: bool [clients]."""
        return self.shares.sum(1) > 0

    def means(self) -> Tensor:
        """The mean of each client's samples: [clients, d]."""
        total = self.shares.sum(1, keepdim=True).round().clamp(min=1)  # 1, but for numbers of samples
        return (self.centroids * self.shares[..., None]).sum(1) / total
