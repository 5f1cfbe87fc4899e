"""Giving some clients changed copies of their rows: appended to the pool once for each (variant, row)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kinfed.data.population import Change, Population

Copy = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]  # (variant, x, y) -> changed (x, y)
Move = Callable[[int, Tensor], Tensor]  # (client, rows) -> rows
UNCHANGED = -1


def with_variants(population: Population, variants: Sequence[int], copy: Copy, tests: bool = True) -> Population:
    """The population whose client m has copy(variants[m], ...) of its rows; UNCHANGED leaves a client alone.

    With tests=False only the training rows are copied.
    """
    x, y, size = [population.x], [population.y], len(population.y)
    rows_of: dict[int, Tensor] = {}
    start: dict[int, int] = {}
    for variant in sorted(set(variants) - {UNCHANGED}):
        rows = rows_of[variant] = rows_used(population, {m for m, v in enumerate(variants) if v == variant}, tests)
        start[variant], size = size, size + len(rows)
        changed = copy(variant, population.x[rows], population.y[rows])
        x.append(changed[0])
        y.append(changed[1])

    def move(client: int, rows: Tensor) -> Tensor:
        variant = variants[client]
        return rows if variant == UNCHANGED else start[variant] + torch.searchsorted(rows_of[variant], rows)

    bigger = replace(population, x=torch.cat(x), y=torch.cat(y))
    return moved(bigger, move, move if tests else lambda _, rows: rows)


def rows_used(population: Population, clients: set[int], tests: bool) -> Tensor:
    """All rows these clients have now or will have, sorted, once each."""
    used = torch.zeros(len(population.y), dtype=torch.bool)
    lists = list(zip(range(population.clients), population.train, population.test, strict=True))
    for change in population.changes:
        lists += zip(change.clients.tolist(), change.train, change.test, strict=True)
    for client, train, test in lists:
        if client in clients:
            used[torch.cat([train, test]) if tests else train] = True
    return used.nonzero().flatten()


def moved(population: Population, move_train: Move, move_test: Move) -> Population:
    """The population whose rows, now and after every change, are moved to other places of the pool."""

    def move_change(change: Change) -> Change:
        clients = change.clients.tolist()
        train = tuple(move_train(client, rows) for client, rows in zip(clients, change.train, strict=True))
        test = tuple(move_test(client, rows) for client, rows in zip(clients, change.test, strict=True))
        return replace(change, train=train, test=test)

    return replace(
        population,
        train=tuple(move_train(client, rows) for client, rows in enumerate(population.train)),
        test=tuple(move_test(client, rows) for client, rows in enumerate(population.test)),
        changes=tuple(move_change(change) for change in population.changes),
    )
