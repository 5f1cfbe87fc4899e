"""A client on its node: its own samples, its own copy of the method, its memory, and how it does a task.

A client saves what a task tells it to keep under the number of that call. With the next task the server says which
version it has accepted (a reply may have come too late, or been damaged), and which its last checkpoint knows. The
client goes on from the accepted one, keeps both, and deletes the others: a server that is taken back to its checkpoint,
or a node that was restarted, finds the same memory again.
"""

import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kinfed.capabilities import summed_tasks_of
from kinfed.client import Client, Execution, HasMemory, Samples
from kinfed.client_tasks import COMMON, SCORES
from kinfed.engines.flower.messages import (
    ConfigValues,
    PackedTensors,
    Refusal,
    RefusedRequest,
    check_request,
    clean_text,
    pack,
    to_bytes,
    unpack,
)
from kinfed.engines.resident import name_copies
from kinfed.engines.sequential import ask, copy_method
from kinfed.errors import ConfigError, DataError, FileError, KinfedError, ModelError, OutOfMemory
from kinfed.files import reason_of, separate, write_bytes
from kinfed.method import Method
from kinfed.params import NOTHING, Params, from_flat, tensor_in, to_flat
from kinfed.privacy import OPEN, Privacy
from kinfed.ranges import Facts

LOG = logging.getLogger("kinfed.engines")
TOKEN = re.compile(r"[0-9a-f]{16}")
SUM_STAGES = ("share_keys", "mask", "unmask")  # of a secure sum
POSITIVE = ("call", "width", "test_width")
VERSIONS = ("accepted", "durable")  # of the memory; a negative one would name the secrets of a sum, and keep them


class ClientData(NamedTuple):
    """The samples of one client."""

    x: Tensor  # [train, ...]
    y: Tensor  # [train]; -1: no label
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class ClientNode:
    """One client: its name, its data, and its copy of the method."""

    name: str  # for good: a node that comes back under it is the same client
    method: Method[object]
    data: Callable[[int], ClientData]  # its samples in a round
    number: int = -1  # its client id, if that is fixed beforehand
    labelled: bool = True
    holdout: bool = False  # wants a model and does not train
    device: str = "cpu"
    entropy: Callable[[int], Tensor] | None = None  # of private noise; None: keyed, as where all is simulated
    privacy: Privacy = OPEN  # what it hides of its replies
    detects_changes: bool = False  # whether it notices new samples itself; else the server says when there were some

    def enrolment(self) -> ConfigValues:
        """What the server learns before any task: name, role, and how many samples there are."""
        data = self.data(0)
        return {
            "name": self.name, "number": self.number, "train": len(data.y), "test": len(data.test_y),
            "labelled": self.labelled, "holdout": self.holdout,
        }  # fmt: skip


@dataclass(frozen=True)
class TaskRequest:
    """What a client is asked to do, beside the tensors it is sent."""

    run: str  # the server's run; it names the memory
    task: str
    call: int  # the server's number of this call
    client: int  # its client id
    key: int  # randomness
    round: int
    since: int
    width: int  # of batches that are taken in order
    test_width: int
    accepted: int  # version of the memory to go on from; 0: none
    durable: int  # version that the server's checkpoint knows

    @classmethod
    def parse(cls, config: ConfigValues) -> "TaskRequest":
        """The request in a message's config; raises RefusedRequest where a value is missing or of another type."""
        values: dict[str, Any] = {f.name: config.get(f.name) for f in fields(cls)}
        wrong = [f.name for f in fields(cls) if type(values[f.name]) is not f.type]
        wrong = wrong or [name for name in POSITIVE if values[name] < 1] + [n for n in VERSIONS if values[n] < 0]
        if wrong or not TOKEN.fullmatch(values["run"]):
            raise RefusedRequest(Refusal.MALFORMED, f"a request's values are missing or invalid: {wrong}")
        return cls(**values)


class Memory(Protocol):
    """Where a client keeps what it remembers between tasks."""

    def load(self, version: int) -> Params | None:
        """What was saved under this number; None if it is not there."""

    def save(self, version: int, memory: Params) -> None:
        """Saves it."""

    def keep_only(self, versions: Collection[int]) -> None:
        """Deletes all other versions."""

    def update_data_version(self, digest: str, round: int) -> int:
        """The round in which the client first had samples of this digest; 0 if it never had others."""


