"""Flower's own types: letters to nodes, answers from them, and the apps. Only this file and `simulation` have them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from kinfed.engines.flower.memory import InFolder, Memory, Seen
from kinfed.engines.flower.packing import Facts, Packed, Parcel, pack, unpack
from kinfed.engines.flower.replies import Answer
from kinfed.engines.flower.site import Call, Site, done, guarded
from kinfed.params import Params

RAW = "kinfed.raw"  # how the bytes of an array are to be read: as they lie in memory, little-endian
TASK, ENROL = "task", "enrol"


def content(facts: Facts, parcel: Parcel) -> RecordDict:
    """Facts and tensors as Flower's records."""
    return RecordDict({"facts": ConfigRecord(dict(facts)), "arrays": as_record(parcel)})


def as_record(parcel: Parcel) -> ArrayRecord:
    return ArrayRecord({name: Array(p.dtype, p.shape, RAW, p.data) for name, p in parcel.items()})


def from_record(record: ArrayRecord) -> dict[str, Packed]:
    """The tensors of a record; bytes of another way of writing them have a dtype that nobody knows."""
    return {
        name: Packed(array.dtype if array.stype == RAW else array.stype, tuple(array.shape), array.data)
        for name, array in record.items()
    }


def facts_in(message: Message) -> Facts:
    records = message.content.config_records
    return {} if "facts" not in records else {
        name: value for name, value in records["facts"].items() if isinstance(value, int | float | bool | str)
    }  # fmt: skip


def parcel_in(message: Message) -> dict[str, Packed]:
    records = message.content.array_records
    return from_record(records["arrays"]) if "arrays" in records else {}


@dataclass(frozen=True)
class Post:
    """Letters to nodes and back, over Flower's Grid."""

    grid: Grid

    def nodes(self) -> set[int]:
        """The nodes that are connected now."""
        return set(self.grid.get_node_ids())

    def send(self, kind: str, letters: Iterable[tuple[int, Facts, Parcel]], seconds: float) -> list[str | None]:
        """The ids of these letters (node, facts, tensors); None for one that Flower did not take."""
        messages = [
            Message(content(facts, parcel), node, f"query.{kind}", ttl=max(1.0, seconds))
            for node, facts, parcel in letters
        ]
        taken = set(self.grid.push_messages(messages)) if messages else set()
        return [m.metadata.message_id if m.metadata.message_id in taken else None for m in messages]

    def collect(self, letters: Collection[str]) -> list[Answer]:
        """The answers to these letters that have come by now."""
        return [read(message) for message in self.grid.pull_messages(list(letters))] if letters else []


def read(message: Message) -> Answer:
    """A message as an answer; the text of an error is not looked at."""
    letter = message.metadata.reply_to_message_id
    if message.has_error():
        return Answer(letter, {}, {}, has_failed=True)
    return Answer(letter, facts_in(message), parcel_in(message))


@dataclass(frozen=True)
class InContext:
    """A client's memory in the state that Flower keeps for a node while its process lives."""

    state: RecordDict
    run: str

    def recall(self, version: int) -> Params | None:
        name = self._name(version)
        return unpack(from_record(self.state.array_records[name])) if name in self.state else None

    def keep(self, version: int, memory: Params) -> None:
        self.state[self._name(version)] = as_record(pack(memory))

    def forget_but(self, versions: Collection[int]) -> None:
        wanted = {self._name(version) for version in versions}
        for name in [name for name in self.state if name.startswith("memory.") and name not in wanted]:
            del self.state[name]

    def arrival(self, digest: str, round: int) -> int:
        name = f"rows.{self.run}"
        seen = Seen(**self.state.config_records[name]) if name in self.state else Seen(digest, round, 0)
        now = seen.again(digest, round)
        self.state[name] = ConfigRecord(asdict(now))
        return now.since

    def _name(self, version: int) -> str:
        return f"memory.{self.run}.{version}"


def server_app(main: Callable[[Grid, Context], None]) -> ServerApp:
    """The app of a server that does this."""
    app = ServerApp()
    app.main()(main)
    return app


def client_app(site_of: Callable[[Context, str], Site], home_of: Callable[[Context, str], Path | None]) -> ClientApp:
    """The app of a node: it introduces itself, and does tasks by name.

    Both functions are given the node's context and what the server calls its run; a node's memory is kept in its home,
    or, if it has none, in Flower's context.
    """
    app = ClientApp()

    def enrol(message: Message, context: Context) -> Message:
        facts = facts_in(message)
        answer = guarded(facts, lambda: (site_of(context, str(facts.get("run", ""))).introduce(), {}))
        return Message(content(*answer), reply_to=message)

    def task(message: Message, context: Context) -> Message:
        facts = facts_in(message)

        def work() -> tuple[Facts, Parcel]:
            call = Call.read(facts)
            site, home = site_of(context, call.run), home_of(context, call.run)
            memory: Memory = InContext(context.state, call.run)
            if home is not None:
                memory = InFolder(home / call.run / f"client-{site.number if site.number >= 0 else call.client}")
            return done(site, call, parcel_in(message), memory)

        return Message(content(*guarded(facts, work)), reply_to=message)

    app.query(ENROL)(enrol)
    app.query(TASK)(task)
    return app
