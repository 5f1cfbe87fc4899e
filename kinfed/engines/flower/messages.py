"""What crosses the wire, and both sides' checks on it; nothing here knows Flower.

Tensors cross as named, typed bytes: no pickle, nothing that runs when it is read. A client trusts its own copy of the
method and nothing else: the task must be one of its tasks, the names those of the task's signature, and weights those
of a network that the method has, or several, stacked. The server trusts no reply: a `ReplyCollector` takes the replies
to one call and names the reason for each that it rejects.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from kinfed.client import UNMARKED, mark_of
from kinfed.client_tasks import COMMON, find_task, networks_of
from kinfed.federation import (
    DAMAGED,
    EMPTY,
    FAILED,
    OVERSIZED,
    REFUSED,
    UNKNOWN,
    WRONG_DTYPE,
    WRONG_NAMES,
    WRONG_SHAPE,
)
from kinfed.method import Method
from kinfed.params import Params

State = TypeVar("State")
KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
DTYPES = {str(kind).removeprefix("torch."): kind for kind in KINDS}
MAX_BYTES = 2**31  # that a client takes in one message
SLACK = 2**16  # bytes that a reply may have above twice what it should
DUPLICATE, STALE = "duplicate", "stale"

ConfigValues = Mapping[str, int | float | bool | str]  # the values of a message's ConfigRecord
TensorSpecs = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype and shape


class PackedTensor(NamedTuple):
    """One tensor as bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def is_complete(self) -> bool:
        """Whether the bytes are as many as dtype and shape say."""
        is_known = self.dtype in DTYPES and all(size >= 0 for size in self.shape)
        return is_known and len(self.data) == prod(self.shape) * DTYPES[self.dtype].itemsize


PackedTensors = Mapping[str, PackedTensor]


def pack(flat: Params) -> dict[str, PackedTensor]:
    """Tensors as bytes."""
    return {name: PackedTensor(dtype_name(t), tuple(t.shape), to_bytes(t)) for name, t in flat.items()}


def unpack(packed: PackedTensors) -> Params:
    """The tensors again; every one must be complete."""
    return {name: from_bytes(tensor) for name, tensor in packed.items()}


def to_specs(packed: PackedTensors) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtypes and shapes without the values."""
    return {name: (tensor.dtype, tensor.shape) for name, tensor in packed.items()}


def count_bytes(packed: PackedTensors) -> int:
    """Bytes of all tensors."""
    return sum(len(tensor.data) for tensor in packed.values())


def count_expected_bytes(specs: TensorSpecs) -> int:
    """Bytes that tensors of these dtypes and shapes have."""
    return sum(prod(shape) * DTYPES[dtype].itemsize for dtype, shape in specs.values())


def is_finite(flat: Params) -> bool:
    """Whether no tensor holds a NaN or an infinity."""
    return all(bool(torch.isfinite(t).all()) for t in flat.values() if t.is_floating_point())


def dtype_name(tensor: Tensor) -> str:
    """The dtype as it crosses the wire."""
    return str(tensor.dtype).removeprefix("torch.")


def to_bytes(tensor: Tensor) -> bytes:
    """The values as they lie in memory, little-endian."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def from_bytes(packed: PackedTensor) -> Tensor:
    """The tensor of these bytes."""
    kind = DTYPES[packed.dtype]
    if not packed.data:
        return torch.empty(packed.shape, dtype=kind)
    values = torch.frombuffer(bytearray(packed.data), dtype=torch.uint8 if kind == torch.bool else kind)
    return values.to(kind).reshape(packed.shape)


class Refusal(IntEnum):
    """What a client replies instead of data: a code, never a text, for a text may hold data."""

    UNKNOWN_TASK = 1
    WRONG_NAMES = 2
    WRONG_SHAPE = 3
    WRONG_DTYPE = 4
    NOT_FINITE = 5
    OVERSIZED = 6
    MALFORMED = 7
    TASK_FAILED = 8
    INVALID_SAMPLES = 9
    INVALID_CONFIG = 10
    OUT_OF_MEMORY = 11
    INVALID_MODEL = 12
    NOT_WRITTEN = 13


FAILURES = {  # of a node's own, and what the server says of them
    Refusal.TASK_FAILED: "its task failed",
    Refusal.INVALID_SAMPLES: "its samples cannot be read, or are not as plan.toml says",
    Refusal.INVALID_CONFIG: "its config is not valid",
    Refusal.OUT_OF_MEMORY: "its memory is full",
    Refusal.INVALID_MODEL: "the network does not fit its samples, or scores leave the task's range least() to most()",
    Refusal.NOT_WRITTEN: "what it remembers cannot be written: its disk is full, or `home` of its config no folder",
}
FLOWER_FAILURES = {  # by Flower's own code
    1: "its app cannot be loaded; is the same version of kinfed installed there, and all modules of your own?",
    2: "its app raised an error; is the same version of kinfed installed there?",
    5: "it is not connected any more",
    7: "Flower could not install the app there",
    8: "the process of its app died, maybe for lack of memory",
}
EXPIRED = (3, 4)  # Flower's codes of a request, or its reply, that was not there in time: as if nobody had replied
TOO_SLOW = "no reply within engine.timeout: raise that, where a node takes longer to load torch and its samples"
LONGEST_TEXT = 300  # characters of a node's own that are shown


