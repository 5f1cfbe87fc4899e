"""A torch module as pure functions of its weights: `init`, `apply`, `gradient`.

The weights are a `Params` dict of all parameters and floating buffers (batch-norm statistics travel and are averaged
like weights). The module itself is only a template and is never changed.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from kinfed.client import Batch
from kinfed.errors import ModelError, SequentialOnly
from kinfed.models.apart import MIXES, flaw_of
from kinfed.params import NOTHING, Params


class Gradient(NamedTuple):
    weights: Params
    buffers: Mapping[str, Tensor] = NOTHING  # what the forward pass made of the buffers


GradientFn = Callable[[Params, Batch], Gradient]
BUILDING = Lock()  # modules draw their weights from the generator that all threads share


@dataclass(frozen=True)
class Network(ABC):
    """A network built by `build`; images of bytes are scaled to [0, 1], then by (x - mean) / std if given."""

    build: Callable[[], nn.Module]
    seed: int = 0
    mean: tuple[float, ...] = ()  # per channel
    std: tuple[float, ...] = ()

    @abstractmethod
    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        """The loss of each row of the batch: [b]."""

    def init(self, seed: int | None = None) -> Params:
        """Fresh weights, drawn by the module's own rules."""
        with BUILDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed if seed is None else seed)
            return weights_of(self.build())

    def built(self) -> nn.Module:
        """A new module; what it draws beside its weights (a mask, an order) is drawn by the seed, always the same."""
        with BUILDING, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)  # not a GPU's, which clients may be drawing from
            return self.build()

    def inputs(self, x: Tensor) -> Tensor:
        """Rows as the network wants them: float, scaled."""
        x = x / 255 if x.dtype == torch.uint8 else x
        if not self.mean:
            return x
        shape = (len(self.mean),) + (1,) * (x.dim() - 2)
        mean, std = (_constant(v, x.device).view(shape) for v in (self.mean, self.std))
        return (x - mean) / std

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The output for rows x, in evaluation mode."""
        with self.borrowed(self._evaluating) as module:
            return self.forward(module, params, x)

    def forward(self, module: nn.Module, params: Params, x: Tensor) -> Tensor:
        """The output of `module` with these weights."""
        whole = {name: b.clone() for name, b in module.named_buffers() if not b.is_floating_point()} | params
        return functional_call(module, whole, (self.inputs(x),))  # type: ignore[no-any-return]

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """The mean loss over the batch's real rows, in evaluation mode."""
        return _mean(self.loss_of(self.apply(params, batch.x), batch), batch)

    def gradient(self, params: Params, batch: Batch) -> Gradient:
        """The gradient of the mean loss over the batch's real rows, in training mode."""
        buffers = {name: params[name] for name in self.buffers}
        weights = {name: w for name, w in params.items() if name not in buffers}
        if batch.exact:
            return self._exact_gradient(weights, buffers, batch)
        if reason := self.refuses or self._flaw(self._training, batch.x):
            raise SequentialOnly(reason)

        lane = (batch.x, batch.y, batch.mask, *weights.values(), *buffers.values())
        slopes = _Gradient.apply(self, (*weights, *buffers), len(weights), *lane)  # type: ignore[no-untyped-call]
        return Gradient(dict(zip(weights, slopes, strict=True)))

    def training_loss(self, params: Params, batch: Batch) -> Tensor:
        """The mean loss over the batch's real rows, in training mode."""
        with self.borrowed(self._training) as module:
            return _mean(self.loss_of(self.forward(module, params, batch.x), batch), batch)

    def _exact_gradient(self, weights: Params, buffers: Params, batch: Batch) -> Gradient:
        moved = {name: b.clone() for name, b in buffers.items()}
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        template = self._evaluating if self.is_lonely(batch) else self._training
        with torch.enable_grad(), self.borrowed(template) as module:
            output = self.forward(module, leaves | moved, batch.x)
            loss = _mean(self.loss_of(output, batch), batch)
            slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # 0 for what has no part
        return Gradient(dict(zip(leaves, slopes, strict=True)), moved)

    def is_lonely(self, batch: Batch) -> bool:
        """Whether it cannot be in training mode for this batch: one row has no statistics of its own for BatchNorm."""
        return len(batch.x) == 1 and self.refuses.startswith("BatchNorm")

    def dressed(self, params: Params) -> nn.Module:
        """A module of its own with these weights, where they are."""
        device = next(iter(params.values())).device
        module = copy.deepcopy(self._training).to(device)
        module.load_state_dict(dict(params), strict=False)
        return module

    def need_rows_apart(self, x: Tensor) -> None:
        """Raises ModelError where the answer for a row like these depends on the rows beside it, in evaluation mode."""
        if self._flaw(self._evaluating, x) == MIXES:
            raise ModelError(
                "the network's answer for a row depends on the other rows of its batch, in evaluation mode too, so a "
                "row has no answer of its own; keep rows apart: softmax, means and norms over dim 1, batch_first=True"
            )

    def _flaw(self, template: nn.Module, x: Tensor) -> str:
        """What is wrong with padding beside rows like these, tried once."""
        kind = template.training, x.shape[1:], x.dtype
        if kind not in self._flaws:
            with ThreadPoolExecutor(1) as thread:  # outside of this thread's vmap
                self._flaws[kind] = thread.submit(self._tried, template, x.shape[1:], x.dtype).result()
        return self._flaws[kind]

    def _tried(self, template: nn.Module, shape: torch.Size, dtype: torch.dtype) -> str:
        with self.borrowed(template) as module, BUILDING:
            return flaw_of(module, partial(self.forward, module), shape, dtype)

    @cached_property
    def _flaws(self) -> dict[tuple[bool, torch.Size, torch.dtype], str]:
        return {}

    @cached_property
    def refuses(self) -> str:
        """Why this network cannot train on padded batches of many clients at once; empty when it can."""
        for module in self._training.modules():
            if isinstance(module, _BatchNorm):
                return "BatchNorm mixes the rows of a batch, and padding would enter its statistics"
            if isinstance(module, _DropoutNd) and module.p > 0:
                return "Dropout draws from one generator for all clients"
            if module._backward_hooks or module._backward_pre_hooks:
                return "a backward hook would see the gradients of all clients at once"
        return ""

    @cached_property
    def _training(self) -> nn.Module:
        return self._template().train()

    @cached_property
    def _evaluating(self) -> nn.Module:
        return self._template().eval()

    def _template(self) -> nn.Module:
        """A module, built in a thread of its own: drawing its weights is forbidden inside a vmap of this one."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._own).result()

    def _own(self) -> nn.Module:
        """A copy that shares nothing, should `build` give the same module each time."""
        module = self.built()
        refuse_computed(module)
        return copy.deepcopy(module)

    @contextmanager
    def borrowed(self, template: nn.Module) -> Iterator[nn.Module]:
        """A copy of the template that nobody else uses meanwhile: weights are put into it to call it."""
        spare = self._spare.setdefault(template.training, [])
        try:
            module = spare.pop()
        except IndexError:
            with ThreadPoolExecutor(1) as thread:  # outside of this thread's vmap
                module = thread.submit(copy.deepcopy, template).result()
        yield module
        spare.append(module)  # unless an error, or Ctrl-C, left it half dressed

    @cached_property
    def _spare(self) -> dict[bool, list[nn.Module]]:
        return {}

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Names of the weights that no gradient moves (batch-norm statistics)."""
        return frozenset(name for name, b in self._training.named_buffers() if b.is_floating_point())

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights that gradients move, in the network's order."""
        return tuple(name for name, _ in self._training.named_parameters())


