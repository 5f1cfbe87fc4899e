"""Flower's own types: messages over the Grid, a node's Context, and the two apps. Only `simulation` has others."""

import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from kinfed.engines.flower.messages import (
    ConfigValues,
    NodeIdentity,
    PackedTensor,
    PackedTensors,
    ReplyMessage,
    pack,
    unpack,
)
from kinfed.engines.flower.node import (
    ClientNode,
    DataVersion,
    FolderMemory,
    Memory,
    TaskRequest,
    reply_or_refuse,
    run_task,
)
from kinfed.params import Params

RAW = "kinfed.raw"  # how the bytes of an array are to be read: as they lie in memory, little-endian
TASK, ENROL = "task", "enrol"


def to_records(config: ConfigValues, tensors: PackedTensors) -> RecordDict:
    """Values and tensors as the content of a message."""
    return RecordDict({"config": ConfigRecord(dict(config)), "arrays": to_array_record(tensors)})


def to_array_record(tensors: PackedTensors) -> ArrayRecord:
    """Tensors as Flower's arrays."""
    return ArrayRecord({name: Array(t.dtype, t.shape, RAW, t.data) for name, t in tensors.items()})


def from_array_record(record: ArrayRecord) -> dict[str, PackedTensor]:
    """The tensors of a record; bytes of another serialisation get a dtype that nobody knows."""
    return {
        name: PackedTensor(array.dtype if array.stype == RAW else array.stype, tuple(array.shape), array.data)
        for name, array in record.items()
    }


def read_config(message: Message) -> ConfigValues:
    """The values of a message; none where it has no such record."""
    records = message.content.config_records
    return {} if "config" not in records else {
        name: value for name, value in records["config"].items() if isinstance(value, int | float | bool | str)
    }  # fmt: skip


def read_arrays(message: Message) -> dict[str, PackedTensor]:
    """The tensors of a message; none where it has no such record."""
    records = message.content.array_records
    return from_array_record(records["arrays"]) if "arrays" in records else {}


@dataclass(frozen=True)
class Transport:
    """Requests to nodes and replies from them, over Flower's Grid."""

    grid: Grid

    def list_nodes(self) -> dict[int, NodeIdentity]:
        """The nodes that are connected now, by id."""
        return {
            node.node_id: NodeIdentity(
                hashlib.sha256(node.public_key).hexdigest() if node.public_key else "", node.name
            )
            for node in self.grid.get_nodes()
        }

    def send(
        self, action: str, requests: Iterable[tuple[int, ConfigValues, PackedTensors]], seconds: float
    ) -> list[str | None]:
        """The message ids of these requests (node, values, tensors); None for one that Flower did not take."""
        messages = [
            Message(to_records(config, tensors), node, f"query.{action}", ttl=max(1.0, seconds))
            for node, config, tensors in requests
        ]
        taken = set(self.grid.push_messages(messages)) if messages else set()
        return [m.metadata.message_id if m.metadata.message_id in taken else None for m in messages]

    def collect(self, requests: Collection[str]) -> list[ReplyMessage]:
        """The replies to these messages that have come by now."""
        return [read_reply(message) for message in self.grid.pull_messages(list(requests))] if requests else []


def read_reply(message: Message) -> ReplyMessage:
    """A reply; the text of an error is not looked at."""
    request = message.metadata.reply_to_message_id
    if message.has_error():
        return ReplyMessage(request, {}, {}, has_failed=True, code=message.error.code)
    return ReplyMessage(request, read_config(message), read_arrays(message))


@dataclass(frozen=True)
class ContextMemory:
    """A client's memory in the Context that Flower keeps for a node while its process lives."""

    state: RecordDict
    run: str

    def load(self, version: int) -> Params | None:
        name = self._name(version)
        return unpack(from_array_record(self.state.array_records[name])) if name in self.state else None

    def save(self, version: int, memory: Params) -> None:
        self.state[self._name(version)] = to_array_record(pack(memory))

    def keep_only(self, versions: Collection[int]) -> None:
        wanted = {self._name(version) for version in versions}
        for name in [name for name in self.state if name.startswith("memory.") and name not in wanted]:
            del self.state[name]

    def update_data_version(self, digest: str, round: int) -> int:
        name, records = f"samples.{self.run}", self.state.config_records
        known = DataVersion(**records[name]) if name in self.state else DataVersion(digest, round, 0)
        now = known.advance(digest, round)
        self.state[name] = ConfigRecord(asdict(now))
        return now.since

    def _name(self, version: int) -> str:
        return f"memory.{self.run}.{version}"


def build_server_app(main: Callable[[Grid, Context], None]) -> ServerApp:
    """The app of a server that does this."""
    app = ServerApp()
    app.main()(main)
    return app


def build_client_app(
    load_node: Callable[[Context, str], ClientNode], find_folder: Callable[[Context, str], Path | None]
) -> ClientApp:
    """The app of a node: it enrols, and runs tasks by name.

    Both functions are given the node's context and the server's id of its run; a node's memory is saved in its folder,
    or, if it has none, in Flower's context. With `report_errors = true` in its config the server is sent the text of
    its errors, which may hold data.
    """
    app = ClientApp()

    def reports(context: Context) -> bool:
        return context.node_config.get("report_errors") is True

    def enrol(message: Message, context: Context) -> Message:
        config = read_config(message)

        def work() -> tuple[ConfigValues, PackedTensors]:
            return load_node(context, str(config.get("run", ""))).enrolment(), {}

        return Message(to_records(*reply_or_refuse(config, work, reports(context))), reply_to=message)

    def task(message: Message, context: Context) -> Message:
        config = read_config(message)

        def work() -> tuple[ConfigValues, PackedTensors]:
            request = TaskRequest.parse(config)
            node = load_node(context, request.run)
            memory = open_memory(node, request, find_folder(context, request.run), context)
            return run_task(node, request, read_arrays(message), memory)

        return Message(to_records(*reply_or_refuse(config, work, reports(context))), reply_to=message)

    app.query(ENROL)(enrol)
    app.query(TASK)(task)
    return app


def open_memory(node: ClientNode, request: TaskRequest, folder: Path | None, context: Context) -> Memory:
    """The memory of a node's client in this run: in its folder, or in Flower's context."""
    if folder is None:
        return ContextMemory(context.state, request.run)
    return FolderMemory(folder / request.run / f"client-{node.number if node.number >= 0 else request.client}")
