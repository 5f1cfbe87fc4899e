"""Copies of modules, the functions that their parts hold among them."""

import copy
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def copy_module(module: M) -> M:
    """A copy that shares nothing with it.

    Python copies no functions: a forward hook, or a lambda that a module holds, would still use the parts and weights
    of the original.
    """
    copies: dict[int, Any] = {}  # the id of what was copied -> its copy
    own = copy.deepcopy(module, copies)
    for part in own.modules():
        for name, held in vars(part).items():
            if isinstance(held, dict):  # hooks among them
                held.update({key: _rebind(f, copies) for key, f in held.items() if isinstance(f, FunctionType)})
            elif isinstance(held, list):
                held[:] = [_rebind(f, copies) if isinstance(f, FunctionType) else f for f in held]
            elif isinstance(held, FunctionType):
                vars(part)[name] = _rebind(held, copies)
    return own


def _rebind(function: FunctionType, copies: dict[int, Any]) -> FunctionType:
    """The function with the copies of what it holds; itself where nothing that it holds was copied."""
    known: FunctionType | None = copies.get(id(function))
    if known or not _holds_copied(function, copies, set()):
        return known or function

    def swap(held: object) -> Any:
        return _rebind(held, copies) if isinstance(held, FunctionType) else copies.get(id(held), held)

    cells = function.__closure__ or ()
    own = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        tuple(map(swap, function.__defaults__ or ())) or None,
        tuple(CellType() for _ in cells),
    )
    copies[id(function)] = own  # before its cells: it may call itself
    own.__kwdefaults__ = {name: swap(held) for name, held in (function.__kwdefaults__ or {}).items()} or None
    own.__dict__.update(function.__dict__)
    for cell, old in zip(own.__closure__ or (), cells, strict=True):
        for held in _contents(old):
            cell.cell_contents = swap(held)
    return own


def _holds_copied(function: FunctionType, copies: dict[int, Any], seen: set[int]) -> bool:
    seen.add(id(function))
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    held += [content for cell in function.__closure__ or () for content in _contents(cell)]
    inner = (f for f in held if isinstance(f, FunctionType) and id(f) not in seen)
    return any(id(content) in copies for content in held) or any(_holds_copied(f, copies, seen) for f in inner)


def _contents(cell: CellType) -> Iterator[Any]:
    """What a cell holds; nothing where its variable has no value yet."""
    try:
        yield cell.cell_contents
    except ValueError:
        return