class _Gradient(torch.autograd.Function):
    """A gradient as one operation: a vmap hands its clients over undisguised, and autograd takes them all at once.

    The gradients of their summed losses are those of each. `torch.func.grad` inside a vmap would give the same, but
    wraps every operation twice, and its first call imports all of torch's compiler, which takes seconds.
    """

    @staticmethod
    def forward(network: Network, names: tuple[str, ...], moved: int, *lane: Tensor) -> tuple[Tensor, ...]:
        return _slopes(lambda *own: _lane_loss(network, names, *own), moved, lane)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Nothing is kept: meta gradients are of the first order."""

    @staticmethod
    def vmap(
        info: object, dims: tuple[int | None, ...], network: Network, names: tuple[str, ...], moved: int, *lane: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        losses, every = vmap(partial(_lane_loss, network, names)), in_lanes(info, lane, dims[3:])
        return _slopes(lambda *own: losses(*own).sum(), moved, every), (0,) * moved


def in_lanes(info: object, tensors: Sequence[Tensor], dims: Sequence[int | None]) -> tuple[Tensor, ...]:
    """What a vmap hands over, with the clients in front: [lanes, ...]; what they share is repeated."""
    lanes = info.batch_size  # type: ignore[attr-defined]
    return tuple(
        t.expand(lanes, *t.shape) if dim is None else t.movedim(dim, 0) for t, dim in zip(tensors, dims, strict=True)
    )


def _lane_loss(network: Network, names: tuple[str, ...], x: Tensor, y: Tensor, mask: Tensor, *values: Tensor) -> Tensor:
    return network.training_loss(dict(zip(names, values, strict=True)), Batch(x, y, mask, mask.any()))


def _slopes(loss: Callable[..., Tensor], moved: int, lane: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradient by the first weights: those that move."""
    rows, weights, buffers = lane[:3], lane[3 : 3 + moved], lane[3 + moved :]
    with torch.enable_grad():
        leaves = [w.detach().requires_grad_() for w in weights]
        return torch.autograd.grad(loss(*rows, *leaves, *buffers), leaves, materialize_grads=True)


def from_module(module: nn.Module) -> Callable[[], nn.Module]:
    """A builder from a module that is already there: copies of it with newly drawn weights."""
    refuse_computed(module)
    stubborn = [
        name
        for name, part in module.named_modules()
        if any(True for _ in part.parameters(recurse=False)) and not hasattr(part, "reset_parameters")
    ]
    if stubborn:
        raise ModelError(
            f"cannot draw new weights for {', '.join(stubborn)}: no reset_parameters(); "
            "hand in a function that builds the module instead"
        )

    def build() -> nn.Module:
        fresh = copy.deepcopy(module)
        for part in fresh.modules():
            draw = getattr(part, "reset_parameters", None)
            if callable(draw):
                draw()
        return fresh

    return build


def refuse_computed(module: nn.Module) -> None:
    """Raises where a part holds a tensor that was computed from weights: it can neither be copied nor follow them."""
    held = ((f"{name}.{key}".strip("."), t) for name, part in module.named_modules() for key, t in vars(part).items())
    computed = [name for name, t in held if isinstance(t, Tensor) and not t.is_leaf]
    if computed:
        raise ModelError(
            f"{', '.join(computed)} was computed from weights when the network was built and would not follow them; "
            "compute it in forward, and use torch.nn.utils.parametrizations.weight_norm for nn.utils.weight_norm"
        )


def weights_of(module: nn.Module) -> Params:
    """All parameters and floating buffers of a module."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: t.detach().clone() for name, t in named if t.is_floating_point()}


def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """The numbers as a tensor that is filled on its device, not sent there: a recording could not be told to wait."""
    return torch.stack([torch.full((), value, device=device) for value in values])


def _mean(each: Tensor, batch: Batch) -> Tensor:
    return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)
