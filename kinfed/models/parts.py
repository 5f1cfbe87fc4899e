"""A network in two parts: all layers but the last, and the last."""

from collections.abc import Mapping

from torch import Tensor

from kinfed.client import Batch
from kinfed.models.network import Gradient, GradientFn, Network
from kinfed.params import Params


def is_last(network: Network, name: str) -> bool:
    """Whether this weight belongs to the network's last layer."""
    return name.rpartition(".")[0] == network.weights[-1].rpartition(".")[0]


def beside(gradient: GradientFn, fixed: Mapping[str, Tensor]) -> GradientFn:
    """The gradient of some weights, beside others that are fixed; where there are none, the gradient itself."""
    if not fixed:
        return gradient

    def rule(params: Params, batch: Batch) -> Gradient:
        slope, buffers = gradient({**fixed, **params}, batch)
        moves, moved = ({name: w for name, w in part.items() if name in params} for part in (slope, buffers))
        return Gradient(moves, moved)

    return rule
