"""Networks with an encoder as pure functions of their weights: how clients describe their images."""

from abc import ABC
from dataclasses import dataclass

from torch import Tensor
from torch.func import functional_call

from kinfed.client import Batch
from kinfed.models.network import Network
from kinfed.params import Params


@dataclass(frozen=True)
class Encoding(Network, ABC):
    """A module with a part `encoder`, whose output for a row is the row's embedding."""

    def embed(self, params: Params, x: Tensor) -> Tensor:
        """Rows in latent space: [b, e]. Needs the encoder's weights alone."""
        own = {name.removeprefix("encoder."): w for name, w in encoder_of(params).items()}
        with self.borrowed(self._evaluating) as module:
            return functional_call(module.get_submodule("encoder"), own, (self.inputs(x),))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class AutoEncoder(Encoding):
    """A module with parts `encoder` and `decoder`, trained to give its input back (mean squared error)."""

    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        return (output - self.inputs(batch.x)).square().flatten(1).mean(1)


def encoder_of(params: Params) -> Params:
    """The encoder's share of a network's weights."""
    return {name: w for name, w in params.items() if name.startswith("encoder.")}


def has_decoder(params: Params) -> bool:
    """Whether these weights are a whole auto-encoder's, or an encoder's alone."""
    return any(name.startswith("decoder.") for name in params)
