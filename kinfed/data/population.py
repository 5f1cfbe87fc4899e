"""A population: one pool of rows, and for each client which of them it trains on and is tested on."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kinfed.errors import DataError

LATER = 2**31 - 1  # joins after training
NO_SAMPLES = torch.empty(0, dtype=torch.int64)
View = Callable[[Tensor, Tensor, np.random.Generator], tuple[Tensor, Tensor]]  # rows (x, y) -> as a client has them


@dataclass(frozen=True)
class Role:
    """What one client does in the federation."""

    joins: int = 0  # the round it enters; LATER: after training
    holdout: bool = False  # never trains
    labelled: bool = True  # False: its training rows have no labels (-1 in the pool)
    look_alike_of: int | None = None  # made to resemble this client, and only asked where it would be placed

    @property
    def trains(self) -> bool:
        """Whether it ever trains."""
        return self.labelled and not self.holdout


@dataclass(frozen=True, eq=False)
class Change:
    """From this round on these clients have other rows."""

    round: int
    clients: Tensor  # [k]
    train: tuple[Tensor, ...]  # train[i]: rows of client clients[i]
    test: tuple[Tensor, ...]
    true_clusters: Tensor | None = None  # [k] planted group of their new rows


@dataclass(frozen=True, eq=False)
class Population:
    """All clients' rows, as indices into one pool."""

    x: Tensor  # uint8 [N, channels, height, width], or float features [N, ...]
    y: Tensor  # [N] int64
    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    classes: int
    true_clusters: Tensor | None = None  # [M] planted group of each client
    roles: tuple[Role, ...] = ()  # empty: all train from the start
    public: Tensor = field(default_factory=lambda: NO_SAMPLES)  # rows the server owns
    changes: tuple[Change, ...] = ()
    held_out: Tensor = field(default_factory=lambda: NO_SAMPLES)  # rows nobody trains on, as they are in the dataset
    views: tuple[tuple[View, ...], ...] = ()  # what shifts do to each client's rows, in order; empty: nothing

    def __post_init__(self) -> None:
        self.validate()

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train)

    def role(self, client: int) -> Role:
        """The role of one client."""
        return self.roles[client] if self.roles else Role()

    def views_of(self, client: int) -> tuple[View, ...]:
        """What shifts do to the rows of one client."""
        return self.views[client] if self.views else ()

    def validate(self) -> None:
        """Raise DataError where the parts do not fit together."""
        check_lengths(self)
        check_pool(self)
        is_public = torch.zeros(len(self.y), dtype=torch.bool)
        is_public[self.public] = True
        for client in range(self.clients):
            check_client(self, client, self.train[client], self.test[client], is_public)
        for change in self.changes:
            check_change(self, change, is_public)


def check_lengths(population: Population) -> None:
    """Raise DataError unless there is one of everything for each client."""
    clients = population.clients
    if clients == 0:
        raise DataError("a population needs at least one client, got none")
    if len(population.test) != clients:
        raise DataError(
            f"train has {clients} clients but test has {len(population.test)}; both need one entry a client"
        )
    if population.roles and len(population.roles) != clients:
        raise DataError(f"got {len(population.roles)} roles for {clients} clients; give one each, or none at all")
    if population.views and len(population.views) != clients:
        raise DataError(
            f"got views for {len(population.views)} of {clients} clients; give them to each, or none at all"
        )
    if population.true_clusters is not None and population.true_clusters.shape != (clients,):
        raise DataError(
            f"groups has shape {list(population.true_clusters.shape)}, wanted [{clients}]: one number a client"
        )


