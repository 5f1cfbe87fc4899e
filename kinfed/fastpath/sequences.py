"""A module as a sequence of plain parts, with the draws of its dropout and of its augmented inputs.

What has hooks or a forward of its own, or uses a weight twice, is none.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from kinfed.fastpath.layers import DROPOUTS, Drop, Layers, make_layer
from kinfed.models.inputs import Augmenter, Inputs, augment

HOOKS = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"


def parse_layers(module: nn.Module) -> Layers | None:
    """The module as plain layers; None if it is anything but a sequence of such."""
    if is_hooked(module):
        return None
    parts, augmentation = list(leaves(module)), find_augmentation(module)
    drops = find_drops(parts, augmentation.draws)
    layers = [make_layer(name, leaf, drop) for (name, leaf), drop in zip(parts, drops, strict=True)]
    weights = [id(weight) for _, leaf in parts for weight in leaf.parameters()]
    if None in layers or len(set(weights)) < len(weights):  # a weight that is used twice must not move in between
        return None
    return Layers.of(parts, tuple(layer for layer in layers if layer), is_augmented=augmentation.draws > 0)


def leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The parts of nested sequences in their order, each with its name and a dot."""
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for inner, part in module._modules.items():  # named_children leaves out a part that comes twice
        if part is not None:
            yield from leaves(part, f"{name}{inner}.")


def is_hooked(module: nn.Module) -> bool:
    """Whether it or one of its parts has a hook, but for the augmentation of its input, or a forward of its own."""
    hooks = [hook for part in module.modules() for kind in HOOKS for hook in getattr(part, kind).values()]
    augmenters = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, Augmenter)]
    return hooks != augmenters[:1] or any("forward" in vars(part) for part in module.modules())


def find_augmentation(module: nn.Module) -> Inputs:
    """How a module that has no other hook augments its input in training."""
    found = (hook.inputs for hook in module._forward_pre_hooks.values() if isinstance(hook, Augmenter))
    return next(found, Inputs()) if module.training else Inputs()


def augment_lanes(x: Tensor, inputs: Inputs, keys: Tensor) -> Tensor:
    """The samples [lanes · b, ...] of several lanes, augmented by their keys [lanes] as `models.inputs` does."""
    numbers = iter(range(1, inputs.draws + 1))

    def draw(x: Tensor, count: int) -> Tensor:
        return Drop(next(numbers), 0.5, channels=False).draw(keys, (len(x), count), x.dtype) > 0

    return augment(x, inputs, draw)


def find_drops(parts: list[tuple[str, nn.Module]], before: int) -> "list[Drop | None]":
    """The dropout that each part is; None for other parts, and where nothing is dropped.

    So many draws of a forward pass come before them all.
    """
    drops: list[Drop | None] = []
    for _, leaf in parts:
        p = float(leaf.p) if type(leaf) in DROPOUTS and leaf.training else 0.0  # type: ignore[arg-type]
        number = before + sum(drop is not None for drop in drops) + 1
        drops.append(Drop(number, p, type(leaf) is nn.Dropout2d) if p else None)
    return drops
