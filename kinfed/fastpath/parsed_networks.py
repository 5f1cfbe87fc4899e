"""Networks as the fast path sees them, and what it lacks for them on a device."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from kinfed.fastpath.gpu_training import has_kernels
from kinfed.fastpath.layers import Layers
from kinfed.fastpath.sequences import augment_lanes, find_augmentation, parse_layers
from kinfed.fastpath.stages import Stage, parse_stages
from kinfed.models import Model, Network
from kinfed.models.inputs import Inputs


@dataclass(frozen=True, eq=False)
class ParsedNetwork:
    """A classifier, and its layers and stages if it consists of such."""

    network: Network
    layers: Layers | None  # on a CPU
    stages: tuple[Stage, ...]  # on a GPU
    augmentation: Inputs = field(default_factory=Inputs)  # of samples in training

    @property
    def kind(self) -> Hashable:
        """What networks share whose stages and samples are alike: they can train in one block."""
        network = self.network
        own = None if type(network).inputs is Network.inputs else id(network)
        return self.stages, self.augmentation, network.mean, network.std, own

    def inputs(self, x: Tensor, keys: Tensor) -> Tensor:
        """Samples [lanes · b, ...] as the network trains on them, augmented by the keys [lanes]."""
        return augment_lanes(self.network.inputs(x), self.augmentation, keys)


def find_obstacle(parsed: ParsedNetwork, device: torch.device, axes: int = 1) -> str:
    """What a network lacks for the fast path on a device; empty where it lacks nothing."""
    if device.type == "cuda":
        return "" if parsed.stages and has_kernels() else "there are no kernels for this network"
    if device.type != "cpu" or not parsed.layers:
        return "the network is not a sequence of plain layers"
    return "a linear layer takes samples of several axes" if axes > 1 and parsed.layers.for_vectors else ""


def supports(network: Network, device: torch.device) -> bool:
    """Whether the fast path can train this network there."""
    return not find_obstacle(parse(network), device)


@lru_cache(maxsize=64)
def parse(network: Network) -> ParsedNetwork:
    """The network as the fast path sees it; one with a loss, forward or gradient of its own has no layers for it."""
    own = type(network)
    usual = isinstance(network, Model) and network.task.is_plain() and own.loss_of is Model.loss_of
    usual = usual and own.forward is Network.forward and own.mean_loss is Network.mean_loss
    if not usual or own.compute_gradient is not Network.compute_gradient:
        return ParsedNetwork(network, None, ())
    module = network.template
    return ParsedNetwork(network, parse_layers(module), parse_stages(module), find_augmentation(module))
