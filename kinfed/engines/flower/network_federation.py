"""Clients behind a network: tasks as messages over Flower's Grid, aggregated over the clients that reply.

What a client keeps stays with it: the server knows only which version of its memory was accepted (see `node`).
"""

import logging
import secrets
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from kinfed.capabilities import summed_tasks_of
from kinfed.data.population import Population
from kinfed.engines.flower.messages import (
    DTYPES,
    STALE,
    AcceptedReply,
    ConfigValues,
    Judge,
    MissedRequest,
    NodeIdentity,
    PackedTensors,
    ReplyCollector,
    ReplyMessage,
    TensorSpecs,
    pack,
)
from kinfed.engines.flower.patience import Patience
from kinfed.engines.flower.reply_specs import predict_specs
from kinfed.engines.workers import ProgressLog
from kinfed.errors import NetworkError
from kinfed.federation import (
    FAILED,
    FORGOT,
    NO_ANSWER,
    NO_SAMPLES,
    NOT_ASKED,
    NOT_FINITE,
    OUT_OF_RANGE,
    Federation,
    Offer,
    Rejected,
    Replies,
    count_models,
)
from kinfed.method import Method
from kinfed.params import Stack, from_flat, select, stack, to_flat
from kinfed.ranges import Facts, Range, check_numbers
from kinfed.replies import find_variances

if TYPE_CHECKING:
    from kinfed.engines.flower.transport import Transport

State = TypeVar("State")
LOG = logging.getLogger("kinfed.engines")
MAX_SILENT_CALLS = 3  # in a row, before the run ends with an error
MAX_FAILED_SUMS = 5  # the same of tasks whose sums could not be used
ENROL_EVERY = 3.0  # seconds between two looks for new nodes during a long task
MOST_PAUSE = 60.0  # seconds until a node that cannot take part is asked again: 1, 2, 4, …
MOST_OF_ONE = 10  # different problems of a node that are logged


