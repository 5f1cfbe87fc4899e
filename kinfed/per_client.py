"""Which tensors of a server state have an entry for each client, marked by their types, and states cut to some clients.

A field `assignment: Labels` has one entry for each client. So a state can be cut to the clients that trained, with room
for one more, and that is all it takes to serve unseen clients later.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Protocol, TypeVar, cast, get_type_hints

import torch
from torch import Tensor

from kinfed.params import Stack

T = TypeVar("T")


class Mark(Protocol):
    """How a field changes when clients are left out."""

    def cut(self, value: Tensor, clients: Tensor) -> object: ...


@dataclass(frozen=True)
class Axis:
    """One axis has an entry for each client; it is `blank` for a client of which nothing is known."""

    at: int = 0
    blank: int = 0

    def cut(self, value: Tensor, clients: Tensor) -> Tensor:
        kept = value.index_select(self.at, clients)
        shape = [*kept.shape[: self.at], 1, *kept.shape[self.at + 1 :]]
        return torch.cat([kept, kept.new_full(shape, self.blank)], self.at)


class Ids:
    """The entries are ids of clients; only of those that are kept."""

    def cut(self, value: Tensor, clients: Tensor) -> Tensor:
        return torch.searchsorted(clients, value)


class Trained:
    """What each client trained last: no unseen client is served by it."""

    def cut(self, value: Tensor, clients: Tensor) -> Stack:
        return {}


Each = Annotated[Tensor, Axis()]  # [clients, ...]; 0 or False for a client that is not known
Labels = Annotated[Tensor, Axis(blank=-1)]  # [clients]; -1 for a client that is not assigned
Contributors = Annotated[Tensor, Axis(1)]  # [..., clients]
Pairs = Annotated[Tensor, Axis(0), Axis(1)]  # [clients, clients]
Members = Annotated[Tensor, Ids()]  # [m]
LastTrained = Annotated[Stack, Trained()]  # [clients]


def cut_to(state: T, clients: Tensor) -> T:
    """The state of these clients alone (ids, sorted), numbered from 0, and of one more that is not known yet."""
    hints = get_type_hints(type(state), include_extras=True)
    parts = {f.name: _cut(hints[f.name], getattr(state, f.name), clients) for f in fields(state)}  # type: ignore[arg-type]
    return cast("Callable[..., T]", type(state))(**parts)


def _cut(hint: object, value: object, clients: Tensor) -> object:
    marks: tuple[Mark, ...] = getattr(hint, "__metadata__", ())
    for mark in marks:
        value = mark.cut(cast(Tensor, value), clients)
    return cut_to(value, clients) if is_dataclass(value) else value
