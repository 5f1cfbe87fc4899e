"""A torch module as pure functions of its weights: `init`, `apply`, `gradient`.

The weights are a `Params` dict of all parameters and floating buffers (batch-norm statistics travel and are averaged
like weights). The module itself is only a template and is never changed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from kinfed.client import Batch
from kinfed.errors import ModelError, SequentialOnly
from kinfed.keys import seed_generators
from kinfed.models.batch_operations import BatchOperations
from kinfed.models.evaluation import Evaluate, evaluate_in_parts, in_evaluation
from kinfed.models.inputs import TOKENS
from kinfed.models.module_checks import (
    MIXES,
    MOVES,
    Probe,
    check_module,
    find_other_weights,
    from_module,
    measure_activations,
    measure_largest,
    moves_buffers,
    probe_module,
    refuse_unsupported,
    weights_of,
)
from kinfed.models.module_copies import copy_module
from kinfed.params import NOTHING, Params, lanes_first


class Gradient(NamedTuple):
    """What a mini-batch says of a model: a direction for each weight, and new buffers."""

    weights: Params  # by weight
    buffers: Mapping[str, Tensor] = NOTHING  # what the forward pass made of the buffers


GradientFn = Callable[[Params, Batch], Gradient]
BFLOAT16 = ContextVar("bfloat16", default=False)  # whether blocks of clients train with products in bfloat16
WEIGHT = "weight of each sample"  # of a batch, among the values of a lane
BUILDING = Lock()  # modules draw their weights from the generator that all threads share


@dataclass(frozen=True)
class Network(ABC):
    """A network; images of bytes are scaled to [0, 1], then by (x - mean) / std if given."""

    build: Callable[[], nn.Module]  # or a module, of which copies with newly drawn weights are made
    seed: int = 0
    mean: tuple[float, ...] = ()  # per channel
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.build, nn.Module):
            object.__setattr__(self, "build", from_module(self.build))
        for name in ("mean", "std"):  # lists too; a network can be a key
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @abstractmethod
    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        """The loss of each sample of the batch: [b]."""

    def init(self, seed: int | None = None) -> Params:
        """Fresh weights, drawn by the module's own rules."""
        with BUILDING, torch.random.fork_rng(devices=[]):
            seed_generators(self.seed if seed is None else seed)
            module = check_module(self.build())
            refuse_unsupported(module)
            return weights_of(module)

    def build_module(self) -> nn.Module:
        """A new module; what it draws beside its weights (a mask, an order) is drawn by the seed, always the same."""
        with BUILDING, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)  # not a GPU's, which clients may be drawing from
            return check_module(self.build())

    def inputs(self, x: Tensor) -> Tensor:
        """Samples as the network wants them: float, scaled."""
        if x.dtype in TOKENS:
            return x.long()
        x = x / 255 if x.dtype == torch.uint8 else x
        if not self.mean:
            return x
        shape = (len(self.mean),) + (1,) * (x.dim() - 2)
        mean, std = (_constant(v, x.device).view(shape) for v in (self.mean, self.std))
        return (x - mean) / std

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The output for samples x, in evaluation mode."""
        return self.in_parts(self._evaluate, params, x)

    def _evaluate(self, params: Params, x: Tensor) -> Tensor:
        own = self._own_buffers(params) if self.buffers and self.probe_evaluation(x).flaw == MOVES else {}
        with self.borrow(self.evaluation_template) as module, in_evaluation():
            return self.forward(module, {**params, **own}, x)

    def _own_buffers(self, params: Params) -> Params:
        """Copies of the buffers, which a pass may change in place: clients of a block share those they are served."""
        return {name: w.clone() for name, w in params.items() if name in self.buffers}

    def in_parts(self, evaluate: Evaluate, params: Params, x: Tensor) -> Tensor:
        """What `evaluate` gives for samples x: on a CPU of as many at once as its caches hold."""
        return evaluate_in_parts(evaluate, self.probe_evaluation, params, x)

    def forward(self, module: nn.Module, params: Params, x: Tensor) -> Tensor:
        """The output of `module` with these weights."""
        self.check_weights(params, module)
        whole = {name: b.clone() for name, b in module.named_buffers() if not b.is_floating_point()} | params
        output: Tensor = functional_call(module, whole, (self.inputs(x),))
        return output

    def check_weights(self, params: Mapping[str, Tensor], module: nn.Module) -> None:
        """Raises ModelError unless these are all weights of such a module: its own would fill gaps.

        A network with an `init` of its own leaves out what it wants.
        """
        given = _shapes_of(params)
        if given == self._shapes or type(self).init is not Network.init:
            return
        shapes = _shapes_of(weights_of(module))
        if given == shapes:  # also with buffers that a forward pass added to this one
            self._shapes.update({} if self._shapes else shapes)
            return
        lacks = [f"'{name}'" for name in shapes if name not in params]
        other = [f"'{name}'" for name in params if name not in shapes]
        odd = [
            f"'{name}' has shape {list(params[name].shape)} in place of {list(shape)}"
            for name, shape in shapes.items()
            if name in params and params[name].shape != shape
        ]
        faults = [f"lacks {', '.join(lacks)}"] if lacks else []
        faults += [f"has {', '.join(other)}, which the network does not know"] if other else []
        raise ModelError(
            f"a model that is to be used {'; '.join([*faults, *odd])}: client tasks and the server's rules must pass "
            "on all weights of the network by their names, and `personalise` must add those that clients keep"
        )

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        """Of all weights; filled by the first check, for building a template waits for a probe, and a probe checks."""
        return {}

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """The mean loss over the batch's real samples, in evaluation mode."""
        return batch.mean(self.loss_of(self.apply(params, batch.x), batch))

    @property
    def gradient(self) -> "NetworkGradient":
        """The gradient of its loss as a rule that local training takes."""
        return NetworkGradient(self)

    def compute_gradient(self, params: Params, batch: Batch) -> Gradient:
        """The gradient of the mean loss over the batch's real samples, in training mode."""
        buffers = {name: params[name] for name in self.buffers}
        weights = {name: w for name, w in params.items() if name not in buffers}
        if batch.exact:
            return self._exact_gradient(weights, buffers, batch)
        self.check_padding(batch.x)
        key = batch.mask.new_zeros((), dtype=torch.long) if batch.key is None else batch.key
        further = {} if batch.weight is None else {WEIGHT: batch.weight}
        lane = (batch.x, batch.y, batch.mask, key, *weights.values(), *buffers.values(), *further.values())
        apply = cast("Callable[..., tuple[Tensor, ...]]", _Gradient.apply)
        gradients = apply(self, (*weights, *buffers, *further), len(weights), *lane)
        moved = dict(zip(buffers, gradients[len(weights) :], strict=True))
        return Gradient(dict(zip(weights, gradients, strict=False)), moved)

    def training_pass(self, params: Params, batch: Batch) -> tuple[Tensor, Params]:
        """The mean loss over the batch's real samples in training mode, and what the pass makes of the buffers."""
        output, buffers = self.training_output(params, batch)
        return self.mean_loss(output, batch), buffers

    def training_output(self, params: Params, batch: Batch) -> tuple[Tensor, Params]:
        """The output for the batch in training mode, and what the pass makes of the buffers."""
        buffers = {name: params[name] for name in self.buffers}
        with self.borrow(self.template) as module, BatchOperations(batch, buffers) as operations:
            output = self.forward(module, params, batch.x)
        return output, buffers | operations.moved

    def mean_loss(self, output: Tensor, batch: Batch) -> Tensor:
        """The mean loss of these outputs over the batch's real samples."""
        return batch.mean(self.loss_of(output, batch))

    def _exact_gradient(self, weights: Params, buffers: Params, batch: Batch) -> Gradient:
        moved = {name: b.clone() for name, b in buffers.items()}
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        with torch.enable_grad(), self.borrow(self.template) as module:
            with self.operations(batch, moved) as operations:
                output = self.forward(module, leaves | moved, batch.x)
            gradients = torch.autograd.grad(
                self.mean_loss(output, batch),
                list(leaves.values()),
                materialize_grads=True,  # 0: unused
            )
        return Gradient(dict(zip(leaves, gradients, strict=True)), moved | (operations.moved if operations else {}))

    def operations(self, batch: Batch, buffers: Params) -> "BatchOperations | nullcontext[None]":
        """The operations of an exact batch; torch's own where they do."""
        return BatchOperations(batch, buffers) if self.needs_operations(batch) else nullcontext()

    def needs_operations(self, batch: Batch) -> bool:
        """Whether torch's own operations do not do for an exact batch: where it draws, or one sample has statistics."""
        probe = self.probe(self.template, batch.x)
        return bool(probe.draws) or (probe.has_statistics and len(batch.x) == 1)

    def check_padding(self, x: Tensor) -> None:
        """Raises SequentialOnly where clients cannot train on padded batches of such samples."""
        if reason := self.refuses or self.probe(self.template, x).flaw:
            raise SequentialOnly(reason)

    def needs_evaluation_mode(self, batch: Batch) -> bool:
        """Whether it cannot train on this batch: one sample has no batch statistics for BatchNorm."""
        return len(batch.x) == 1 and any(isinstance(part, _BatchNorm) for part in self.template.modules())

    def module_with(self, params: Params) -> nn.Module:
        """A module of its own with these weights, where they are."""
        device = next(iter(params.values())).device
        module = copy_module(self.template).to(device)
        module.load_state_dict(dict(params), strict=False)
        return module

    def check_independence(self, x: Tensor) -> None:
        """Raises ModelError where the output for such a sample depends on the others of its batch when evaluated."""
        if self.probe_evaluation(x).flaw == MIXES:
            raise ModelError(
                "the network's output for a sample depends on the other samples of its batch, in evaluation mode too; "
                "make it independent of them: softmax, means and norms over dim 1, batch_first=True, BatchNorm with "
                "running statistics"
            )

    def check_ownership(self, x: Tensor) -> None:
        """Raises ModelError where the output for such samples depends on weights that are not the network's own."""
        params = self.init()  # a subclass may leave some out, which the module then keeps
        weights = {name: params.pop(name) for name in self.weights if name in params}
        with self.borrow(self.evaluation_template) as module, in_evaluation():
            found = find_other_weights(lambda own, x: self.forward(module, own | params, x), weights, x)
            kept = set(map(id, module.parameters()))
        if others := [w for w in found if id(w) not in kept]:
            shapes = ", ".join(str(list(w.shape)) for w in others)
            raise ModelError(
                f"the network uses weights that are not its own and would not train, of shape {shapes}: hold layers as "
                "attributes or in an nn.ModuleList of the module whose forward uses them; or freeze them by "
                "requires_grad_(False)"
            )

    def probe_evaluation(self, x: Tensor) -> Probe:
        """What its module does with samples like these in evaluation mode."""
        return self.probe(self.evaluation_template, x)

    def probe(self, template: nn.Module, x: Tensor) -> Probe:
        """What the module does with samples like these, found out once."""
        kind = template.training, x.shape[1:], x.dtype
        if kind not in self._probes:
            with ThreadPoolExecutor(1) as thread:  # outside of this thread's vmap
                self._probes[kind] = thread.submit(self._probe, template, x.shape[1:], x.dtype).result()
        return self._probes[kind]

    def _probe(self, template: nn.Module, shape: torch.Size, dtype: torch.dtype) -> Probe:
        with self.borrow(template) as module, BUILDING:
            forward = partial(self.forward, module)
            facts = probe_module(module, forward, shape, dtype)
            if facts.flaw:
                return facts
            if not module.training:
                return facts._replace(largest=measure_largest(forward, weights_of(module), shape, dtype))
            return facts._replace(activations=measure_activations(module, forward, shape, dtype))

    @cached_property
    def _probes(self) -> dict[tuple[bool, torch.Size, torch.dtype], Probe]:
        return {}

    @cached_property
    def refuses(self) -> str:
        """Why no batch of this network is vectorised; empty where it depends on the samples, or is."""
        if any(part._backward_hooks or part._backward_pre_hooks for part in self.template.modules()):
            return "a backward hook is not vectorised"
        with ThreadPoolExecutor(1) as thread:  # outside of this thread's vmap
            return MOVES if thread.submit(moves_buffers, self.template).result() else ""

    @cached_property
    def template(self) -> nn.Module:
        """A module in training mode, never changed."""
        return self._new_template().train()

    @cached_property
    def evaluation_template(self) -> nn.Module:
        """A module in evaluation mode, never changed."""
        return self._new_template().eval()

    def _new_template(self) -> nn.Module:
        """A module, built in a thread of its own: drawing its weights is forbidden inside a vmap of this one."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._copy).result()

    def _copy(self) -> nn.Module:
        """A copy that shares nothing, should `build` give the same module each time."""
        module = self.build_module()
        refuse_unsupported(module)
        own = copy_module(module)
        for part in own.modules():
            if isinstance(part, nn.RNNBase):
                part.flatten_parameters = _leave_apart  # type: ignore[method-assign]
            if isinstance(part, nn.Embedding | nn.EmbeddingBag):
                part.sparse = False  # the same gradient as a dense row
        return own

    @contextmanager
    def borrow(self, template: nn.Module) -> Iterator[nn.Module]:
        """A copy of the template that nobody else uses meanwhile: weights are put into it to call it."""
        spare = self._spare.setdefault(template.training, [])
        try:
            module = spare.pop()
        except IndexError:
            with ThreadPoolExecutor(1) as thread:  # outside of this thread's vmap
                module = thread.submit(copy_module, template).result()
        yield module
        spare.append(module)  # unless an error, or Ctrl-C, left other weights in it

    @cached_property
    def _spare(self) -> dict[bool, list[nn.Module]]:
        return {}

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Names of the weights that no gradient moves: batch-norm statistics, and what the module froze."""
        frozen = (name for name, w in self.template.named_parameters() if not w.requires_grad)
        return frozenset((*frozen, *(name for name, b in self.template.named_buffers() if b.is_floating_point())))

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights that gradients move, in the network's order."""
        return tuple(name for name, w in self.template.named_parameters() if w.requires_grad)


