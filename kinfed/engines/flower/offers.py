"""The client's checks: whether it is asked for a task of its own algorithm, and sent what that task takes.

A client trusts its own copy of the algorithm and nothing else: the task must be one of it, the names those of the
task's signature, and weights those of a network that the method has (`networks_of`), or several, stacked.
"""

import inspect
from collections.abc import Mapping
from enum import IntEnum
from typing import TypeVar

from kinfed.client import mark_of
from kinfed.client_tasks import COMMON, find_task, networks_of
from kinfed.engines.flower.packing import DTYPES, Packed, Parcel, bytes_in, is_finite, pack, unpack
from kinfed.method import Method
from kinfed.params import Params

State = TypeVar("State")
LARGEST = 2**31  # bytes that a client takes in one message


class Refusal(IntEnum):
    """What a client answers instead of data: a number, never a text, for a text may hold data."""

    UNKNOWN_TASK = 1
    WRONG_NAMES = 2
    WRONG_SHAPE = 3
    WRONG_DTYPE = 4
    NOT_FINITE = 5
    OVERSIZED = 6
    MALFORMED = 7
    TASK_FAILED = 8


class Refused(Exception):
    """A client does not do what it is asked to."""

    def __init__(self, code: Refusal, why: str) -> None:
        super().__init__(why)
        self.code = code


def tasks_of(method: Method[State]) -> set[str]:
    """The names of all client tasks: those of the method, and those that every method has."""
    functions = inspect.getmembers(type(method), inspect.isfunction)
    return {name for name, function in functions if mark_of(function)} | COMMON.keys()


def names_for(method: Method[State], task: str) -> tuple[set[str], set[str] | None]:
    """What a task must be sent, and what it may be sent: anything (None) where it takes whatever is served."""
    parameters = list(inspect.signature(find_task(method, task)).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return set(), None
    return {p.name for p in parameters if p.default is p.empty}, {p.name for p in parameters}


def checked(method: Method[State], shape: tuple[int, ...], task: str, parcel: Parcel) -> Params:
    """The tensors that a task is sent; raises Refused unless they are what it takes."""
    if task not in tasks_of(method):
        raise Refused(Refusal.UNKNOWN_TASK, f"'{task}' is no task of {type(method).__name__}")
    if bytes_in(parcel) > LARGEST:
        raise Refused(Refusal.OVERSIZED, f"'{task}' came with {bytes_in(parcel)} bytes, wanted at most {LARGEST}")
    needed, known = names_for(method, task)
    sent = {name.partition("/")[0] for name in parcel}
    if not needed <= sent or (known is not None and not sent <= known):
        raise Refused(Refusal.WRONG_NAMES, f"'{task}' came with {sorted(sent)}, wanted {sorted(needed)}")
    networks = [pack(network) for network in networks_of(method, shape)]
    for name in sent:
        check_part(f"'{name}' of '{task}'", part(parcel, name), networks)
    tensors = unpack(parcel)
    if not is_finite(tensors):
        raise Refused(Refusal.NOT_FINITE, f"'{task}' came with numbers that are not finite")
    return tensors


def part(parcel: Parcel, name: str) -> Parcel:
    """The tensors of one offered name; a tensor by itself has no name in it."""
    return {path.partition("/")[2]: packed for path, packed in parcel.items() if path.partition("/")[0] == name}


def check_part(what: str, weights: Parcel, networks: list[dict[str, Packed]]) -> None:
    """Raises Refused unless these are weights of one of the networks, or one whole tensor by itself."""
    if any(packed.dtype not in DTYPES for packed in weights.values()):
        raise Refused(Refusal.WRONG_DTYPE, f"{what} has a dtype that is not known")
    if not all(packed.is_whole for packed in weights.values()):
        raise Refused(Refusal.WRONG_SHAPE, f"{what} has other bytes than its shape says")
    if weights.keys() == {""}:
        return
    named = [network for network in networks if weights.keys() <= network.keys()]
    if not named:
        raise Refused(Refusal.WRONG_NAMES, f"{what} names no weights of a network of the algorithm: {sorted(weights)}")
    typed = [network for network in named if all(p.dtype == network[name].dtype for name, p in weights.items())]
    if not typed:
        raise Refused(Refusal.WRONG_DTYPE, f"{what} has weights of another dtype than the network")
    if not any(fits(weights, network) for network in typed):
        raise Refused(Refusal.WRONG_SHAPE, f"{what} has weights of another shape than the network")


def fits(weights: Parcel, network: Mapping[str, Packed]) -> bool:
    """Whether the shapes are those of one model, or of several, stacked."""
    if all(packed.shape == network[name].shape for name, packed in weights.items()):
        return True
    axes = {packed.shape[:1] for packed in weights.values()}
    return len(axes) == 1 and all(packed.shape[1:] == network[name].shape for name, packed in weights.items())
