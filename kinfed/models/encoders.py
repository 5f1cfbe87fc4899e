"""Networks with an encoder as pure functions of their weights: what client signatures are computed with."""

from abc import ABC
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from kinfed.client import Batch
from kinfed.models.network import Network
from kinfed.params import Params


@dataclass(frozen=True)
class EncoderNetwork(Network, ABC):
    """A module with a part `encoder`, whose output is a sample's embedding."""

    def embed(self, params: Params, x: Tensor) -> Tensor:
        """Samples in latent space: [b, e]. Needs the encoder's weights alone."""
        own = {name.removeprefix("encoder."): w for name, w in encoder_of(params).items()}
        with self.borrow(self.evaluation_template) as module:
            embedding: Tensor = functional_call(module.get_submodule("encoder"), own, (self.inputs(x),))
            return embedding


@dataclass(frozen=True)
class AutoEncoder(EncoderNetwork):
    """A module with parts `encoder` and `decoder`, trained to give its input back (mean squared error)."""

    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        return (output - self.inputs(batch.x)).square().flatten(1).mean(1)


@dataclass(frozen=True)
class SupervisedAutoEncoder(EncoderNetwork):
    """Trained by λ · mean squared error + (1 - λ) · cross-entropy; its output is all pixels, then all logits."""

    classes: int = 10
    reconstruction: float = 0.1  # λ; 0: a classifier alone (CLF), 1: an auto-encoder alone (AE)

    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        images, loss = self.inputs(batch.x).flatten(1), torch.zeros_like(output[:, 0])
        if self.reconstruction > 0:
            error = (output[:, : images.shape[1]] - images).square().mean(1)
            loss = loss + self.reconstruction * error
        if self.reconstruction < 1:
            entropy = cross_entropy(output[:, -self.classes :], batch.y, reduction="none")
            loss = loss + (1 - self.reconstruction) * entropy
        return loss


def encoder_of(params: Params) -> Params:
    """The encoder's share of a network's weights."""
    return {name: w for name, w in params.items() if name.startswith("encoder.")}


def has_decoder(params: Params) -> bool:
    """Whether these weights are a whole auto-encoder's, or an encoder's alone."""
    return any(name.startswith("decoder.") for name in params)
