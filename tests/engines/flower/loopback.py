"""Flower's Grid in this process: messages reach the real app of a node, and a test may tamper with the replies."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from kinfed.data import Population
from kinfed.engines import Flower
from kinfed.engines.flower.node import ClientNode
from kinfed.engines.flower.simulation import SimulatedRun, select_data
from kinfed.engines.flower.transport import build_client_app
from kinfed.method import Method

Tamperer = Callable[[Message, Message], list[Message]]  # a request and its reply -> what comes back instead


def pass_on(request: Message, reply: Message) -> list[Message]:
    return [reply]


class Loopback(Grid):
    """Nodes 100, 101, … are connected at once; one that is taken out of `online` is gone."""

    def __init__(self, nodes: int, tamper: Tamperer = pass_on, home: Path | None = None) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.ids = count(1)
        self.online = {100 + i: {"partition-id": i} for i in range(nodes)}
        self.contexts: dict[int, Context] = {}
        self.sent: list[Message] = []
        self.back: list[Message] = []
        self.tamper, self.home = tamper, home
        self.run_config: dict[str, object] = {}
        self.app = None

    def publish(self, token: str, published: SimulatedRun) -> None:
        """What a simulation does: gives the nodes their samples and their method."""

        def load_node(context: Context, run: str) -> ClientNode:
            assert run == token, "nodes know one run at a time"
            number = int(context.node_config["partition-id"])
            role = published.population.role(number)
            data = partial(select_data, published.population, number)
            role = role.labelled, role.holdout
            return ClientNode(f"site-{number}", published.method, data, number, *role, privacy=published.privacy)

        self.app = build_client_app(load_node, lambda context, run: self.home or published.memory_folder)

    @property
    def grid(self) -> "Loopback":
        return self

    def get_node_ids(self) -> Iterable[int]:
        return list(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        here = [m for m in self.back if m.metadata.reply_to_message_id in wanted | {""}]
        self.back = [m for m in self.back if m not in here]
        return here

    def _deliver(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = str(next(self.ids))
        self.sent.append(message)
        node = message.metadata.dst_node_id
        if node in self.online:
            blank = Context(1, node, self.online[node], RecordDict(), self.run_config)
            self.back += self.tamper(message, self.app(message, self.contexts.setdefault(node, blank)))
        else:
            self.back.append(Message(Error(5, "node unavailable"), reply_to=message))
        return message.metadata.message_id

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **more):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def make_flower(method: Method, population: Population, grid: Loopback, **settings: object) -> Flower:
    """The real engine on this grid."""
    return Flower(method, population, simulation=grid, **({"timeout": 0.3} | settings))