def now_text() -> str:
    """The time, as logs write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Problem(NamedTuple):
    """What went wrong with a node."""

    time: str
    node: str  # its name
    text: str


def ignore_change() -> None:
    """Nobody watches."""


class NetworkFederation(Federation):
    """A federation whose clients are Flower's nodes."""

    method: Method[object]
    sums_securely: ClassVar[bool] = True

    def __init__(
        self, method: Method[object], population: Population, *, fraction: float = 1.0, seed: int = 0,
        device: str = "cpu", patience: Patience | None = None,
    ) -> None:  # fmt: skip
        super().__init__(method, population, fraction=fraction, seed=seed, device=device)
        self.patience = patience or Patience()
        self.token = secrets.token_hex(8)  # the id by which clients know this run
        self.memory = {"version": torch.zeros(self.count, dtype=torch.long)}  # of each client's memory
        self.durable = self.memory["version"]  # the same as the last checkpoint has it
        self.nodes: dict[int, int] = {}  # client -> node
        self.enrolling: dict[str, int] = {}  # id of an enrolment message without a reply -> node
        self.refused: dict[int, tuple[int, float]] = {}  # node -> how often it could not enrol, when it is asked again
        self.failing: dict[str, str] = {}  # what went wrong last with a node that has not replied since
        self.problems: list[Problem] = []  # each logged once, the latest last
        self.on_change: Callable[[], None] = ignore_change  # called whenever nodes, tasks or problems may have changed
        self.task = ("", 0, 0)  # the one that is going on: its name, clients asked, clients that replied
        self.unanswered: dict[str, MissedRequest] = {}  # by the id of the request
        self.specs: dict[tuple[object, ...], TensorSpecs] = {}
        self.has_begun = False
        self.next_round = 0  # the round in which a client that enrols now enters
        self.silent_calls = 0  # in a row
        self.failed_sums = 0  # in a row
        self.tasks = 0  # that clients were asked since this process began
        self.misses: dict[int, int] = {}  # client -> tasks in a row without a reply
        self.resting: dict[int, int] = {}  # client -> the task from which on it is asked again

    @property
    @abstractmethod
    def transport(self) -> "Transport":
        """The way to the nodes."""

    @abstractmethod
    def _find_client(self, enrolment: ConfigValues, node: int, identity: NodeIdentity) -> int | str:
        """The id of the client that enrols with these values, or why it cannot take part."""

    def _check_sizes(self, client: int, train: object, test: object) -> tuple[int, int] | None:
        """How many samples a client has that says it has so many; None where it cannot be."""
        return len(self.train[client]), len(self.test[client])

    def _update_sizes(self, client: int, train: int, test: int) -> None:
        """Takes note of how many samples a client has now."""

    def wait_for_clients(self, wanted: int, seconds: float) -> None:
        """Waits until so many clients have enrolled."""
        until, pause, progress = time.monotonic() + seconds, 0.05, ProgressLog("connected", wanted)
        while True:
            is_over = time.monotonic() > until  # before the last look, which may take long
            if (connected := self._enrol_nodes()) >= wanted:
                break
            progress.update(connected)
            self.on_change()
            if is_over:
                why = "".join(f"; {number} {text}" for text, number in Counter(self.failing.values()).most_common())
                raise NetworkError(
                    f"{len(self.nodes)} of {wanted} clients enrolled within {seconds:.0f} s: "
                    f"start the others, or wait for fewer{why}"
                )
            time.sleep(pause)
            pause = min(0.5, 1.3 * pause)
        self.next_round = max(self.next_round, 1)

    def begin(self, round: int) -> None:
        super().begin(round)
        self.has_begun = True
        self.next_round = max(self.next_round, round)
        self._enrol_nodes()
        self.next_round = max(self.next_round, round + 1)  # no client enters in the middle of a round

    def note_checkpoint(self) -> None:
        self.durable = self.memory["version"]

    def state_dict(self) -> dict[str, object]:
        return {"token": self.token, "round": self.round}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        if state_dict.get("token", self.token) != self.token:
            self.nodes, self.enrolling, self.token = {}, {}, str(state_dict["token"])
        self.next_round = max(self.next_round, int(str(state_dict.get("round", -1))) + 1)

    def _enrol_nodes(self) -> int:
        """How many clients are connected, once nodes that have replied by now are enrolled; asks new nodes to."""
        transport = self.transport
        connected = transport.list_nodes()
        self.nodes = {client: node for client, node in self.nodes.items() if node in connected}
        self.enrolling = {request: node for request, node in self.enrolling.items() if node in connected}
        self.refused = {node: when for node, when in self.refused.items() if node in connected}
        for reply in transport.collect(self.enrolling.keys()):
            node = self.enrolling.pop(reply.request, -1)
            self._enrol(reply, node, connected.get(node, NodeIdentity()))
        waiting = {node for node, (_, until) in self.refused.items() if until > time.monotonic()}
        new = sorted(connected.keys() - set(self.nodes.values()) - set(self.enrolling.values()) - waiting)
        sent = transport.send("enrol", [(node, {"run": self.token}, {}) for node in new], self.patience.timeout)
        self.enrolling |= {request: node for request, node in zip(sent, new, strict=True) if request is not None}
        return len(self.nodes)

    def _enrol(self, reply: ReplyMessage, node: int, identity: NodeIdentity) -> None:
        client = self._find_client(reply.config, node, identity) if node >= 0 and not reply.has_failed else FAILED
        if "refusal" in reply.config or reply.has_failed:
            client = reply.explain_failure()
        elif isinstance(client, int) and self.nodes.get(client, node) != node:
            client = "another node is connected under its name"
        if isinstance(client, int):
            self.nodes[client] = node
            self.refused.pop(node, None)
            self.failing.pop(identity.name or f"node {node}", None)
        else:
            times = self.refused.get(node, (0, 0.0))[0]
            self.refused[node] = times + 1, time.monotonic() + min(2.0 ** min(times, 10), MOST_PAUSE)
            self._report(identity.name or f"node {node}", f"cannot take part: {client}")

    def _report(self, node: str, text: str) -> None:
        """Logs what went wrong with a node, once; no node can fill the log."""
        self.failing[node] = text
        known = {problem.text for problem in self.problems if problem.node == node}
        if text not in known and len(known) < MOST_OF_ONE:
            self.problems.append(Problem(now_text(), node, text))
            LOG.warning("%s %s", node, text)
            self.on_change()

    @property
    def last_call(self) -> int:
        """The number of the latest call."""
        return sum(self.calls.values())

    def predict_reply(self, name: str, offer: Offer) -> TensorSpecs:
        """Dtypes and shapes of what the task replies to this offer, from one dry run of it on the server."""
        return self._find_specs(name, offer, is_plain=True)

    def exchange(self, stage: str, cohort: Tensor, offer: Offer) -> Replies:
        """One message of a secure sum to each of these clients, and its reply."""
        self._next_key(stage)
        return self._ask(stage, cohort, torch.zeros_like(cohort), offer, {})  # no number is one that can be judged

    def note_sums(self, task: str, summed: int) -> None:
        """Raises NetworkError where for too long no reply to tasks that are summed securely was in a sum."""
        self.failed_sums = 0 if summed else self.failed_sums + 1
        if self.failed_sums >= MAX_FAILED_SUMS:
            raise NetworkError(
                f"no secure sum of {self.failed_sums} tasks in a row could be used, the last was '{task}': a client "
                "sends damaged keys or shares, or has made weights too large to be summed, or fewer than "
                f"privacy.min_cluster = {self.privacy.min_cluster} clients of each cluster reply; the log and "
                "events.jsonl say more"
            )

    def _answers(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, ranges: Mapping[str, Range]) -> Replies:
        if not self._is_summed(name):
            return self._ask(name, cohort, keys, offer, ranges)
        from kinfed.engines.flower.secure_sums import sum_securely

        return sum_securely(self, name, cohort, offer, self._ask(name, cohort, keys, offer, ranges))

    def _is_summed(self, name: str) -> bool:
        return self.privacy.secure_aggregation and name in summed_tasks_of(self.method)

    def _ask(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, ranges: Mapping[str, Range]) -> Replies:
        self.tasks += 1
        self.task = (name, len(cohort), 0)
        self.on_change()
        judge = self._make_judge(ranges, offer)
        replies = ReplyCollector(self.last_call, self._find_specs(name, offer), judge, earlier=dict(self.unanswered))
        left_out, asked = self._find_resting(cohort), set[int]()
        for _ in range(1 if self.has_begun else self.patience.attempts):
            settled = replies.accepted.keys() | {client for client, reason in replies.faults if reason != FAILED}
            silent = [i for i, client in enumerate(cohort.tolist()) if client not in settled | left_out]
            if silent:
                self._enrol_nodes()
                asked |= self._send_requests(name, cohort, keys, offer, replies, silent)
                self._collect_replies(name, replies)
        self._log_faults(name, cohort, replies, left_out)
        self._update_rests(name, replies)
        self._count_bytes(name, cohort, offer, replies, asked)
        clients = [client for client in cohort.tolist() if client in replies.accepted]
        self._update_memory_versions(replies, clients)
        for client in clients:
            if sizes := self._check_sizes(client, *replies.accepted[client].sizes):
                self._update_sizes(client, *sizes)
        ids = torch.tensor(clients, dtype=torch.long, device=self.device)
        return Replies(ids, from_flat(self._stack_replies(replies, clients)))

    def _make_judge(self, ranges: Mapping[str, Range], offer: Offer) -> Judge:
        """What says why the numbers of a client's reply cannot be used, one reply at a time."""
        models, variances = count_models(offer), find_variances(offer)

        def judge(client: int, reply: AcceptedReply) -> str | None:
            sizes = self._check_sizes(client, *reply.sizes)
            if sizes is None:
                return OUT_OF_RANGE
            if not sizes[0] and len(self.train[client]):  # it would weigh nothing: 0 of 0, where it is alone
                return NO_SAMPLES
            train, test = torch.tensor(sizes)[:, None]
            facts = Facts(self.method, train, test, models, variances)
            finite, inside = check_numbers({name: t[None] for name, t in reply.send.items()}, 1, ranges, facts)
            return OUT_OF_RANGE if not bool(inside) else None if bool(finite) else NOT_FINITE

        return judge

    def _find_resting(self, cohort: Tensor) -> set[int]:
        """Those of the cohort that were silent and are not asked yet; nobody where that would be all."""
        resting = {client for client in cohort.tolist() if self.resting.get(client, 0) > self.tasks}
        return resting if any(client in self.nodes and client not in resting for client in cohort.tolist()) else set()

    def _update_rests(self, name: str, replies: ReplyCollector) -> None:
        """Leaves silent clients out of the next tasks, the more of them the longer they are silent."""
        for client in replies.accepted:
            self.failing.pop(self.name_client(client), None)
        for client in replies.accepted.keys() & self.misses.keys():
            LOG.info("%s replies again", self.name_client(client))
            del self.misses[client]
        silent = replies.expired | {replies.requests[request] for request in replies.pending}
        for client in sorted(silent - replies.accepted.keys()):
            self.misses[client] = self.misses.get(client, 0) + 1
            rest = self.patience.rest(self.misses[client])
            self.resting[client] = self.tasks + rest + 1
            LOG.warning("%s did not reply to '%s' in time: left out of %d tasks", self.name_client(client), name, rest)

    def _send_requests(
        self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, replies: ReplyCollector, positions: list[int]
    ) -> set[int]:
        """Sends the requests of a call to these positions of the cohort; gives back the clients that were sent one."""
        shared, table, packed = pack(to_flat(offer.shared)), to_flat(offer.each), dict[int, PackedTensors]()
        common, requests, clients = self._common_config(name, replies.call), [], []
        for i in positions:
            client, row = int(cohort[i]), i if offer.pick is None else int(offer.pick[i])
            if client not in self.nodes:
                continue
            if row not in packed:
                packed[row] = shared | pack(select(table, row))
            config = self._request_config(client, int(keys[i]))
            requests.append((self.nodes[client], {**common, **config}, packed[row]))
            clients.append(client)
        sent = self.transport.send("task", requests, self.patience.timeout)
        taken = {request: client for request, client in zip(sent, clients, strict=True) if request is not None}
        replies.requests |= taken
        return set(taken.values())

    def _common_config(self, name: str, call: int) -> ConfigValues:
        """What all requests of a call say; widths hang on the samples of all clients, so they are found once."""
        widths: ConfigValues = {"width": self.width(self.train), "test_width": self.width(self.test)}
        return {"run": self.token, "task": name, "call": call, "round": self.round, **widths}

    def _request_config(self, client: int, key: int) -> ConfigValues:
        """What the request of one client says besides."""
        accepted, durable = int(self.memory["version"][client]), int(self.durable[client])
        since = int(self.since[client])
        return {"client": client, "key": key, "since": since, "accepted": accepted, "durable": durable}

    def _collect_replies(self, name: str, replies: ReplyCollector) -> None:
        """Takes replies until all are there, or a quorum and the deadline has passed, or the time is over."""
        began, pause, look = time.monotonic(), 0.01, time.monotonic() + ENROL_EVERY
        progress, asked = ProgressLog(name, len(replies.pending)), len(replies.pending)
        until = began + self.patience.timeout
        while replies.pending:
            is_over = time.monotonic() > until  # before the last look, which may take long
            if time.monotonic() > look:
                self._enrol_nodes()  # so that a client that connects during a long round is there in the next
                look = time.monotonic() + ENROL_EVERY
            for reply in self.transport.collect(replies.pending | self.unanswered.keys()):
                replies.add(reply)
                self.unanswered.pop(reply.request, None)
            replied = asked - len(replies.pending)
            progress.update(replied)
            self.task = (name, asked, replied)
            self.on_change()
            if is_over or not replies.pending:
                return
            until = min(until, self.patience.deadline(began, time.monotonic(), asked, replied))
            time.sleep(pause)
            pause = min(1.0, 1.3 * pause)

    def _log_faults(self, name: str, cohort: Tensor, replies: ReplyCollector, left_out: set[int]) -> None:
        """Notes which replies were rejected, which clients were silent or not asked, and which lost their memory."""
        faulty = {client for client, _ in replies.faults}
        silent = [c for c in cohort.tolist() if c not in replies.accepted and c not in faulty]
        forgot = [client for client, reply in replies.accepted.items() if reply.has_forgotten]
        missing = [(client, NOT_ASKED if client in left_out else NO_ANSWER) for client in silent]
        noted = [*replies.faults, *missing, *((c, FORGOT) for c in forgot)]
        self.rejected += [Rejected(self.round, name, client, reason) for client, reason in noted]
        for client, reason in replies.faults:
            why = replies.explained.get(client, f"its reply is not used: {reason}")
            self._report(self.name_client(client) if client >= 0 else "an unknown node", f"failed at '{name}': {why}")
        self._log_late(replies.late)
        missed = {request: MissedRequest(replies.requests[request], name, self.round) for request in replies.pending}
        self.unanswered = dict(list((self.unanswered | missed).items())[-4 * self.count :])
        self.silent_calls = 0 if replies.accepted or not len(cohort) else self.silent_calls + 1
        if self.silent_calls >= MAX_SILENT_CALLS:
            reasons = Counter(reason for _, reason in [*replies.faults, *missing])
            found = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
            raise NetworkError(
                f"no client sent a reply that can be used to {self.silent_calls} tasks in a row, the last was '{name}' "
                f"({found}): check that nodes are connected, and their logs, and engine.timeout, then resume the run"
            )

    def _log_late(self, late: list[MissedRequest]) -> None:
        """Notes the replies to earlier calls that came in this one."""
        for client, task, round in late:
            self.rejected.append(Rejected(self.round, task, client, STALE))
            LOG.warning("%s replied too late to '%s' of round %d: not used", self.name_client(client), task, round + 1)

    def _count_bytes(self, name: str, cohort: Tensor, offer: Offer, replies: ReplyCollector, asked: set[int]) -> None:
        """Counts what was sent and all that came, accepted or not."""
        sent = cohort[[client in asked for client in cohort.tolist()]]
        back = torch.tensor(list(replies.received), dtype=torch.long)
        received = torch.tensor([*replies.received.values()]).long()
        self.ledger.count(self.round, name, sent, offer.bytes_each(), back, received)

    def _update_memory_versions(self, replies: ReplyCollector, clients: list[int]) -> None:
        saved = [client for client in clients if replies.accepted[client].has_saved]
        lost = [client for client in clients if replies.accepted[client].has_forgotten]
        version = self.memory["version"].index_fill(0, torch.tensor(lost, dtype=torch.long), 0)
        self.memory = {"version": version.index_fill(0, torch.tensor(saved, dtype=torch.long), replies.call)}

    def _stack_replies(self, replies: ReplyCollector, clients: list[int]) -> Stack:
        """What these clients sent, stacked in their order; empty stacks if there are none."""
        if clients:
            sent = stack([replies.accepted[c].send for c in clients])
            return {name: t.to(self.device) for name, t in sent.items()}
        return {n: torch.empty(0, *s, dtype=DTYPES[d], device=self.device) for n, (d, s) in replies.specs.items()}

    def _find_specs(self, name: str, offer: Offer, is_plain: bool = False) -> TensorSpecs:
        """Dtypes and shapes of a reply to this offer, from one dry run of the task on the server."""
        if self.privacy.secure_aggregation and not is_plain:
            from kinfed.engines.flower.secure_sums import STAGES, specify, specify_stage

            if name in STAGES:
                return specify_stage(name, offer)
            if self._is_summed(name):
                return specify(self._find_specs(name, offer, is_plain=True))
        row = 0 if offer.pick is None or not len(offer.pick) else int(offer.pick[0])
        offered = to_flat(offer.shared) | select(to_flat(offer.each), row)
        key = (name, *((n, tuple(t.shape), t.dtype) for n, t in offered.items()))
        if key not in self.specs:
            self.specs[key] = predict_specs(self.method, name, offered, self.x)
        return self.specs[key]
