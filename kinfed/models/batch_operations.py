"""Operations of torch as they act on the padded batch of one client, in a `vmap` over clients or outside of one.

Operations that would draw from a generator that all clients share draw keyed numbers instead: a mask of dropout hangs
on (key of the batch, n-th draw of the forward pass, sample, position) alone, so neither padding nor the block changes
it. Batch statistics leave padding out. Attention and recurrent layers, which a `vmap` refuses, are written out.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from math import prod
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kinfed.client import Batch
from kinfed.errors import SequentialOnly
from kinfed.keys import fold, hash_bits
from kinfed.models.convolutions import CONVOLUTIONS, group_norm
from kinfed.models.recurrent import CELLS, RECURRENT, Recurrence, is_packed, run_layers
from kinfed.registry import is_installed

ALPHA = -1.7580993408473766  # what SELU tends to for large negative numbers
Shape = tuple[int, ...]


class BatchOperations(TorchFunctionMode):
    """Inside it a module's forward pass is that of one client in training or, without a batch, in evaluation."""

    def __init__(
        self, batch: Batch | None = None, buffers: Mapping[str, Tensor] | None = None, *, alone: bool = False
    ) -> None:
        super().__init__()
        self.batch = batch
        self.alone = alone  # batch statistics are of each sample by itself
        self.names = {id(b): name for name, b in (buffers or {}).items()}
        self.moved: dict[str, Tensor] = {}  # buffers that the pass has moved, by name
        self.draws = 0  # so far
        self.used: set[str] = set()  # rules that the pass met

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule, named = RULES.get(func), kwargs or {}
        if rule is None:
            return func(*args, **named)
        first = (named.pop("input"),) if "input" in named else ()
        return rule(self, *first, *args, **named)

    @property
    def is_exact(self) -> bool:
        """Whether there is no padding, and no `vmap`."""
        return self.batch is not None and self.batch.exact

    def draw(self, shape: Shape, dropped: float, like: Tensor) -> Tensor:
        """Which of these numbers are kept, as factors: 1 / (1 - p), and 0 for those dropped out."""
        assert self.batch is not None
        self.used.add("draw")
        self.draws += 1
        key = self.batch.key if self.batch.key is not None else like.new_zeros((), dtype=torch.long)
        axis = _batch_axis(shape, len(self.batch.x))
        ordered = (shape[axis], *shape[:axis], *shape[axis + 1 :])
        apply = cast("Callable[..., Tensor]", _Keep.apply)
        flat = apply(fold(key, self.draws), prod(shape), dropped, like.dtype)
        return flat.view(ordered).movedim(0, axis)

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * self.draw(tuple(x.shape), p, x) if self._drops(p, training) else x

    def feature_dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Whole channels at once."""
        return x * self.draw(_per_channel(x), p, x) if self._drops(p, training) else x

    def alpha_dropout(self, x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
        return self._alpha_dropout(x, tuple(x.shape), p) if self._drops(p, training) else x

    def feature_alpha_dropout(self, x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
        return self._alpha_dropout(x, _per_channel(x), p) if self._drops(p, training) else x

    def _alpha_dropout(self, x: Tensor, shape: Shape, p: float) -> Tensor:
        kept = (self.draw(shape, p, x) > 0).to(x.dtype)
        scale = ((1 - p) * (1 + p * ALPHA**2)) ** -0.5 if p < 1 else 0.0
        return scale * (x * kept + ALPHA * (1 - kept) - ALPHA * p)

    def _drops(self, p: float, training: bool) -> bool:
        if training and p > 0 and self.batch is None:
            self.used.add("draw in evaluation")
        return training and p > 0 and self.batch is not None

    def batch_norm(
        self, x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
        bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        """Normalised by the batch's statistics; a single sample by the running ones, where there are some."""
        self.used.add("batch statistics")
        batch = self.batch
        if self.alone and x.dim() > 2:
            return normalise_alone(x, weight, bias, eps)
        if not training and running_mean is not None and running_var is not None and not self.is_exact:
            return normalise(x, running_mean, running_var, weight, bias, eps)
        if not training or batch is None or (batch.exact and len(batch.x) > 1):
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        share, count, has_several = self.shares
        own = torch.ones_like(has_several) if running_mean is None else has_several
        before = [
            x.new_full((x.shape[1],), value) if t is None else t
            for t, value in ((running_mean, 0.0), (running_var, 1.0))
        ]
        affine = [x.new_full((x.shape[1],), value) if t is None else t for t, value in ((weight, 1.0), (bias, 0.0))]
        apply = cast("Callable[..., tuple[Tensor, Tensor, Tensor]]", _BatchNorm.apply)
        y, mean, var = apply(x, share, own, *before, *affine, eps)
        if running_mean is not None:
            numbers = count * prod(x.shape[2:])
            unbiased = var * (numbers / (numbers - 1).clamp(min=1))
            for running, now in ((running_mean, mean), (running_var, unbiased)):
                self._move(running, now, momentum, own & batch.live)
        return y

    @cached_property
    def shares(self) -> tuple[Tensor, Tensor, Tensor]:
        """What each sample counts in batch statistics, how many samples do, and whether several; for all layers.

        An empty batch moves nothing, but must stay finite: there padding counts.
        """
        assert self.batch is not None
        mask = self.batch.mask | ~self.batch.live
        count = mask.sum()
        counted = mask.double() if self.batch.x.dtype == torch.double else mask  # else shares are of single precision
        return counted / count, count, count > 1

    def instance_norm(
        self, x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
        weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        """Each sample normalised by its own statistics; running ones are means over the real samples."""
        batch = self.batch
        if not use_input_stats and running_mean is not None and running_var is not None and not self.is_exact:
            return normalise(x, running_mean, running_var, weight, bias, eps)  # torch 2.8's own: in no vmap
        if not use_input_stats or batch is None or batch.exact:
            return F.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        if running_mean is not None:
            share = batch.mask / batch.mask.sum().clamp(min=1)
            var, mean = torch.var_mean(x.detach().flatten(2), 2)
            for running, now in ((running_mean, mean), (running_var, var)):
                self._move(running, (share[:, None] * now).sum(0), momentum, batch.live)
        return F.instance_norm(x, None, None, weight, bias, True, momentum, eps)

    def group_norm(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Ours in training on a GPU, where convolutions leave channels innermost."""
        native = self.batch is None or self.is_exact or not x.is_cuda
        return (F.group_norm if native else group_norm)(x, *args, **kwargs)

    def _move(self, running: Tensor | None, now: Tensor, momentum: float, moves: Tensor) -> None:
        """Notes what a running statistic becomes."""
        if running is None:
            return
        name = self.names[id(running)]
        before = self.moved.get(name, running)  # a layer may be called twice
        self.moved[name] = torch.where(moves, before + momentum * (now.detach() - before), before)

    def embedding(
        self, x: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
    ) -> Tensor:  # fmt: skip
        """Rows of a table; that of padding has no gradient, but in a `vmap` of torch's own only the first client's."""
        if self.is_exact or self.batch is None:
            return F.embedding(x, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        if scale_grad_by_freq:
            raise SequentialOnly("scale_grad_by_freq of an embedding is not vectorised")
        y = F.embedding(x, weight)
        return y if padding_idx is None else torch.where((x == padding_idx % len(weight))[..., None], y.detach(), y)

    def embedding_bag(
        self, x: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
        norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
        per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Sums, means or maxima over rows of a table, without those of padding; written out, as torch's own loops."""
        if self.is_exact:
            return F.embedding_bag(
                x, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
                include_last_offset, padding_idx,
            )  # fmt: skip
        if offsets is not None:
            raise SequentialOnly("offsets of an embedding bag are not vectorised")
        rows = self.embedding(x, weight, scale_grad_by_freq=scale_grad_by_freq)
        rows = rows if per_sample_weights is None else rows * per_sample_weights[..., None]
        kept = torch.ones_like(x, dtype=torch.bool) if padding_idx is None else x != padding_idx % len(weight)
        if mode == "max":
            return torch.where(kept.any(1)[:, None], rows.masked_fill(~kept[..., None], -torch.inf).amax(1), 0.0)
        total = (rows * kept[..., None]).sum(1)
        return total if mode == "sum" else total / kept.sum(1).clamp(min=1)[:, None]

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """Scaled dot-product attention, written out."""
        self.used.add("written out")
        if self.is_exact and not dropout_p:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(ahead, -torch.inf)
        if attn_mask is not None:
            is_flag = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if is_flag else scores + attn_mask
        return self.dropout(scores.softmax(-1), dropout_p) @ value

    def multi_head_attention(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        with self:  # what it calls meets the rules as well
            answer: tuple[Tensor, Tensor | None] = MULTI_HEAD_ATTENTION(*args, **kwargs)
            return answer

    def pack(self, *args: Any) -> tuple[Tensor, ...]:
        """Sequences without their padding: as many numbers as they are long, which differs from client to client."""
        if not self.is_exact:
            raise SequentialOnly("packed sequences are not vectorised")
        return torch._pack_padded_sequence(*args)

    def recur(self, kind: str, x: Tensor, *args: Any) -> tuple[Tensor, ...]:
        """Recurrent layers, step by step where they are in a `vmap`; by torch's own function otherwise."""
        self.used.add("written out")
        if self.is_exact and is_packed(args):
            return cast("tuple[Tensor, ...]", RECURRENT[kind](x, *args))
        layers = Recurrence.parse(kind, x, args)
        if self.is_exact and not (layers.dropout and layers.training):
            return cast("tuple[Tensor, ...]", RECURRENT[kind](x, *args))
        return run_layers(layers, x, self.dropout, native=self.is_exact)

    def cell(self, kind: str, *args: Any) -> Tensor | tuple[Tensor, ...]:
        self.used.add("written out")
        native, own = CELLS[kind]
        return cast("Tensor", (native if self.is_exact else own)(*args))

    def convolve(self, native: Callable[..., Tensor], own: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return (native if self.is_exact or not args[0].is_cuda else own)(*args, **kwargs)


def _batch_axis(shape: Shape, samples: int) -> int:
    """The axis of the samples: the first if it counts them, perhaps several times; else the one as long."""
    return 0 if shape[0] % samples == 0 or samples not in shape else shape.index(samples)


def _per_channel(x: Tensor) -> Shape:
    return (*x.shape[:2], *(1,) * (x.dim() - 2))


class _Keep(torch.autograd.Function):
    """Factors 1 / (1 - p) and 0 by chance, four of each keyed 64-bit number."""

    @staticmethod
    def forward(key: Tensor, count: int, dropped: float, dtype: torch.dtype) -> Tensor:
        return draw_kept(key[None], count, dropped, dtype)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: object, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], key: Tensor, count: int, dropped: float, dtype: torch.dtype
    ) -> tuple[Tensor, int]:
        keys = key.expand(info.batch_size) if dims[0] is None else key
        return draw_kept(keys, count, dropped, dtype), 0


def draw_kept(keys: Tensor, count: int, dropped: float, dtype: torch.dtype) -> Tensor:
    """Factors 1 / (1 - p) and 0 by chance, of each key: [keys, count]."""
    if keys.is_cuda and is_installed("triton"):
        from kinfed.kernels.dropout_kernel import draw_factors  # Triton's own import is heavy, and needs a GPU

        return draw_factors(keys.contiguous(), count, threshold_of(dropped), scale_of(dropped), dtype)
    position = hash_bits(torch.arange(-(-count // 4), device=keys.device) * 2 + 1)
    bits = hash_bits(keys[:, None] + position).view(torch.int16)[:, :count]
    kept = bits >= threshold_of(dropped)
    return kept.to(dtype) * scale_of(dropped)


def threshold_of(dropped: float) -> int:
    """The least signed 16-bit number that is kept."""
    return round(dropped * 2**16) - 2**15


def scale_of(dropped: float) -> float:
    """What the numbers that are kept are multiplied by."""
    return 1 / (1 - dropped) if dropped < 1 else 0.0


class _BatchNorm(torch.autograd.Function):
    """x normalised by its mean and variance, each sample of which counts by its share; and these two.

    Where `own` is false, the running ones take their place.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, share: Tensor, own: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        inner, parts = _inner_axes(x), share[:, None]
        by_var, by_mean = torch.var_mean(x, inner, correction=0) if inner else (torch.zeros_like(x), x)
        mean = torch.where(own, (parts * by_mean).sum(0), running_mean)
        var = torch.where(own, (parts * (by_var + (by_mean - mean).square())).sum(0), running_var)
        scale = weight * (var + eps).rsqrt()
        return torch.addcmul(_wide(bias - mean * scale, x), x, _wide(scale, x)), mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, share, own, _, _, weight, _, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, share, own, weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: object) -> tuple[Tensor | None, ...]:
        x, share, own, weight, mean, var = ctx.saved_tensors
        inner, inverse = _inner_axes(x), (var + ctx.eps).rsqrt()
        centred = x - _wide(mean, x)
        by_bias = _sum_inner(gradient, inner).sum(0)
        by_weight = inverse * _sum_inner(gradient * centred, inner).sum(0)
        parts = (share * own / prod(x.shape[2:]))[:, None]  # of each number in the statistics
        offset, factor = -parts * (weight * inverse * by_bias), -parts * (weight * inverse.square() * by_weight)
        shape = (*offset.shape, *(1,) * len(inner))
        by_x = torch.addcmul(offset.view(shape), centred, factor.view(shape))
        return (
            torch.addcmul(by_x, gradient, _wide(weight * inverse, x)), None, None, None, None, by_weight, by_bias, None,
        )  # fmt: skip


def _inner_axes(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _sum_inner(x: Tensor, axes: list[int]) -> Tensor:
    return x.sum(axes) if axes else x


def _wide(channels: Tensor, x: Tensor) -> Tensor:
    return channels.view(-1, *(1,) * (x.dim() - 2))


def _never(*_: object) -> bool:
    return False


def _copy_without_overrides(function: FunctionType) -> Callable[..., Any]:
    """The same function of torch; it does not ask modes whether they stand in for it, while what it calls does."""
    inner = function.__globals__ | {"has_torch_function": _never}
    copy = FunctionType(function.__code__, inner, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _bind(method: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    return lambda ops, *args, **kwargs: method(ops, *first, *args, **kwargs)


def normalise(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """torch's `batch_norm` by running statistics; on a GPU it asks for a memory format, unknown in a `vmap`."""
    scale = (var + eps).rsqrt() if weight is None else weight * (var + eps).rsqrt()
    shift = -mean * scale if bias is None else bias - mean * scale
    wide = (-1,) + (1,) * (x.dim() - 2)
    return x * scale.view(wide) + shift.view(wide)


def normalise_alone(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """torch's `batch_norm` in training of each sample as a batch of its own."""
    var, mean = torch.var_mean(x, _inner_axes(x), correction=0, keepdim=True)
    y = (x - mean) * (var + eps).rsqrt()
    y = y if weight is None else y * _wide(weight, x)
    return y if bias is None else y + _wide(bias, x)


MULTI_HEAD_ATTENTION = _copy_without_overrides(cast("FunctionType", F.multi_head_attention_forward))
RULES: dict[object, Callable[..., Any]] = {
    F.dropout: BatchOperations.dropout,
    F.dropout1d: BatchOperations.feature_dropout,
    F.dropout2d: BatchOperations.feature_dropout,
    F.dropout3d: BatchOperations.feature_dropout,
    F.alpha_dropout: BatchOperations.alpha_dropout,
    F.feature_alpha_dropout: BatchOperations.feature_alpha_dropout,
    F.batch_norm: BatchOperations.batch_norm,
    F.instance_norm: BatchOperations.instance_norm,
    F.group_norm: BatchOperations.group_norm,
    F.embedding: BatchOperations.embedding,
    F.embedding_bag: BatchOperations.embedding_bag,
    F.scaled_dot_product_attention: BatchOperations.attention,
    F.multi_head_attention_forward: BatchOperations.multi_head_attention,
    torch._pack_padded_sequence: BatchOperations.pack,
    **{native: _bind(BatchOperations.recur, kind) for kind, native in RECURRENT.items()},
    **{native: _bind(BatchOperations.cell, kind) for kind, (native, _) in CELLS.items()},
    **{native: _bind(BatchOperations.convolve, native, own) for native, own in CONVOLUTIONS.items()},
}
