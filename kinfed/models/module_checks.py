"""Checks of torch modules: can they train at all, and do samples keep apart, so that padding changes nothing?"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.overrides import TorchFunctionMode

from kinfed.client import Batch
from kinfed.errors import ModelError, SequentialOnly
from kinfed.models.batch_operations import BatchOperations
from kinfed.models.module_copies import copy_module
from kinfed.params import Params

Forward = Callable[[Params, Tensor], Tensor]  # weights and samples -> the module's output
MIXES = "the network mixes the samples of a batch, padding would enter its output"
MOVES = "the network's buffers change in training, which is not vectorised"
DRAWS = "the network draws random numbers of its own in training, which is not vectorised"
NO_WEIGHTS = "the network has no weights to train; wanted some that require a gradient"
REFUSALS = (RuntimeError, ValueError, IndexError)  # of a module that cannot take the probes


class Probe(NamedTuple):
    """What a module does with its samples."""

    flaw: str = ""  # why they cannot be padded; empty when they can, or when the module refuses the probes
    draws: bool = True  # it draws numbers by chance, or refuses the probes
    has_statistics: bool = True  # of its batches, or it refuses the probes
    activations: int = 0  # bytes that a sample's forward pass keeps for the backward pass, in training mode
    largest: int = 0  # bytes of the largest tensor that its forward pass makes, in evaluation mode
    draws_always: bool = False  # in evaluation mode, too
    is_written_out: bool = False  # in a vmap it is another, slower program than outside of one


def probe_module(module: nn.Module, forward: Forward, shape: torch.Size, dtype: torch.dtype) -> Probe:
    """What the module does with samples of this shape: two batches differ in one sample, which is padding."""
    weights, ends = _nonzero_parameters(module), dict[str, Tensor]()
    outer, mask = list[Tensor](), torch.tensor([True, False, True])
    before = {name: b.clone() for name, b in module.named_buffers()}
    hook = module.register_forward_hook(lambda *_: ends.update(module.named_buffers()))  # the pass may replace some
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for x in _probes(shape, dtype):
                torch.default_generator.manual_seed(0)  # what else is drawn by chance is the same each time
                moved = {name: b.clone() for name, b in before.items() if b.is_floating_point()}
                batch = Batch(x, mask.long(), mask, mask.any()) if module.training else None
                seeded = torch.default_generator.get_state()
                with BatchOperations(batch, moved) as operations:
                    output = forward(weights | moved, x)
                if not isinstance(output, Tensor):
                    return Probe()
                outer.append(output[::2])
                draws = not torch.equal(seeded, torch.default_generator.get_state())
    except SequentialOnly as reason:
        return Probe(str(reason))
    except REFUSALS:
        return Probe()
    finally:
        hook.remove()
    used = operations.used
    draws_always = not module.training and (draws or "draw in evaluation" in used)
    facts = Probe("", "draw" in used, "batch statistics" in used, 0, 0, draws_always, "written out" in used)
    if draws and module.training:  # from the generator that all clients share
        return facts._replace(flaw=DRAWS)
    if not torch.allclose(outer[0], outer[1], rtol=1e-4, atol=1e-6, equal_nan=True):
        return facts._replace(flaw=MIXES)
    free = _uniform_counters(module)
    stays = all(torch.equal(b, ends.get(name, b)) for name, b in before.items() if name not in free)
    return facts if stays else facts._replace(flaw=MOVES)


def measure_activations(module: nn.Module, forward: Forward, shape: torch.Size, dtype: torch.dtype) -> int:
    """Bytes that the forward pass keeps for the backward pass, more with each such sample; 0: it refuses the probes."""
    x, _ = _probes(shape, dtype)
    try:
        return (_count_kept(module, forward, x) - _count_kept(module, forward, x[:1])) // (len(x) - 1)
    except REFUSALS:
        return 0


@torch.no_grad()
def measure_largest(forward: Forward, weights: Params, shape: torch.Size, dtype: torch.dtype) -> int:
    """Bytes by which the largest tensor of a forward pass grows with each such sample; 0: it refuses the probes."""
    x, _ = _probes(shape, dtype)
    try:
        with torch.random.fork_rng(devices=[]):
            several, single = (list_sizes(forward, weights, part) for part in (x, x[:1]))
    except REFUSALS:
        return 0
    if len(several) != len(single):
        return max(several) // len(x)
    return max((more - one) // (len(x) - 1) for more, one in zip(several, single, strict=True))


def list_sizes(forward: Forward, weights: Params, x: Tensor) -> list[int]:
    """Bytes of what each operation makes."""
    sizes = _Sizes()
    with sizes:
        forward(weights, x)
    return sizes.found


class _Sizes(TorchFunctionMode):
    """Notes the bytes of what operations make."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        first = made[0] if isinstance(made, tuple | list) and made else made
        self.found.append(first.nbytes if isinstance(first, Tensor) else 0)
        return made