def check_pool(population: Population) -> None:
    """Raise DataError unless the pool's labels fit its rows and the classes."""
    x, y, classes = population.x, population.y, population.classes
    if len(x) != len(y):
        raise DataError(f"the pool has {len(x)} rows x but {len(y)} labels y; they must be equally long")
    if y.dtype != torch.int64 or y.ndim != 1:
        raise DataError(f"labels are {y.dtype} {list(y.shape)}, wanted int64 [N]; convert them with y.long()")
    if len(y) and not (int(y.min()) >= -1 and int(y.max()) < classes):
        raise DataError(
            f"labels must be 0..{classes - 1} (-1: none), got {int(y.min())}..{int(y.max())}; check `classes`"
        )
    check_indices("public", population.public, len(y))
    check_indices("held_out", population.held_out, len(y))


def check_change(population: Population, change: Change, is_public: Tensor) -> None:
    """Raise DataError unless a change has sound rows for each of its clients."""
    count = len(change.clients)
    if change.round < 1 or len(change.train) != count or len(change.test) != count:
        raise DataError(
            f"a change at round {change.round} has {count} clients, {len(change.train)} train and {len(change.test)} "
            "test entries; wanted a round of at least 1 and one entry of each a client"
        )
    if change.true_clusters is not None and change.true_clusters.shape != (count,):
        raise DataError(f"groups of a change has shape {list(change.true_clusters.shape)}, wanted [{count}]")
    check_indices("clients of a change", change.clients, population.clients)
    for client, train, test in zip(change.clients.tolist(), change.train, change.test, strict=True):
        check_client(population, client, train, test, is_public)


def check_client(population: Population, client: int, train: Tensor, test: Tensor, is_public: Tensor) -> None:
    """Raise DataError unless these rows can be a client's."""
    role = population.role(client)
    for name, rows in (("train", train), ("test", test)):
        check_indices(f"{name} rows of client {client}", rows, len(population.y))
    check_look_alike(population, client, role)
    if role.trains and len(train) == 0:
        raise DataError(f"client {client} trains but has no training rows; give it some, or make it a holdout client")
    own = torch.cat([train, test])
    if bool((own.sort().values.diff() == 0).any()):
        raise DataError(f"client {client}: {repeated(train, test)}")
    if bool(is_public[own].any()):
        row = int(own[is_public[own]][0])
        raise DataError(f"client {client}: row {row} is also public; remove public rows from the clients")
    if bool((population.y[own if role.labelled else test] < 0).any()):
        raise DataError(f"client {client} has rows without a label (-1), which only training rows of unlabelled may be")


def check_look_alike(population: Population, client: int, role: Role) -> None:
    """Raise DataError unless a look-alike is held out, comes after training, and resembles a real client."""
    original = role.look_alike_of
    if original is None:
        return
    if not role.holdout or role.joins != LATER:
        raise DataError(f"client {client} is a look-alike and must be holdout and join LATER, got {role}")
    if not 0 <= original < population.clients or population.role(original).look_alike_of is not None:
        raise DataError(f"client {client} is a look-alike of {original}, wanted a real client of the population")


def repeated(train: Tensor, test: Tensor) -> str:
    """Where a row occurs twice, in words."""
    for name, rows in (("training", train), ("test", test)):
        ordered = rows.sort().values
        twice = ordered[1:][ordered.diff() == 0]
        if len(twice):
            return f"row {int(twice[0])} is twice among the {name} rows; a row may be there once"
    return f"row {int(train[torch.isin(train, test)][0])} is both a training and a test row; keep them apart"


def check_indices(name: str, rows: Tensor, count: int) -> None:
    """Raise DataError unless these are indices below count."""
    if rows.dtype != torch.int64 or rows.ndim != 1:
        raise DataError(f"{name}: got {rows.dtype} {list(rows.shape)}, wanted int64 [n]")
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < count):
        raise DataError(f"{name} must be 0..{count - 1}, got {int(rows.min())}..{int(rows.max())}")


def label_counts(population: Population) -> Tensor:
    """How many training rows of each label each client has: [M, classes]; rows without a label do not count."""
    labels = (population.y[rows] for rows in population.train)
    return torch.stack([torch.bincount(y[y >= 0], minlength=population.classes) for y in labels])
