"""A population: one pool of samples, and for each client which of them it trains on and is tested on.

Clients get changed copies of their samples by `copy_variants`, once in the pool for each (variant, sample).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from kinfed.errors import DataError
from kinfed.targets import is_known

LATER = 2**31 - 1  # joins after training
MOST_CLASSES = 2**16  # a label beyond is a mistake: every model has an output for each class
NO_SAMPLES = torch.empty(0, dtype=torch.int64)
View = Callable[[Tensor, Tensor, np.random.Generator], tuple[Tensor, Tensor]]  # samples (x, y) -> as a client has them


OnDevices = WeakValueDictionary[tuple[str, torch.device], Tensor]
ON_DEVICES: "WeakKeyDictionary[Population, OnDevices]" = WeakKeyDictionary()  # what populations have on devices now


@dataclass(frozen=True)
class Role:
    """What one client does in the federation."""

    joins: int = 0  # the round it enters; LATER: after training
    holdout: bool = False  # never trains
    labelled: bool = True  # False: its training samples have no labels (-1 in the pool)
    look_alike_of: int | None = None  # made to resemble this client, and only asked where it would be placed
    leaves: int = LATER  # the round from which on it is gone; LATER: it stays

    @property
    def trains(self) -> bool:
        """Whether it ever trains."""
        return self.labelled and not self.holdout


@dataclass(frozen=True, eq=False)
class Change:
    """From this round on these clients have other samples."""

    round: int
    clients: Tensor  # [k]
    train: tuple[Tensor, ...]  # train[i]: samples of client clients[i]
    test: tuple[Tensor, ...]
    true_clusters: Tensor | None = None  # [k] planted cluster of their new samples


@dataclass(frozen=True, eq=False)
class Population:
    """All clients' samples, as indices into one pool."""

    x: Tensor  # uint8 [N, channels, height, width], float features [N, ...], or token ids [N, length]
    y: Tensor  # [N] int64: labels; [N, length] int64: tokens; [N] or [N, k] float32: numbers
    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    classes: int  # of labels or tokens; of numbers, how many a sample has
    true_clusters: Tensor | None = None  # [M] planted cluster of each client
    roles: tuple[Role, ...] = ()  # empty: all train from the start
    public: Tensor = field(default_factory=lambda: NO_SAMPLES)  # samples the server owns
    changes: tuple[Change, ...] = ()
    held_out: Tensor = field(default_factory=lambda: NO_SAMPLES)  # samples nobody trains on, as they are in the dataset
    views: tuple[tuple[View, ...], ...] = ()  # what shifts do to each client's samples, in order; empty: nothing
    class_names: tuple[str, ...] = ()  # of the labels, where they are known
    feature_names: tuple[str, ...] = ()  # the columns of a table that samples are made of
    client_names: tuple[str, ...] = ()  # of the clients, where they have some; those made of others have none
    origin: Tensor = field(default_factory=lambda: NO_SAMPLES)  # what sample each is a copy of; behind its end: itself

    def __post_init__(self) -> None:
        self.validate()

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """All samples and labels on a device, where those who have them there at the same time share them."""
        there = ON_DEVICES.setdefault(self, WeakValueDictionary())
        x, y = (there.get((name, device)) for name in "xy")
        x, y = self.x.to(device) if x is None else x, self.y.to(device) if y is None else y
        there["x", device], there["y", device] = x, y
        return x, y

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train)

    @property
    def origins(self) -> Tensor:
        """The sample of the pool that each of them is a copy of, as a shift or a drift makes some; else itself: [N]."""
        return torch.cat([self.origin, torch.arange(len(self.origin), len(self.y))])

    @property
    def has_classes(self) -> bool:
        """Whether each sample has one label."""
        return self.y.dtype == torch.int64 and self.y.dim() == 1

    def role(self, client: int) -> Role:
        """The role of one client."""
        return self.roles[client] if self.roles else Role()

    def views_of(self, client: int) -> tuple[View, ...]:
        """What shifts do to the samples of one client."""
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
            f"clusters has shape {list(population.true_clusters.shape)}, wanted [{clients}]: one number a client"
        )