def _count_kept(module: nn.Module, forward: Forward, x: Tensor) -> int:
    weights = {name: w.detach().requires_grad_() for name, w in module.named_parameters()}
    moved = {name: b.clone() for name, b in module.named_buffers() if b.is_floating_point()}
    kept = dict[int, torch.UntypedStorage]()

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    mask = torch.ones(len(x), dtype=torch.bool)
    batch = Batch(x, mask.long(), mask, mask.any())
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), BatchOperations(batch, moved):
        forward(weights | moved, x)
    return sum(storage.nbytes() for storage in kept.values())


def find_other_weights(forward: Forward, weights: Params, x: Tensor) -> list[Tensor]:
    """Weights that its output depends on beside these, which nobody would train."""
    leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
    try:
        with torch.enable_grad():
            output = forward(leaves, x)
    except REFUSALS:
        return []
    ahead, seen, found = [output.grad_fn], {output.grad_fn, None}, list[Tensor]()
    while ahead:
        node = ahead.pop()
        if isinstance(held := getattr(node, "variable", None), nn.Parameter):  # own ones are tensors by now
            found.append(held)
        for before, _ in node.next_functions if node else ():
            if before not in seen:
                seen.add(before)
                ahead.append(before)
    return found


def _uniform_counters(module: nn.Module) -> frozenset[str]:
    """Names of the counters of batches on which no running mean depends, since these have a momentum."""
    norms = ((name, part) for name, part in module.named_modules() if isinstance(part, _NormBase))
    return frozenset(f"{name}.num_batches_tracked".lstrip(".") for name, part in norms if part.momentum is not None)


