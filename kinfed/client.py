"""What a client task may look at (`Client`), what it replies (`Reply`), and the mark of what may cross the wire."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice, repeat
from types import MethodType
from typing import NamedTuple, Protocol, TypeVar, get_origin, overload, runtime_checkable

import torch
from torch import Tensor

from kinfed.copies import Copies, find_copies
from kinfed.errors import ConfigError, raise_if_cancelled
from kinfed.keys import LAST, base_key, fold, fold_number, normal, permute
from kinfed.params import NOTHING, Params, Payload
from kinfed.ranges import Range
from kinfed.targets import is_known


class Batch(NamedTuple):
    """Samples of one client that are looked at together, some of them padding."""

    x: Tensor  # [b, ...]
    y: Tensor  # [b]
    mask: Tensor  # [b] bool: false: padding
    live: Tensor  # scalar bool: the batch has a real sample
    exact: bool = False  # no padding at all, known beforehand
    key: Tensor | None = None  # scalar int64: of what a network draws in training (Dropout); None: of no client
    weight: Tensor | None = None  # [b] how much each sample counts in the loss; None: 1

    def part(self, which: slice) -> "Batch":
        """Some of its samples as a batch."""
        mask, key = self.mask[which], None if self.key is None else fold(self.key, 1 if which.start else 0)
        weight = None if self.weight is None else self.weight[which]
        return Batch(self.x[which], self.y[which], mask, mask.any(), self.exact, key, weight)

    def mean(self, each: Tensor) -> Tensor:
        """The mean over real samples of what each has ([b]), times the weights of samples."""
        if self.exact and self.weight is None and not each.is_cuda and bool(self.mask.all()):
            return each.mean()  # the same number, by fewer operations
        weighted = each if self.weight is None else each * self.weight
        return (weighted * self.mask).sum() / self.mask.sum().clamp(min=1)


class Reply(NamedTuple):
    """What a client task gives back."""

    send: Payload  # crosses the wire
    keep: Payload = NOTHING  # stays on the client until its next task


class KnownOutputs(NamedTuple):
    """What models that several clients use make of test samples that several of them have, evaluated once."""

    table: Tensor  # [models · different, ...]
    place: Tensor  # [pool] where a sample is among the different ones
    different: int
    model: Tensor | None = None  # the model that a client uses: a scalar, or [clients]; None: it selects one

    def look_up(self, model: Tensor, at: Tensor) -> Tensor:
        """The outputs of this model for these samples of the pool."""
        return self.table[model * self.different + self.place[at]]


@dataclass(frozen=True)
class Samples:
    """Samples of one client: sample i is x[index[i]], y[index[i]]; from `size` on they are padding."""

    x: Tensor  # a pool that many clients may share
    y: Tensor
    index: Tensor  # [n]
    size: Tensor  # scalar
    exact: bool = False  # n == size, known beforehand
    width: int = 256  # samples to look at in one go; the same for all clients of a federation
    longest: int = LAST // 2  # samples of the client that has most; the same for all clients of a federation
    weights: Tensor | None = None  # [n] how much each counts in the loss of training; None: 1
    names: Tensor | None = None  # [pool, 3] by which copies are found; None: there are none, or nobody asks
    outputs: KnownOutputs | None = None  # of the models that its client may use; None: nobody has evaluated them

    def __len__(self) -> int:
        return len(self.index)

    def take(self, pick: Tensor, mask: Tensor, live: Tensor, key: Tensor | None = None) -> Batch:
        """The samples `pick` as a batch."""
        raise_if_cancelled()
        at = self.index[pick]
        return Batch(self.x[at], self.y[at], mask, live, self.exact, key, self.weights_at(pick))

    def weights_at(self, pick: Tensor) -> Tensor | None:
        """The weights of the samples at these positions; None where all count the same."""
        return None if self.weights is None else self.weights[pick]

    def in_order(self) -> Iterator[Batch]:
        """All samples once, in their own order.

        Padded samples come in batches of exactly `width`: sums over batches then have the same bits for any padding.
        """
        for position, mask in self._positions():
            yield self.take(position, mask, mask.any())

    def look_up(self, known: KnownOutputs, model: Tensor) -> Iterator[tuple[Batch, Tensor]]:
        """The same batches, but without x, and what this model is known to make of each."""
        for position, mask in self._positions():
            raise_if_cancelled()
            at = self.index[position]
            yield Batch(self.x[:0], self.y[at], mask, mask.any(), self.exact), known.look_up(model, at)

    def _positions(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Positions and masks of the batches of `in_order`."""
        for start in range(0, len(self), self.width):
            end = min(start + self.width, len(self)) if self.exact else start + self.width
            position = torch.arange(start, end, device=self.index.device)
            yield position.clamp(max=len(self) - 1), position < self.size

    def clip(self, batch_size: int) -> int:
        """The batch size, at most the samples of the longest client; the same for any padding."""
        return min(batch_size, max(1, len(self) if self.exact else self.longest))

    def hold_out(self, every: int) -> tuple["Samples", "Samples"]:
        """Every so many samples one is held out: the samples to train on, and those held out.

        The sample before it stands in for it, so that training takes as many steps as with all samples. Copies of a
        held-out sample are not trained on either, and it is held out once.
        """
        copies, position = self.find_copies(), torch.arange(len(self), device=self.index.device)
        if copies is None:
            kept, out = position - ((position + 1) % every == 0).long(), position[every - 1 :: every]
            return self.pick(kept, self.size), self.pick(out, self.size // every)
        is_held = (copies.rank + 1) % every == 0
        kept = torch.where(is_held, 0, position).cummax(0).values  # the last before it that is not held out
        return self.pick(kept, self.size), self.pick(copies.positions()[every - 1 :: every], copies.distinct // every)

    def drop_copies(self) -> "Samples":
        """Its different samples, each once, in their order."""
        copies = self.find_copies()
        return self if copies is None else self.pick(copies.positions(), copies.distinct)

    def find_copies(self) -> Copies | None:
        """Which of its samples are copies of others; None where nobody can have any."""
        if self.names is None:
            return None
        return find_copies(self.names[self.index], torch.arange(len(self), device=self.index.device) < self.size)

    def pick(self, at: Tensor, size: Tensor) -> "Samples":
        """So many of the samples at these positions [n]; where there is no padding, there is none after."""
        at = at[: int(size)] if self.exact else at
        return replace(self, index=self.index[at], weights=self.weights_at(at), size=size)

    def has_label(self) -> Tensor:
        """Whether one of its real samples has a label: scalar bool."""
        real = torch.arange(len(self), device=self.index.device) < self.size
        return (real & is_known(self.y[self.index])).any()

    def shuffle(self, key: Tensor) -> Tensor:
        """Positions of all samples in a random order fixed by key; padding comes last."""
        position = torch.arange(len(self), device=self.index.device)
        return torch.where(position < self.size, fold(key, position) >> 1, LAST).argsort(stable=True)


def width_of(lengths: Iterable[int]) -> int:
    """Samples to look at in one go where clients have so many: bounded, and the same for every client.

    About as many as a client has on average: padded to the longest, most of them would be padding.
    """
    known = list(lengths)
    mean = -(-sum(known) // max(1, len(known)))
    return max(1, min(256, max(known), 1 << max(0, mean - 1).bit_length()))


@dataclass(frozen=True)
class Execution:
    """What the engine of a client task owns, and what it learns from the task."""

    graphs: object | None = None  # a `fastpath.StepGraphs`: CUDA graphs that outlive the task
    autograd_graphs: object | None = None  # a `fastpath.TrainingGraphs`: those of networks without kernels of ours
    reads: set[str] = field(default_factory=set)  # the parts of its client that the task read
    entropy: Callable[[int], Tensor] | None = None  # random 64-bit numbers that nobody else knows; None: keyed ones


NOISE = base_key("noise") % 2**31  # apart from all other streams of a client's key
DRAWS = base_key("draws of a network") % 2**31
FAST_PATH = "fast path"  # in `Execution.reads`: the task trained by the fast path
AUTOGRAD = "autograd"  # the same: it trained by autograd, whose steps are captured one by one
ASKS_GPU = "asks the GPU"  # the same: it waits for numbers of the GPU, so no CUDA graph can capture it


class Client:
    """All that a client task may look at; what it reads is noted in `execution.reads`."""

    def __init__(
        self, train: Samples, test: Samples, key: Tensor, round: Tensor, since: Tensor, memory: Payload,
        execution: Execution | None = None,
    ) -> None:  # fmt: skip
        self._train, self._test, self._key, self._round, self._since = train, test, key, round, since
        self._memory = memory
        self.execution = execution or Execution()

    @property
    def train(self) -> Samples:
        """Its training samples."""
        self.execution.reads.add("train")
        return self._train

    @property
    def test(self) -> Samples:
        """Its test samples."""
        self.execution.reads.add("test")
        return self._test

    @property
    def key(self) -> Tensor:
        """The key of its random numbers: scalar int64."""
        self.execution.reads.add("key")
        return self._key

    @property
    def round(self) -> Tensor:
        """The round the server is in: scalar int64."""
        self.execution.reads.add("round")
        return self._round

    @property
    def since(self) -> Tensor:
        """The round its present data came in: scalar int64."""
        self.execution.reads.add("since")
        return self._since

    @property
    def memory(self) -> Payload:
        """What it kept of its last task."""
        self.execution.reads.add("memory")
        return self._memory

    def draw_normal(self, count: int) -> Tensor:
        """Standard normal numbers, double: [count]; on a node of a deployment the server cannot know them."""
        if self.execution.entropy is not None:
            return normal(self.execution.entropy(2 * count)).to(self.key.device)
        return normal(fold(fold(self.key, NOISE), torch.arange(2 * count, device=self.key.device)))

    def with_train(self, samples: Samples) -> "Client":
        """The same client with other training samples."""
        return Client(samples, self._test, self._key, self._round, self._since, self._memory, self.execution)

    def batches(
        self, epochs: int, batch_size: int, steps: int = 0, drop_last: bool = False, draws: bool = True
    ) -> Iterator[Batch]:
        """Mini-batches of the training samples, reshuffled every epoch; the last, incomplete one is kept.

        With `steps`, so many, for as many epochs as that takes; with `drop_last` incomplete ones are left out, but for
        a client that has no other. Without `draws` those without padding have no key: the network needs none. With
        padding, all real batches of all epochs come first and empty ones last, so that an optimiser's momentum never
        meets an empty batch between two real ones.
        """
        if self.train.exact:
            picks = self._exact_picks(steps or epochs, self.train.clip(batch_size), drop_last)
            exact = list(islice(picks, steps or None))
            keys = (
                self.step_key(torch.arange(len(exact), device=self.key.device)) if draws else repeat(None, len(exact))
            )
            for pick, key in zip(exact, keys, strict=True):
                whole = torch.ones_like(pick, dtype=torch.bool)
                yield self.train.take(pick, whole, whole.any(), key)
            return
        pick, mask = self.schedule(epochs, batch_size, steps=steps, drop_last=drop_last)
        for step in range(len(pick)):
            yield self.train.take(pick[step], mask[step], mask[step].any(), self.step_key(step))

    def _exact_picks(self, epochs: int, batch_size: int, drop_last: bool) -> Iterator[Tensor]:
        """Positions of the samples of each batch, where there is no padding."""
        key, count = int(self.key), len(self.train)
        for epoch in range(epochs if count else 0):
            order = permute(fold_number(key, epoch), count, self.key.device)
            whole = len(order) // batch_size * batch_size if drop_last else 0
            yield from order[: whole or len(order)].split(batch_size)

    def step_key(self, step: int | Tensor) -> Tensor:
        """The key of what a network draws in a step of training; the keys of several steps: [steps]."""
        return fold(fold(self.key, DRAWS), step)

    def schedule(
        self, epochs: int, batch_size: int, parts: int = 1, steps: int = 0, drop_last: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Positions and masks of all batches of padded samples: [steps, b] each; the real batches come first.

        No batch, and no part of one that will be cut into equal parts, is wider than the longest client has samples.
        """
        batch_size = parts * self.train.clip(batch_size // parts)
        epochs = steps or epochs  # a client may have a single batch
        orders = [self.train.shuffle(fold(self.key, epoch)) for epoch in range(epochs)]
        order, n, size = torch.stack(orders).flatten(), len(self.train), self.train.size
        per_epoch = self._batches_an_epoch(batch_size, drop_last).clamp(min=1)  # to divide by
        count = steps if steps and n else epochs * -(-n // batch_size)
        step = torch.arange(count, device=size.device)[:, None]
        epoch, slot = step // per_epoch, (step % per_epoch) * batch_size + torch.arange(batch_size, device=size.device)
        mask = (slot < size) & (epoch < epochs)
        return order[epoch.clamp(max=epochs - 1) * n + slot.clamp(max=n - 1)], mask

    def _batches_an_epoch(self, batch_size: int, drop_last: bool) -> Tensor:
        """How many batches it has in an epoch: none without samples."""
        size = self.train.size
        return (size // batch_size).clamp(min=1).minimum(size) if drop_last else (size + batch_size - 1) // batch_size

    def pool_schedule(
        self, epochs: int, batch_size: int, parts: int = 1, steps: int = 0, drop_last: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The same with indices into the pool: what the fast path takes."""
        pick, mask = self.schedule(epochs, batch_size, parts, steps, drop_last)
        return self.train.index[pick], mask

    def recall(self, name: str) -> Tensor:
        """One remembered tensor."""
        value = self.memory[name]
        if not isinstance(value, Tensor):
            raise TypeError(f"'{name}' is a model: use client.recall_model('{name}')")
        return value

    def recall_model(self, name: str) -> Params:
        """One remembered model."""
        value = self.memory[name]
        if isinstance(value, Tensor):
            raise TypeError(f"'{name}' is one tensor: use client.recall('{name}')")
        return dict(value)

    def steps(self, epochs: int, batch_size: int, steps: int = 0, drop_last: bool = False) -> Tensor:
        """How many of these batches are real."""
        if steps:
            return steps * self.train.size.clamp(max=1)
        return epochs * self._batches_an_epoch(self.train.clip(batch_size), drop_last)


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
    """What `@client_task` notes of a task."""

    key: str  # seeds the task's random numbers
    sequential: bool  # it is not a pure tensor program: engines loop over the clients
    ranges: Mapping[str, Range] = {}  # field of the reply -> its range
    takes_outputs: bool = False  # all it takes of test samples is what `predict` of `kinfed.client_tasks` gives


@overload
def client_task(task: F) -> F: ...


@overload
def client_task(
    *, key: str = "", sequential: bool = False, ranges: Mapping[str, Range] | None = None, takes_outputs: bool = False
) -> Callable[[F], F]: ...


def client_task(
    task: F | None = None,
    *,
    key: str = "",
    sequential: bool = False,
    ranges: Mapping[str, Range] | None = None,
    takes_outputs: bool = False,
) -> F | Callable[[F], F]:
    """Marks a function f(self, client, weights or tensors …) -> Reply as one that clients run.

    Its random numbers hang on `key`, which is its name unless another is given. `ranges` bounds the fields of its
    reply; floats of one that is not named have the range NUMBERS.
    """

    def mark(task: F) -> F:
        check_task(task)
        vars(task)[MARK] = TaskMark(key or task.__name__, sequential, ranges or {}, takes_outputs)
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


@lru_cache(maxsize=256)
def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """What a function takes, found out once: it is asked of every client."""
    return inspect.signature(function)


def call_task(task: Task, client: Client, offered: Payload) -> Reply:
    """The reply of a task to this offer; ConfigError where the task does not take the offer, or gives no such reply."""
    says = f"client task '{getattr(task, '__qualname__', task)}'"
    bound = (task.__self__,) if isinstance(task, MethodType) else ()
    takes = signature_of(task.__func__) if isinstance(task, MethodType) else inspect.signature(task)
    try:
        takes.bind(*bound, client, **offered)
    except TypeError as error:
        wanted = ", ".join(list(takes.parameters)[len(bound) :])
        raise ConfigError(
            f"{says} takes ({wanted}), and is offered ({', '.join(offered)}): name its arguments as the offer does"
        ) from error
    reply = task(client, **offered)
    if not isinstance(reply, Reply):
        raise ConfigError(f"{says} must return a Reply, as in Reply({{'params': trained}}), got a {_kind(reply)}")
    for part, payload in zip(Reply._fields, reply, strict=True):
        if not isinstance(payload, Mapping):
            raise ConfigError(f"{says}: {part} of its Reply must be a dict by name, got a {_kind(payload)}")
        for name, value in payload.items():
            tensors = value.values() if isinstance(value, Mapping) else (value,)
            for tensor in tensors:
                if not isinstance(tensor, Tensor):
                    raise ConfigError(
                        f"{says}: '{name}' of its Reply must be a tensor, or a dict of tensors, got a {_kind(tensor)}"
                    )
    return reply


def _kind(value: object) -> str:
    return type(value).__name__


def is_payload(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is one or several models, or a tensor; an annotation may be a text."""
    hint = parameter.annotation
    if parameter.kind is parameter.VAR_KEYWORD:
        return hint is not parameter.empty
    text = hint.partition("[")[0] if isinstance(hint, str) else ""
    return hint is Tensor or text in ("Tensor", "Params", "Stack", "Mapping") or get_origin(hint) in (dict, Mapping)