def check_pool(population: Population) -> None:
    """Raise DataError unless the pool's labels fit its samples and the classes."""
    x, y, classes = population.x, population.y, population.classes
    if len(x) != len(y):
        raise DataError(f"the pool has {len(x)} samples x but {len(y)} labels y; they must be equally long")
    if y.dtype not in (torch.int64, torch.float32) or y.ndim not in (1, 2):
        raise DataError(
            f"labels are {y.dtype} {list(y.shape)}, wanted int64 [N] (convert them with y.long()), tokens int64 [N, "
            "length], or numbers float32 [N] or [N, k]"
        )
    check_tokens(x)
    if y.is_floating_point():
        if classes != (1 if y.ndim == 1 else y.shape[1]):
            raise DataError(
                f"targets are numbers {list(y.shape)}: `classes` must be how many a sample has, got {classes}"
            )
    elif len(y) and not (int(y.min()) >= -1 and int(y.max()) < classes):
        raise DataError(
            f"labels must be 0..{classes - 1} (-1: none), got {int(y.min())}..{int(y.max())}; check `classes`"
        )
    check_classes(classes)
    check_indices("public", population.public, len(y))
    check_indices("held_out", population.held_out, len(y))
    check_indices("origin", population.origin, len(y))
    if len(population.origin) > len(y):
        raise DataError(f"origin has {len(population.origin)} entries for {len(y)} samples; give one each, or none")
    if population.class_names and len(population.class_names) != classes:
        raise DataError(f"got {len(population.class_names)} class names for {classes} classes; give one each, or none")
    if len(population.client_names) > population.clients:
        raise DataError(
            f"got {len(population.client_names)} client names for {population.clients} clients; give one each"
        )


def check_tokens(x: Tensor) -> None:
    """Raise DataError where samples are integers below zero, which token ids cannot be."""
    if x.dtype in (torch.int16, torch.int32, torch.int64) and len(x) and int(x.min()) < 0:
        sick = int((x.flatten(1) < 0).any(1).nonzero()[0])
        raise DataError(f"token ids must be 0, 1, 2, …, got {int(x.min())} (sample {sick}); pad with an id of its own")


def check_classes(classes: int) -> None:
    """Raise DataError unless there can be so many classes."""
    if not 1 <= classes <= MOST_CLASSES:
        raise DataError(f"wanted 1..{MOST_CLASSES} classes, got {classes}; number labels 0, 1, 2, …")


def check_change(population: Population, change: Change, is_public: Tensor) -> None:
    """Raise DataError unless a change has sound samples for each of its clients."""
    count = len(change.clients)
    if change.round < 1 or len(change.train) != count or len(change.test) != count:
        raise DataError(
            f"a change at round {change.round} has {count} clients, {len(change.train)} train and {len(change.test)} "
            "test entries; wanted a round of at least 1 and one entry of each a client"
        )
    if change.true_clusters is not None and change.true_clusters.shape != (count,):
        raise DataError(f"clusters of a change has shape {list(change.true_clusters.shape)}, wanted [{count}]")
    check_indices("clients of a change", change.clients, population.clients)
    for client, train, test in zip(change.clients.tolist(), change.train, change.test, strict=True):
        check_client(population, client, train, test, is_public)


def check_client(population: Population, client: int, train: Tensor, test: Tensor, is_public: Tensor) -> None:
    """Raise DataError unless these samples can be a client's."""
    role = population.role(client)
    for name, samples in (("train", train), ("test", test)):
        check_indices(f"{name} samples of client {client}", samples, len(population.y))
    check_look_alike(population, client, role)
    if role.leaves < LATER and not 1 <= role.joins + 1 <= role.leaves:
        raise DataError(f"client {client} must leave in a later round than it joins, got {role}")
    if role.trains and len(train) == 0:
        raise DataError(
            f"client {client} trains but has no training samples; give it some, or make it a holdout client"
        )
    own = torch.cat([train, test])
    if bool((own.sort().values.diff() == 0).any()):
        raise DataError(f"client {client}: {explain_repeat(train, test)}")
    if bool(is_public[own].any()):
        sample = int(own[is_public[own]][0])
        raise DataError(f"client {client}: sample {sample} is also public; remove public samples from the clients")
    if not bool(is_known(population.y[own if role.labelled else test]).all()):
        raise DataError(
            f"client {client} has samples without a label (-1, of numbers NaN), which only training samples of "
            "unlabelled may be; where -1 is a class, count classes from 0 or give them names (text)"
        )


