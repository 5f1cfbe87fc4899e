"""What a client task may look at (`Client`), what it replies (`Reply`), and the mark of what may cross the wire."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar, get_origin, overload, runtime_checkable

import torch
from torch import Tensor

from kinfed.cancellation import raise_if_cancelled
from kinfed.errors import ConfigError
from kinfed.keys import LAST, fold
from kinfed.params import NOTHING, Params, Payload


class Batch(NamedTuple):
    x: Tensor  # [b, ...]
    y: Tensor  # [b]
    mask: Tensor  # [b] bool: false rows are padding
    live: Tensor  # scalar bool: the batch has a row that counts
    exact: bool = False  # no padding at all, known beforehand

    def part(self, which: slice) -> "Batch":
        """Some of its rows as a batch."""
        mask = self.mask[which]
        return Batch(self.x[which], self.y[which], mask, mask.any(), self.exact)


class Reply(NamedTuple):
    send: Payload  # crosses the wire
    keep: Payload = NOTHING  # stays on the client until its next task


@dataclass(frozen=True)
class Samples:
    """Samples of one client: row i is x[index[i]], y[index[i]]; rows from `size` on are padding."""

    x: Tensor  # a pool that many clients may share
    y: Tensor
    index: Tensor  # [n]
    size: Tensor  # scalar
    exact: bool = False  # n == size, known beforehand
    width: int = 256  # rows to look at in one go; the same for all clients of a federation
    longest: int = LAST // 2  # rows of the client that has most; the same for all clients of a federation

    def __len__(self) -> int:
        return len(self.index)

    def take(self, pick: Tensor, mask: Tensor, live: Tensor) -> Batch:
        """The rows `pick` as a batch."""
        raise_if_cancelled()
        at = self.index[pick]
        return Batch(self.x[at], self.y[at], mask, live, self.exact)

    def in_order(self) -> Iterator[Batch]:
        """All rows once, in their own order.

        Padded rows come in batches of exactly `width`: whoever sums batch by batch gets the same bits for any padding.
        """
        for start in range(0, len(self), self.width):
            end = min(start + self.width, len(self)) if self.exact else start + self.width
            position = torch.arange(start, end, device=self.index.device)
            mask = position < self.size
            yield self.take(position.clamp(max=len(self) - 1), mask, mask.any())

    def fitting(self, batch_size: int) -> int:
        """The rows of a batch, without those that no client could fill; for any padding as many."""
        return min(batch_size, max(1, len(self) if self.exact else self.longest))

    def shuffled(self, key: Tensor) -> Tensor:
        """Positions of all rows in a random order fixed by key; padding comes last."""
        position = torch.arange(len(self), device=self.index.device)
        return torch.where(position < self.size, fold(key, position) >> 1, LAST).argsort(stable=True)


def width_of(lengths: Iterable[int]) -> int:
    """Samples to look at in one go where clients have so many: bounded, and the same for every client.

    About as many as a client has on average: filled up to the longest, most of what is looked at would be padding.
    """
    known = list(lengths)
    mean = -(-sum(known) // max(1, len(known)))
    return max(1, min(256, max(known), 1 << max(0, mean - 1).bit_length()))


@dataclass(frozen=True)
class Client:
    """All that a client task may look at."""

    train: Samples
    test: Samples
    key: Tensor  # scalar int64
    round: Tensor  # scalar int64: the round the server is in
    since: Tensor  # scalar int64: the round its present data came in
    memory: Payload

    def batches(self, epochs: int, batch_size: int) -> Iterator[Batch]:
        """Mini-batches of the training rows, reshuffled every epoch; the last, incomplete one is kept.

        With padding, all real batches of all epochs come first and empty ones last, so that an optimiser's
        momentum never meets an empty batch between two real ones.
        """
        if self.train.exact:
            batch_size = self.train.fitting(batch_size)
            for epoch in range(epochs):
                order = self.train.shuffled(fold(self.key, epoch))
                for start in range(0, len(order), batch_size):
                    pick = order[start : start + batch_size]
                    yield self.train.take(pick, torch.ones_like(pick, dtype=torch.bool), torch.ones_like(pick[0] >= 0))
            return
        pick, mask = self.schedule(epochs, batch_size)
        for step in range(len(pick)):
            yield self.train.take(pick[step], mask[step], mask[step].any())

    def schedule(self, epochs: int, batch_size: int, parts: int = 1) -> tuple[Tensor, Tensor]:
        """Positions and masks of all batches of padded rows: [steps, b] each; the real batches come first.

        No batch, and no part of one that will be cut into equal parts, is wider than the longest client has rows.
        """
        batch_size = parts * self.train.fitting(batch_size // parts)
        orders = [self.train.shuffled(fold(self.key, epoch)) for epoch in range(epochs)]
        order, n, size = torch.stack(orders).flatten(), len(self.train), self.train.size
        per_epoch = (size + batch_size - 1) // batch_size
        step = torch.arange(epochs * -(-n // batch_size), device=size.device)[:, None]
        epoch, slot = step // per_epoch, (step % per_epoch) * batch_size + torch.arange(batch_size, device=size.device)
        mask = (slot < size) & (epoch < epochs)
        return order[epoch.clamp(max=epochs - 1) * n + slot.clamp(max=n - 1)], mask

    def feed(self, epochs: int, batch_size: int, parts: int = 1) -> tuple[Tensor, Tensor]:
        """The same as rows of the pool: what training in one go takes."""
        pick, mask = self.schedule(epochs, batch_size, parts)
        return self.train.index[pick], mask

    def recall(self, name: str) -> Tensor:
        """One remembered tensor."""
        value = self.memory[name]
        assert isinstance(value, Tensor)
        return value

    def recall_model(self, name: str) -> Params:
        """One remembered model."""
        value = self.memory[name]
        assert not isinstance(value, Tensor)
        return dict(value)

    def steps(self, epochs: int, batch_size: int) -> Tensor:
        """How many of these batches are real."""
        batch_size = self.train.fitting(batch_size)
        return epochs * ((self.train.size + batch_size - 1) // batch_size)


Task = Callable[..., Reply]
F = TypeVar("F", bound=Task)
MARK = "client_task"  # the attribute that holds a task's mark
UNMARKED = "'{}' is no client task: mark it with @client_task (kinfed.client)"


@runtime_checkable
class HasMemory(Protocol):
    """A method whose clients remember something from one task to the next."""

    def initial_memory(self) -> Payload:
        """Client: what it remembers before its first task."""


class TaskMark(NamedTuple):
    key: str  # seeds the task's random numbers
    sequential: bool  # it is not a pure tensor program: engines loop over the clients


@overload
def client_task(task: F) -> F: ...


@overload
def client_task(*, key: str = "", sequential: bool = False) -> Callable[[F], F]: ...


def client_task(task: F | None = None, *, key: str = "", sequential: bool = False) -> F | Callable[[F], F]:
    """Marks a function f(self, client, weights or tensors …) -> Reply as one that clients run.

    Its random numbers hang on `key`, which is its name unless another is given.
    """

    def mark(task: F) -> F:
        check_task(task)
        vars(task)[MARK] = TaskMark(key or task.__name__, sequential)
        return task

    return mark if task is None else mark(task)


def mark_of(task: Task) -> TaskMark | None:
    """The mark of a task; None where it has none."""
    mark: TaskMark | None = getattr(task.func if isinstance(task, partial) else task, MARK, None)
    return mark


def check_task(task: Task) -> None:
    """Raises ConfigError unless the signature says what crosses the wire: a client cannot check an offer otherwise."""
    parameters, says = inspect.signature(task).parameters, f"client task '{task.__qualname__}'"
    if list(parameters)[1:2] != ["client"]:
        raise ConfigError(f"{says} takes ({', '.join(parameters)}), wanted (self, client, …)")
    for parameter in list(parameters.values())[2:]:
        if not is_payload(parameter):
            raise ConfigError(f"{says}: annotate '{parameter.name}' as Params, Stack, Mapping or Tensor")
    if inspect.signature(task).return_annotation not in (Reply, "Reply"):
        raise ConfigError(f"{says}: annotate what it returns as Reply")


def is_payload(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is one or several models, or a tensor; an annotation may be a text."""
    hint = parameter.annotation
    if parameter.kind is parameter.VAR_KEYWORD:
        return hint is not parameter.empty
    text = hint.partition("[")[0] if isinstance(hint, str) else ""
    return hint is Tensor or text in ("Tensor", "Params", "Stack", "Mapping") or get_origin(hint) in (dict, Mapping)
