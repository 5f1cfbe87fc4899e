"""Models as dicts of tensors, stacks of them, and their weighted averages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor

Params = dict[str, Tensor]  # one model
Stack = dict[str, Tensor]  # models[m]
Value = Tensor | Mapping[str, Tensor]
Payload = Mapping[str, Value]  # what tasks are offered and reply
NOTHING: Mapping[str, Tensor] = MappingProxyType({})
MANY = 32  # models of which each has at most one in so many of the weights: a CPU multiplies by these alone


def each_leaf(f: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Params:
    """The dict of f(a[k], b[k], …) for every name k of the first tree."""
    return {name: f(*(tree[name] for tree in trees)) for name in trees[0]}


def select(models: Stack, index: Tensor | int | slice) -> Stack:
    """Models `index` of a stack; one model, without the leading axis, when index is a single number."""
    return each_leaf(lambda w: w[index], models)


def put(models: Stack, index: Tensor, values: Stack) -> Stack:
    """A copy of the stack with rows `index` replaced by `values`."""
    return each_leaf(lambda w, v: w.index_copy(0, index, v), models, values)


def repeat(params: Params, times: int) -> Stack:
    """`times` copies of one model, stacked."""
    return each_leaf(lambda w: w.expand(times, *w.shape).clone(), params)


def lanes_first(info: object, tensors: Sequence[Tensor], dims: Sequence[int | None]) -> tuple[Tensor, ...]:
    """What a vmap hands over, with the clients in front: [lanes, ...]; what they share is repeated."""
    lanes = cast("int", getattr(info, "batch_size"))  # noqa: B009 - torch has no type for it
    return tuple(
        t.expand(lanes, *t.shape) if dim is None else t.movedim(dim, 0) for t, dim in zip(tensors, dims, strict=True)
    )


def stack(models: Sequence[Params]) -> Stack:
    """Several models as one stack."""
    return each_leaf(lambda *ws: torch.stack(ws), *models)


def join(*stacks: Stack) -> Stack:
    """Stacks one after the other."""
    return each_leaf(lambda *ws: torch.cat(ws), *stacks)


def join_in_order(orders: Sequence[list[int]], stacks: Iterable[Stack]) -> Stack:
    """Stacks as one, in which row orders[n][i] is the i-th of the n-th; a single one that is in order stays as it is.

    Each is copied to its place before the next one is made, so that not all of them are held beside the whole.
    """
    total, parts, whole = sum(map(len, orders)), iter(stacks), dict[str, Tensor]()
    for order in orders:
        part = next(parts)
        if order == list(range(total)):
            return part
        whole = whole or each_leaf(lambda t: t.new_empty(total, *t.shape[1:]), part)
        _put_in_place(whole, torch.tensor(order), part)
        del part
    return whole


def _put_in_place(models: Stack, index: Tensor, values: Stack) -> None:
    """Replaces rows `index` of the stack by `values`."""
    for name, t in values.items():
        index = index.to(t.device)  # once: each copy to a GPU waits for it
        models[name].index_copy_(0, index, t)


def count(models: Stack) -> int:
    """How many models a stack holds."""
    return len(next(iter(models.values())))


def to_matrix(tensor: Tensor) -> Tensor:
    """Each entry of the leading axis as one long vector: [entries, numbers]."""
    return tensor.reshape(len(tensor), tensor.shape[1:].numel())


def flatten(models: Stack) -> Tensor:
    """Each model as one long vector: [models, parameters]."""
    return torch.cat([to_matrix(w) for w in models.values()], 1)


def unflatten(vectors: Tensor, like: Stack) -> Stack:
    """The models that `flatten` turned into these vectors, with the names, shapes and dtypes of `like`."""
    parts = vectors.split([w.shape[1:].numel() for w in like.values()], 1)
    return {
        name: part.reshape(len(part), *w.shape[1:]).to(w.dtype)
        for part, (name, w) in zip(parts, like.items(), strict=True)
    }


def subtract(a: Params, b: Params) -> Params:
    """a - b, name by name."""
    return each_leaf(torch.sub, a, b)


def tensor_in(payload: Payload, name: str) -> Tensor:
    """The tensor of this name in a payload."""
    value = payload[name]
    if not isinstance(value, Tensor):
        raise TypeError(f"'{name}' is a model, wanted one tensor")
    return value


def model_in(payload: Payload, name: str) -> Params:
    """The model, or the stack of models, of this name in a payload."""
    value = payload[name]
    if isinstance(value, Tensor):
        raise TypeError(f"'{name}' is one tensor, wanted a model")
    return dict(value)


def to_flat(payload: Payload) -> Params:
    """A payload as one flat dict; the name of a nested tensor is `outer/inner`."""
    flat: Params = {}
    for name, value in payload.items():
        if isinstance(value, Tensor):
            flat[name] = value
        else:
            flat |= {f"{name}/{inner}": tensor for inner, tensor in value.items()}
    return flat


def from_flat(flat: Mapping[str, Tensor]) -> dict[str, Tensor | Params]:
    """The payload that `to_flat` turned into this flat dict."""
    payload: dict[str, Tensor | Params] = {}
    for path, tensor in flat.items():
        outer, _, inner = path.partition("/")
        if inner:
            nested = payload.setdefault(outer, {})
            assert isinstance(nested, dict)
            nested[inner] = tensor
        else:
            payload[outer] = tensor
    return payload


def bytes_of(payload: Payload) -> int:
    """Bytes of all tensors of a payload."""
    return sum(t.numel() * t.element_size() for t in to_flat(payload).values())


def mix(weights: Tensor, *stacks: Stack) -> Stack:
    """Weighted sums of models: row m is Σₖ weights[m, k] · models[k], where the models are those of all stacks."""
    parts = weights.split([count(stack) for stack in stacks], 1)
    if len(weights) >= MANY and weights.device.type == "cpu" and MANY * weights.count_nonzero() <= weights.numel():
        parts = tuple(part.to_sparse() for part in parts)  # each of many models is that of few clients
    return each_leaf(lambda *leaves: _mixed(parts, leaves), *stacks)


def _mixed(weights: Sequence[Tensor], leaves: Sequence[Tensor]) -> Tensor:
    """The same for one tensor of each stack; they are many and large, so none is copied."""
    total = weights[0].to(leaves[0].dtype) @ to_matrix(leaves[0])
    for part, leaf in zip(weights[1:], leaves[1:], strict=True):
        total.addmm_(part.to(leaf.dtype), to_matrix(leaf))
    return total.reshape(len(total), *leaves[0].shape[1:])


def average(models: Stack, sizes: Tensor) -> Params:
    """The mean of all models, weighted by `sizes`."""
    return select(mix((sizes / sizes.sum())[None], models), 0)


def interpolate(start: Params, end: Params, amount: Tensor | float) -> Params:
    """A model on the line between two: 0 is the first, 1 the second."""
    return each_leaf(lambda a, b: a + (amount * (b - a)).to(a.dtype), start, end)


def mix_contributors(models: Stack, weights: Tensor, *replies: Stack) -> Stack:
    """Models replaced by the weighted mean of their contributors' ones; one without contributors stays as it is."""
    return put_mixes(models, weights, lambda shares: mix(shares, *replies))


def put_mixes(models: Stack, weights: Tensor, mix_shares: Callable[[Tensor], Stack]) -> Stack:
    """Models replaced by what is mixed of their contributors' shares; one without contributors stays as it is."""
    updated = (weights.sum(1) > 0).nonzero()[:, 0]
    if not len(updated):
        return models
    some = weights[updated]
    means = mix_shares(some / some.sum(1, keepdim=True))
    return means if len(updated) == len(weights) else put(models, updated, means)


def one_hot(labels: Tensor, clusters: int) -> Tensor:
    """Membership as a matrix: [clusters, len(labels)], 1 where the label is the row."""
    return (labels[None] == torch.arange(clusters, device=labels.device)[:, None]).float()