def check_look_alike(population: Population, client: int, role: Role) -> None:
    """Raise DataError unless a look-alike is held out, comes after training, and resembles a real client."""
    original = role.look_alike_of
    if original is None:
        return
    if not role.holdout or role.joins != LATER:
        raise DataError(f"client {client} is a look-alike and must be holdout and join LATER, got {role}")
    if not 0 <= original < population.clients or population.role(original).look_alike_of is not None:
        raise DataError(f"client {client} is a look-alike of {original}, wanted a real client of the population")


def explain_repeat(train: Tensor, test: Tensor) -> str:
    """Where a sample occurs twice, in words."""
    for name, samples in (("training", train), ("test", test)):
        ordered = samples.sort().values
        twice = ordered[1:][ordered.diff() == 0]
        if len(twice):
            return f"sample {int(twice[0])} is twice among the {name} samples; a sample may be there once"
    return f"sample {int(train[torch.isin(train, test)][0])} is both a training and a test sample; keep them apart"


def check_indices(name: str, samples: Tensor, count: int) -> None:
    """Raise DataError unless these are indices below count."""
    if samples.dtype != torch.int64 or samples.ndim != 1:
        raise DataError(f"{name}: got {samples.dtype} {list(samples.shape)}, wanted int64 [n]")
    if len(samples) and not (int(samples.min()) >= 0 and int(samples.max()) < count):
        raise DataError(f"{name} must be 0..{count - 1}, got {int(samples.min())}..{int(samples.max())}")


def label_counts(population: Population) -> Tensor:
    """How many training samples of each label each client has: [M, classes]; samples without a label do not count."""
    if not population.has_classes:
        raise DataError("the targets are no classes: there are no labels to count")
    labels = (population.y[samples] for samples in population.train)
    return torch.stack([torch.bincount(y[y >= 0], minlength=population.classes) for y in labels])


Copy = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]  # (variant, x, y) -> changed (x, y)
Move = Callable[[int, Tensor], Tensor]  # (client, samples) -> samples
UNCHANGED = -1


def copy_variants(population: Population, variants: Sequence[int], copy: Copy, tests: bool = True) -> Population:
    """The population whose client m has copy(variants[m], ...) of its samples; UNCHANGED leaves a client alone.

    With tests=False only the training samples are copied.
    """
    x, y, size = [population.x], [population.y], len(population.y)
    samples_of: dict[int, Tensor] = {}
    start: dict[int, int] = {}
    for variant in sorted(set(variants) - {UNCHANGED}):
        samples = samples_of[variant] = samples_used(
            population, {m for m, v in enumerate(variants) if v == variant}, tests
        )
        start[variant], size = size, size + len(samples)
        changed = copy(variant, population.x[samples], population.y[samples])
        x.append(changed[0])
        y.append(changed[1])

    def move(client: int, samples: Tensor) -> Tensor:
        variant = variants[client]
        return samples if variant == UNCHANGED else start[variant] + torch.searchsorted(samples_of[variant], samples)

    origin = torch.cat([population.origins, *(population.origins[samples] for samples in samples_of.values())])
    bigger = replace(population, x=torch.cat(x), y=torch.cat(y), origin=origin)
    return move_samples(bigger, move, move if tests else lambda _, samples: samples)


def samples_used(population: Population, clients: set[int], tests: bool) -> Tensor:
    """All samples these clients have now or will have, sorted, once each."""
    used = torch.zeros(len(population.y), dtype=torch.bool)
    lists = list(zip(range(population.clients), population.train, population.test, strict=True))
    for change in population.changes:
        lists += zip(change.clients.tolist(), change.train, change.test, strict=True)
    for client, train, test in lists:
        if client in clients:
            used[torch.cat([train, test]) if tests else train] = True
    return used.nonzero().flatten()


def move_samples(population: Population, move_train: Move, move_test: Move) -> Population:
    """The population whose samples, now and after every change, are moved to other places of the pool."""

    def move_change(change: Change) -> Change:
        clients = change.clients.tolist()
        train = tuple(move_train(client, samples) for client, samples in zip(clients, change.train, strict=True))
        test = tuple(move_test(client, samples) for client, samples in zip(clients, change.test, strict=True))
        return replace(change, train=train, test=test)

    return replace(
        population,
        train=tuple(move_train(client, samples) for client, samples in enumerate(population.train)),
        test=tuple(move_test(client, samples) for client, samples in enumerate(population.test)),
        changes=tuple(move_change(change) for change in population.changes),
    )