def _probes(shape: torch.Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A sample thrice, then again with another in the middle; integers, which may be token ids, are 0 and 1."""
    is_mark = (torch.arange(prod(shape)) % 3 == 0).view(shape)
    most = 255 if dtype == torch.uint8 else 1
    light, dark = (most / 2, most / 4) if dtype == torch.uint8 or dtype.is_floating_point else (1, 0)
    sample, other = torch.where(is_mark, light, dark).to(dtype), torch.where(is_mark, 0, most).to(dtype)
    return torch.stack([sample, sample, sample]), torch.stack([sample, other, sample])


def _nonzero_parameters(module: nn.Module) -> Params:
    """Its parameters; those that begin at zero, which would hide what lies before them, do not."""
    return {name: w.detach() if w.any() else w.detach() + 0.1 for name, w in module.named_parameters()}


def from_module(module: nn.Module) -> Callable[[], nn.Module]:
    """A builder from a module that is already there: copies of it with newly drawn weights; frozen ones stay."""
    refuse_unsupported(module)
    frozen = {name: w for name, w in module.named_parameters() if not w.requires_grad} | _find_frozen_buffers(module)
    stubborn = [
        name
        for name, part in module.named_modules()
        if any(w.requires_grad for w in part.parameters(recurse=False)) and not hasattr(part, "reset_parameters")
    ]
    if stubborn:
        raise ModelError(
            f"cannot draw new weights for {', '.join(stubborn)}: no reset_parameters(); "
            "hand in a function that builds the module instead"
        )

    def build() -> nn.Module:
        fresh = copy_module(module)
        for part in fresh.modules():
            draw = getattr(part, "reset_parameters", None)
            if callable(draw):
                draw()
        with torch.no_grad():
            held = dict((*fresh.named_parameters(), *fresh.named_buffers(remove_duplicate=False)))
            for name, w in frozen.items():
                held[name].copy_(w)
        return fresh

    return build


def _find_frozen_buffers(module: nn.Module) -> Params:
    """Those of parts whose parameters are all frozen, such as statistics of a pretrained batch norm."""
    return {
        f"{prefix}.{name}".lstrip("."): b
        for prefix, part in module.named_modules()
        if (own := list(part.parameters(recurse=False))) and not any(w.requires_grad for w in own)
        for name, b in part.named_buffers(recurse=False)
    }


def check_module(built: object) -> nn.Module:
    """The same, where it is a module; else raises ModelError."""
    if not isinstance(built, nn.Module):
        raise ModelError(
            f"the function that builds the network returns a {type(built).__name__}, wanted a torch module"
        )
    return built


def refuse_unsupported(module: nn.Module) -> None:
    """Raises where a module cannot train as a function of its weights."""
    parts, named = list(module.named_modules()), list(module.named_parameters())
    if any(isinstance(part, torch.jit.ScriptModule) for _, part in parts):
        raise ModelError("the network is TorchScript, whose weights cannot be replaced: give the module it was made of")
    if lazy := [name for name, w in named if is_lazy(w)]:
        have, layer = ("have", "their layers") if len(lazy) > 1 else ("has", "its layer")
        raise ModelError(f"{', '.join(lazy)} {have} no shape before the first call; give {layer} the number of inputs")
    if unreal := [name for name, w in named if w.is_complex()]:
        raise ModelError(
            f"{', '.join(unreal)} {'are' if len(unreal) > 1 else 'is'} complex, wanted real numbers; make "
            f"{'each' if len(unreal) > 1 else 'it'} of two by torch.view_as_complex"
        )
    if renormed := [name for name, part in parts if getattr(part, "max_norm", None) is not None]:
        raise ModelError(f"max_norm of {', '.join(renormed)} changes weights in forward; divide by the norm there")
    refuse_computed(module)


def refuse_computed(module: nn.Module) -> None:
    """Raises where a part holds a tensor that was computed from weights: it can neither be copied nor follow them."""
    held = ((f"{name}.{key}".strip("."), t) for name, part in module.named_modules() for key, t in vars(part).items())
    computed = [name for name, t in held if isinstance(t, Tensor) and not t.is_leaf]
    if computed:
        raise ModelError(
            f"{', '.join(computed)} was computed from weights when the network was built and would not follow them; "
            "compute it in forward, and use torch.nn.utils.parametrizations.weight_norm for nn.utils.weight_norm"
        )


@torch.no_grad()
def moves_buffers(module: nn.Module) -> bool:
    """Whether it changes buffers to compute weights in training, whatever the samples are: spectral_norm does."""
    if not any(_computes_weights(part) for part in module.modules()):
        return False
    own = copy_module(module).train()
    before = {name: b.clone() for name, b in own.named_buffers()}
    for w in own.parameters():
        w.add_(torch.linspace(0, 1, w.numel(), device=w.device).view_as(w))  # its first weights may suit the buffers
    try:
        for part in own.modules():
            _compute_weights(part)
    except REFUSALS:
        return False
    return any(not torch.equal(b, before[name]) for name, b in own.named_buffers())


def _computes_weights(part: nn.Module) -> bool:
    return is_parametrized(part) or any(isinstance(hook, SpectralNorm) for hook in part._forward_pre_hooks.values())


def _compute_weights(part: nn.Module) -> None:
    """What its forward pass begins with, where weights are computed from others."""
    for name in cast("nn.ModuleDict", part.parametrizations) if is_parametrized(part) else ():
        getattr(part, name)
    for hook in part._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            hook(part, None)


def weights_of(module: nn.Module) -> Params:
    """All parameters and floating buffers of a module."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: t.detach().clone() for name, t in named if t.is_floating_point()}