@dataclass(frozen=True)
class DataVersion:
    """Which samples a client had at its last task."""

    digest: str
    round: int  # of that task
    since: int  # the round in which they came

    def advance(self, digest: str, round: int) -> "DataVersion":
        """The same at the next task; new samples are of a later round than the last task, which had the old ones."""
        return DataVersion(digest, round, self.since if digest == self.digest else max(round, self.round + 1))


@dataclass(frozen=True)
class FolderMemory:
    """Files of a folder of the client's own: they outlive its process."""

    folder: Path

    def load(self, version: int) -> Params | None:
        try:
            return load_file(self._path(version))
        except (FileNotFoundError, SafetensorError):
            return None

    def save(self, version: int, memory: Params) -> None:
        temporary = self.folder / f".{version}.new"
        self._make_folder()
        try:
            save_file(separate({name: t.detach().cpu().contiguous() for name, t in memory.items()}), temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.chmod(temporary, 0o600)
            os.replace(temporary, self._path(version))
        except (OSError, SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            raise FileError(f"{self._path(version)} cannot be written: {reason_of(error)}") from error

    def keep_only(self, versions: Collection[int]) -> None:
        for path in self.folder.glob("memory-*.safetensors"):
            if path.stem.removeprefix("memory-") not in map(str, versions):
                path.unlink(missing_ok=True)

    def update_data_version(self, digest: str, round: int) -> int:
        path = self.folder / "samples.json"
        known = DataVersion(**json.loads(path.read_text())) if path.exists() else DataVersion(digest, round, 0)
        now = known.advance(digest, round)
        self._make_folder()
        write_bytes(path, json.dumps(asdict(now)).encode())
        return now.since

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{self.folder} cannot be written: {reason_of(error)}") from error

    def _path(self, version: int) -> Path:
        return self.folder / f"memory-{version}.safetensors"


def reply_or_refuse(
    config: ConfigValues, work: Callable[[], tuple[ConfigValues, PackedTensors]], reports_errors: bool = False
) -> tuple[ConfigValues, PackedTensors]:
    """What a client replies to a request: values and tensors, or a code and the kind of an error.

    The text of an error may hold data: it is sent only if the client `reports_errors`.
    """
    echo = {name: config[name] for name in ("call", "client") if name in config}
    try:
        values, tensors = work()
        return echo | dict(values), tensors
    except RefusedRequest as refusal:
        LOG.warning("refused: %s", refusal)
        return echo | {"refusal": int(refusal.code)}, {}
    except Exception as error:  # whatever a task raises: Flower would send its text
        at = None if isinstance(error, KinfedError) else error.__traceback__  # its text says what to do
        LOG.error("'%s' failed", config.get("task", "enrol"), exc_info=(type(error), error, at))
        text = {"text": clean_text(error)} if reports_errors else {}
        return echo | {"refusal": int(find_code(error)), "error": name_error(error)} | text, {}


def find_code(error: Exception) -> Refusal:
    """The code of an error."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError | OutOfMemory):
        return Refusal.OUT_OF_MEMORY
    if isinstance(error, DataError):
        return Refusal.INVALID_SAMPLES
    if isinstance(error, ModelError):
        return Refusal.INVALID_MODEL
    if isinstance(error, FileError):
        return Refusal.NOT_WRITTEN
    return Refusal.INVALID_CONFIG if isinstance(error, ConfigError) else Refusal.TASK_FAILED


def name_error(error: Exception) -> str:
    """The kind of an error, where Python, torch, numpy or kinfed has it: a name of another's making may hold data."""
    module = type(error).__module__.split(".")[0]
    return type(error).__name__ if module in ("builtins", "torch", "numpy", "kinfed") else "an own error"


def run_task(
    node: ClientNode, request: TaskRequest, packed: PackedTensors, memory: Memory
) -> tuple[ConfigValues, PackedTensors]:
    """What the task sends; what it keeps is saved."""
    data = node.data(request.round)
    sizes = {"train": len(data.y), "test": len(data.test_y)}
    if node.privacy.secure_aggregation and request.task in SUM_STAGES:
        return sizes, run_stage(node, request, packed, memory)
    offer = check_request(node.method, tuple(data.x.shape[1:]), request.task, packed)
    known = memory.load(request.accepted) if request.accepted else None
    initial = to_flat(node.method.initial_memory() if isinstance(node.method, HasMemory) else NOTHING)
    if node.detects_changes:
        since = memory.update_data_version(compute_digest(data), request.round)
        request = replace(request, since=max(request.since, since))
    client = make_client(node, request, data, known or initial)
    on_device = {name: t.to(node.device) for name, t in offer.items()}
    reply = ask(copy_method(node.method), request.task, client, from_flat(on_device))
    if "metric" in reply.send and request.task in COMMON and len(data.test_y):
        check_score(node.method, tensor_in(reply.send, "metric").cpu(), len(data.test_y))
    kept = to_flat(reply.keep)
    memory.keep_only({request.accepted, request.durable})
    if kept:
        memory.save(request.call, (known or initial) | {name: t.detach().cpu() for name, t in kept.items()})
    values = {"saved": bool(kept), "forgot": bool(request.accepted and known is None)}
    send = hide(node, request, to_flat(reply.send), len(data.y), memory)
    return values | sizes, pack(send)


def check_score(method: Method[object], metric: Tensor, samples: int) -> None:
    """Raises ModelError where the server would take the scores of so many test samples for a lie, by the task's range.

    Else an honest client would be excluded for what is wrong in the task.
    """
    size = torch.tensor([samples])
    if not bool(SCORES["metric"].contains(metric[None], Facts(method, size, size))):
        method.model.check_range(metric / samples)


def hide(node: ClientNode, request: TaskRequest, send: Params, samples: int, memory: Memory) -> Params:
    """What a client sends of a reply: all of it, or, where models are only summed, what no sum is taken of."""
    if not node.privacy.secure_aggregation:
        return send
    if request.task not in summed_tasks_of(node.method):
        if any("/" in name for name in send):
            raise RefusedRequest(Refusal.UNKNOWN_TASK, f"'{request.task}' would show a model of this client alone")
        return send
    from kinfed.engines.flower.secure_sums import PUBLIC_KEYS, SumSession

    held, public = SumSession.begin({n: t for n, t in send.items() if t.is_floating_point()}, samples)
    memory.save(-request.call, held)
    return {name: t for name, t in send.items() if not t.is_floating_point()} | {PUBLIC_KEYS: public}


def run_stage(node: ClientNode, request: TaskRequest, packed: PackedTensors, memory: Memory) -> PackedTensors:
    """What a client sends at a further stage of a secure sum."""
    from kinfed.engines.flower.secure_sums import SumSession

    if not all(tensor.is_complete for tensor in packed.values()) or "session" not in packed:
        raise RefusedRequest(Refusal.WRONG_SHAPE, f"'{request.task}' has other bytes than its shapes say")
    offer = unpack(packed)
    version = -int(offer["session"])
    held = memory.load(version)
    if held is None:
        raise RefusedRequest(Refusal.MALFORMED, f"'{request.task}' is of a sum that is over, or never began")
    kept, send = SumSession(held, request.client, node.privacy.min_cluster).run(request.task, offer)
    if kept:
        memory.save(version, kept)
    else:
        memory.keep_only({request.accepted, request.durable})
    return pack(send)


def compute_digest(data: ClientData) -> str:
    """A digest of all samples and labels; it stays with the client."""
    digest = hashlib.sha256()
    for tensor in data:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(to_bytes(tensor))
    return digest.hexdigest()


def make_client(node: ClientNode, request: TaskRequest, data: ClientData, remembered: Params) -> Client:
    """All that the task may look at."""

    def wrap(x: Tensor, y: Tensor, width: int) -> Samples:
        x, y = x.to(node.device), y.to(node.device)
        position, size = torch.arange(len(y), device=node.device), torch.tensor(len(y), device=node.device)
        return Samples(x, y, position, size, exact=True, width=width, names=name_copies(node.method, x, y))

    numbers = (request.key, request.round, request.since)
    key, now, since = (torch.tensor(number, device=node.device) for number in numbers)
    memory = {name: t.to(node.device) for name, t in remembered.items()}
    train, test = wrap(data.x, data.y, request.width), wrap(data.test_x, data.test_y, request.test_width)
    return Client(train, test, key, now, since, from_flat(memory), Execution(entropy=node.entropy))


def draw_bits(count: int) -> Tensor:
    """Random 64-bit numbers of the operating system, which nobody else knows."""
    return torch.frombuffer(bytearray(secrets.token_bytes(8 * count)), dtype=torch.int64)
