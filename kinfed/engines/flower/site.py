"""A client at home: its own rows, its own copy of the algorithm, and how it does what it is asked to."""

import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from kinfed.client import Client, HasMemory, Samples
from kinfed.engines.flower.memory import Memory
from kinfed.engines.flower.offers import Refusal, Refused, checked
from kinfed.engines.flower.packing import Facts, Parcel, pack, raw
from kinfed.engines.sequential import ask, copy_method
from kinfed.method import Method
from kinfed.params import NOTHING, Params, from_flat, to_flat

LOG = logging.getLogger("kinfed.engines")
TOKEN = re.compile(r"[0-9a-f]{16}")


class Holding(NamedTuple):
    """The rows of one client."""

    x: Tensor  # [train, ...]
    y: Tensor  # [train]; -1: no label
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Site:
    """One client: who it is, what it has, and what it computes with."""

    name: str  # its own for good: who comes back under it is the same client
    method: Method[object]
    holding: Callable[[int], Holding]  # its rows in a round
    number: int = -1  # its place in the federation, if that is settled beforehand
    labelled: bool = True
    holdout: bool = False  # wants a model and does not train
    device: str = "cpu"
    watches: bool = False  # whether it looks for a change of its rows itself; else the server says when there was one

    def introduce(self) -> Facts:
        """What the server may know of it before any task: who it is and how many rows it has."""
        rows = self.holding(0)
        return {
            "name": self.name, "number": self.number, "train": len(rows.y), "test": len(rows.test_y),
            "labelled": self.labelled, "holdout": self.holdout,
        }  # fmt: skip


@dataclass(frozen=True)
class Call:
    """What a client is asked to do, beside the tensors it is sent."""

    run: str  # of which run of the server; it names the memory
    task: str
    tick: int  # the server's number of this call
    client: int  # the client's number there
    key: int  # randomness
    round: int
    since: int
    width: int  # of batches that are taken in order
    test_width: int
    accepted: int  # version of the memory to go on from; 0: none
    durable: int  # version that the server's checkpoint knows

    @classmethod
    def read(cls, facts: Facts) -> "Call":
        """The call in these facts; raises Refused where one is missing or of another type."""
        values = {f.name: facts.get(f.name) for f in fields(cls)}
        wrong = [f.name for f in fields(cls) if type(values[f.name]) is not f.type]
        if wrong or not TOKEN.fullmatch(str(values["run"])) or min(int(str(values[n])) for n in POSITIVE) < 1:
            raise Refused(Refusal.MALFORMED, f"a call's facts are missing or wrong: {wrong}")
        return cls(**values)  # type: ignore[arg-type]


POSITIVE = ("tick", "width", "test_width")


def guarded(facts: Facts, work: Callable[[], tuple[Facts, Parcel]]) -> tuple[Facts, Parcel]:
    """What a client answers: facts and tensors, or a code and nothing else."""
    echo = {name: facts[name] for name in ("tick", "client") if name in facts}
    try:
        said, sent = work()
        return echo | dict(said), sent
    except Refused as refusal:
        LOG.warning("refused: %s", refusal)
        return echo | {"fault": int(refusal.code)}, {}
    except Exception:  # whatever a task raises: its text may hold data, and Flower would send it
        LOG.exception("'%s' failed", facts.get("task", "enrol"))
        return echo | {"fault": int(Refusal.TASK_FAILED)}, {}


def done(site: Site, call: Call, parcel: Parcel, memory: Memory) -> tuple[Facts, Parcel]:
    """What the task sends; what it keeps is kept."""
    rows = site.holding(call.round)
    offered = checked(site.method, tuple(rows.x.shape[1:]), call.task, parcel)
    known = memory.recall(call.accepted) if call.accepted else None
    blank = to_flat(site.method.initial_memory() if isinstance(site.method, HasMemory) else NOTHING)
    if site.watches:
        call = replace(call, since=max(call.since, memory.arrival(digest_of(rows), call.round)))
    client = client_of(site, call, rows, known or blank)
    there = {name: t.to(site.device) for name, t in offered.items()}
    reply = ask(copy_method(site.method), call.task, client, from_flat(there))
    kept = to_flat(reply.keep)
    memory.forget_but({call.accepted, call.durable})
    if kept:
        memory.keep(call.tick, (known or blank) | {name: t.detach().cpu() for name, t in kept.items()})
    said = {"kept": bool(kept), "forgot": bool(call.accepted and known is None)}
    return said | {"train": len(rows.y), "test": len(rows.test_y)}, pack(to_flat(reply.send))


def digest_of(rows: Holding) -> str:
    """A digest of all rows and labels; it stays with the client."""
    digest = hashlib.sha256()
    for tensor in rows:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(raw(tensor))
    return digest.hexdigest()


def client_of(site: Site, call: Call, rows: Holding, remembered: Params) -> Client:
    """All that the task may look at."""

    def own(x: Tensor, y: Tensor, width: int) -> Samples:
        x, y = x.to(site.device), y.to(site.device)
        position, size = torch.arange(len(y), device=site.device), torch.tensor(len(y), device=site.device)
        return Samples(x, y, position, size, exact=True, width=width)

    key, now, since = (torch.tensor(number, device=site.device) for number in (call.key, call.round, call.since))
    memory = {name: t.to(site.device) for name, t in remembered.items()}
    train, test = own(rows.x, rows.y, call.width), own(rows.test_x, rows.test_y, call.test_width)
    return Client(train, test, key, now, since, from_flat(memory))