class RefusedRequest(Exception):
    """A client refuses a request."""

    def __init__(self, code: Refusal, why: str) -> None:
        super().__init__(why)
        self.code = code


def task_names(method: Method[State]) -> set[str]:
    """The names of all client tasks: those that the method marks, and those that every method has."""
    functions = inspect.getmembers(type(method), inspect.isfunction)
    return {name for name, function in functions if mark_of(function)} | COMMON.keys()


def parameter_names(method: Method[State], task: str) -> tuple[set[str], set[str] | None]:
    """What a task must be sent, and what it may be sent: anything (None) where it takes whatever is served."""
    parameters = list(inspect.signature(find_task(method, task)).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return set(), None
    return {p.name for p in parameters if p.default is p.empty}, {p.name for p in parameters}


def check_request(method: Method[State], shape: tuple[int, ...], task: str, packed: PackedTensors) -> Params:
    """The tensors that a client's task is sent; raises RefusedRequest unless they are what it takes."""
    if task not in task_names(method):
        raise RefusedRequest(Refusal.UNKNOWN_TASK, UNMARKED.format(task))
    if count_bytes(packed) > MAX_BYTES:
        raise RefusedRequest(
            Refusal.OVERSIZED, f"'{task}': got {count_bytes(packed)} bytes, wanted {MAX_BYTES} at most"
        )
    needed, known = parameter_names(method, task)
    sent = {name.partition("/")[0] for name in packed}
    if not needed <= sent or (known is not None and not sent <= known):
        raise RefusedRequest(Refusal.WRONG_NAMES, f"'{task}': got {sorted(sent)}, wanted {sorted(needed)}")
    networks = [pack(network) for network in networks_of(method, shape)]
    for name in sent:
        check_weights(f"'{name}' of '{task}'", select_argument(packed, name), networks)
    tensors = unpack(packed)
    if not is_finite(tensors):
        raise RefusedRequest(Refusal.NOT_FINITE, f"'{task}': got numbers that are not finite")
    return tensors


def select_argument(packed: PackedTensors, name: str) -> PackedTensors:
    """The tensors of one argument; a tensor by itself has the empty name in it."""
    return {path.partition("/")[2]: tensor for path, tensor in packed.items() if path.partition("/")[0] == name}


def check_weights(what: str, weights: PackedTensors, networks: list[dict[str, PackedTensor]]) -> None:
    """Raises RefusedRequest unless these are weights of one of the networks, or one complete tensor by itself."""
    if any(tensor.dtype not in DTYPES for tensor in weights.values()):
        raise RefusedRequest(Refusal.WRONG_DTYPE, f"{what} has an unknown dtype")
    if not all(tensor.is_complete for tensor in weights.values()):
        raise RefusedRequest(Refusal.WRONG_SHAPE, f"{what} has other bytes than its shape says")
    if weights.keys() == {""}:
        return
    named = [network for network in networks if weights.keys() <= network.keys()]
    if not named:
        raise RefusedRequest(
            Refusal.WRONG_NAMES, f"{what} names no weights of a network of the method: {sorted(weights)}"
        )
    typed = [network for network in named if all(t.dtype == network[name].dtype for name, t in weights.items())]
    if not typed:
        raise RefusedRequest(Refusal.WRONG_DTYPE, f"{what} has weights of another dtype than the network")
    if not any(has_shapes_of(network, weights) for network in typed):
        raise RefusedRequest(Refusal.WRONG_SHAPE, f"{what} has weights of another shape than the network")


def has_shapes_of(network: PackedTensors, weights: PackedTensors) -> bool:
    """Whether the shapes are those of one model, or of several, stacked."""
    if all(tensor.shape == network[name].shape for name, tensor in weights.items()):
        return True
    axes = {tensor.shape[:1] for tensor in weights.values()}
    return len(axes) == 1 and all(tensor.shape[1:] == network[name].shape for name, tensor in weights.items())


class NodeIdentity(NamedTuple):
    """What SuperLink knows of a node, whatever the node says."""

    key: str = ""  # the SHA-256 of its public key; empty: it has none
    name: str = ""  # that its key was registered under; empty: none was given


class ReplyMessage(NamedTuple):
    """One message that came back."""

    request: str  # the id of the message it replies to
    config: ConfigValues
    tensors: PackedTensors
    has_failed: bool = False  # the network or the node says that there will be no other reply
    code: int = 0  # Flower's, of that failure

    def explain_failure(self) -> str:
        """Why a node did not do what it was asked, in words; of its own text what it chose to send."""
        if self.has_failed and self.code in EXPIRED:
            return TOO_SLOW
        if self.has_failed:
            return FLOWER_FAILURES.get(self.code, f"Flower's error {self.code}") + "; its own log says more"
        code = self.config.get("refusal")
        known = {int(refusal): words for refusal, words in FAILURES.items()}
        why = known.get(code, f"it refused the request, code {code}") if isinstance(code, int) else "no reason given"
        kind, text = (clean_text(self.config.get(name, "")) for name in ("error", "text"))
        return why + (f" ({kind})" if kind else "") + (f": {text}" if text else "; its own log says more")


def clean_text(value: object) -> str:
    """What a node wrote, as part of one line: printable, and not long."""
    text = " ".join(str(value).split())[:LONGEST_TEXT]
    return "".join(character for character in text if character.isprintable())


class MissedRequest(NamedTuple):
    """A request of an earlier call without a reply in time."""

    client: int
    task: str
    round: int  # from 0 on


class AcceptedReply(NamedTuple):
    """A reply that can be used."""

    send: Params
    has_saved: bool  # the client's memory has a new version since this task
    has_forgotten: bool  # it had lost the version that it should have gone on from
    sizes: tuple[object, object] = (None, None)  # training and test samples that it says it has now


def find_fault(packed: PackedTensors, specs: TensorSpecs) -> str | None:
    """Why a reply does not match these specs; None if it does. No tensor is made before all is known to fit."""
    if count_bytes(packed) > 2 * count_expected_bytes(specs) + SLACK:
        return OVERSIZED
    if specs and not packed:
        return EMPTY
    if packed.keys() != specs.keys():
        return WRONG_NAMES
    if any(tensor.dtype != specs[name][0] for name, tensor in packed.items()):
        return WRONG_DTYPE
    if any(tuple(tensor.shape) != specs[name][1] for name, tensor in packed.items()):
        return WRONG_SHAPE
    return None if all(tensor.is_complete for tensor in packed.values()) else DAMAGED


Judge = Callable[[int, AcceptedReply], str | None]  # a client's reply -> why its numbers cannot be used


@dataclass
class ReplyCollector:
    """The replies to one call."""

    call: int  # its number
    specs: TensorSpecs
    judge: Judge
    requests: dict[str, int] = field(default_factory=dict)  # message id -> the client it was sent to
    earlier: Mapping[str, MissedRequest] = field(default_factory=dict)  # message id -> one without a reply in time
    late: list[MissedRequest] = field(default_factory=list)  # those of them that have a reply now
    accepted: dict[int, AcceptedReply] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)  # ids of requests that have a reply
    expired: set[int] = field(default_factory=set)  # clients whose request was not answered while Flower kept it
    faults: list[tuple[int, str]] = field(default_factory=list)  # client, reason
    explained: dict[int, str] = field(default_factory=dict)  # client -> why it failed, in words
    received: dict[int, int] = field(default_factory=dict)  # client -> bytes of all that came from it

    @property
    def pending(self) -> set[str]:
        """Ids of requests without a reply yet."""
        return self.requests.keys() - self.answered

    def add(self, reply: ReplyMessage) -> None:
        """Accepts a reply, or notes why not."""
        if reply.request in self.earlier:
            self._add_late(reply, self.earlier[reply.request])
            return
        if reply.has_failed and reply.code in EXPIRED and reply.request in self.requests:
            self.answered.add(reply.request)
            self.expired.add(self.requests[reply.request])
            return
        client = self.requests.get(reply.request, -1)
        self._count_received(reply, client)
        reason = self._check_request_id(reply, client)
        if reason is None:
            self.answered.add(reply.request)
            reason = self._check_config(reply, client) or self._check_tensors(reply, client)
        if reason is not None:
            self.faults.append((client, reason))
            if reason in (FAILED, REFUSED):
                self.explained[client] = reply.explain_failure()

    def _add_late(self, reply: ReplyMessage, missed: MissedRequest) -> None:
        self._count_received(reply, missed.client)
        if not reply.has_failed:  # else it was missed in its own call
            self.late.append(missed)

    def _count_received(self, reply: ReplyMessage, client: int) -> None:
        if client >= 0 and not reply.has_failed:
            self.received[client] = self.received.get(client, 0) + count_bytes(reply.tensors)

    def _check_request_id(self, reply: ReplyMessage, client: int) -> str | None:
        if client < 0:
            return UNKNOWN
        return DUPLICATE if reply.request in self.answered else None

    def _check_config(self, reply: ReplyMessage, client: int) -> str | None:
        if reply.has_failed:
            return FAILED
        if not reply.config:
            return EMPTY
        if reply.config.get("call") != self.call:
            return STALE
        if reply.config.get("client") != client:
            return UNKNOWN
        if "refusal" in reply.config:
            return FAILED if reply.config["refusal"] in list(FAILURES) else REFUSED
        return None

    def _check_tensors(self, reply: ReplyMessage, client: int) -> str | None:
        """Why the tensors cannot be used; a reply whose tensors can be is accepted."""
        reason = find_fault(reply.tensors, self.specs)
        if reason is not None:
            return reason
        has_saved, has_forgotten = (reply.config.get(name) is True for name in ("saved", "forgot"))
        sizes = (reply.config.get("train"), reply.config.get("test"))
        received = AcceptedReply(unpack(reply.tensors), has_saved, has_forgotten, sizes)
        reason = self.judge(client, received)
        if reason is None:
            self.accepted[client] = received
        return reason