@dataclass(frozen=True)
class NetworkGradient:
    """The gradient of a network's mean loss over a batch: the rule of plain local training."""

    network: Network

    def __call__(self, params: Params, batch: Batch) -> Gradient:
        return self.network.compute_gradient(params, batch)


class _Gradient(torch.autograd.Function):
    """A gradient as one operation: a vmap hands over plain tensors of all its clients, and autograd takes them at once.

    The gradients of their summed losses are those of each. `torch.func.grad` inside a vmap would give the same, but
    wraps every operation twice, and its first call imports all of torch's compiler, which takes seconds.
    """

    @staticmethod
    def forward(network: Network, names: tuple[str, ...], moved: int, *lane: Tensor) -> tuple[Tensor, ...]:
        return take_gradients(network, names, moved, *(t[None] for t in lane), squeeze=True)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Nothing is kept: meta gradients are of the first order."""

    @staticmethod
    def vmap(
        info: object, dims: tuple[int | None, ...], network: Network, names: tuple[str, ...], moved: int, *lane: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        answer = take_gradients(network, names, moved, *lanes_first(info, lane, dims[3:]))
        return answer, (0,) * len(answer)


def take_gradients(
    network: Network, names: tuple[str, ...], moved: int, x: Tensor, y: Tensor, mask: Tensor, key: Tensor,
    *values: Tensor, squeeze: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of all lanes by the first `moved` values, their weights; then the buffers that they end with."""
    with torch.enable_grad():
        leaves = [w.detach().requires_grad_() for w in values[:moved]]
        with torch.autocast(x.device.type, torch.bfloat16, BFLOAT16.get(), cache_enabled=False):
            losses, buffers = vmap(partial(_lane_pass, network, names))(x, y, mask, key, *leaves, *values[moved:])
        gradients = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)  # 0: unused
    answer = (*gradients, *(b.detach() for b in buffers))
    return tuple(t[0] for t in answer) if squeeze else answer


def _lane_pass(
    network: Network, names: tuple[str, ...], x: Tensor, y: Tensor, mask: Tensor, key: Tensor, *values: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    params = dict(zip(names, values, strict=True))
    weight = params.pop(WEIGHT, None)
    loss, buffers = network.training_pass(params, Batch(x, y, mask, mask.any(), key=key, weight=weight))
    return loss, tuple(buffers[name] for name in names if name in buffers)


def _shapes_of(params: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: w.shape for name, w in params.items()}


def _leave_apart() -> None:
    """Recurrent layers flatten their weights when they are replaced; ours are replaced at each call."""


def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """The numbers as a tensor that is filled on its device, not sent there: a CUDA graph cannot capture a copy."""
    return torch.stack([torch.full((), value, device=device) for value in values])
