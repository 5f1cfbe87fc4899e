"""Clients behind a network: the verb as letters over Flower's Grid, aggregated over who answered.

What a client keeps stays with it: the server knows only which version of it was accepted (see `memory`).
"""

import logging
import secrets
import time
from abc import abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kinfed.data.population import Population
from kinfed.engines.flower.expected import expected_form
from kinfed.engines.flower.packing import DTYPES, Facts, Form, Parcel, pack
from kinfed.engines.flower.replies import Answer, Inbox
from kinfed.engines.progress_log import ProgressLog
from kinfed.errors import ConfigError, NetworkError
from kinfed.federation import FAILED, FORGOT, NO_ANSWER, Federation, Offer, Rejected, Replies
from kinfed.method import Method
from kinfed.params import Stack, from_flat, select, stack, to_flat

if TYPE_CHECKING:
    from kinfed.engines.flower.messages import Post

LOG = logging.getLogger("kinfed.engines")
PATIENCE = 3  # calls in a row that nobody answers
LOOK = 3.0  # seconds after which a waiting server looks who has come


class Networked(Federation):
    """A federation whose clients are Flower's nodes."""

    method: Method[object]

    def __init__(
        self, method: Method[object], population: Population, *, fraction: float = 1.0, seed: int = 0,
        device: str = "cpu", timeout: float = 600.0, attempts: int = 2,
    ) -> None:  # fmt: skip
        if timeout <= 0 or attempts < 1:
            raise ConfigError(f"wanted a timeout above 0 and at least one attempt, got {timeout} and {attempts}")
        super().__init__(method, population, fraction=fraction, seed=seed, device=device)
        self.timeout = timeout  # seconds that clients have for a task
        self.attempts = attempts  # how often who is silent is asked, before the first round
        self.token = secrets.token_hex(8)  # what clients know this run by
        self.memory = {"version": torch.zeros(self.count, dtype=torch.long)}  # of what each client remembers
        self.durable = self.memory["version"]  # the same as the last checkpoint has it
        self.nodes: dict[int, int] = {}  # client -> node
        self.invited: dict[str, int] = {}  # letter -> node
        self.turned_away: set[int] = set()  # nodes of which that has been said
        self.unanswered: dict[str, int] = {}  # letter of an earlier call -> client
        self.forms: dict[tuple[object, ...], Form] = {}
        self.has_begun = False
        self.next_round = 0  # who introduces itself now enters in this round
        self.silence = 0  # calls in a row that nobody answered

    @property
    @abstractmethod
    def post(self) -> "Post":
        """The way to the nodes."""

    @abstractmethod
    def _seat(self, facts: Facts, node: int) -> int | None:
        """The number of the client that introduces itself like this; None if it cannot be one."""

    def _resize(self, client: int, train: object, test: object) -> None:
        """Takes note of how many rows a client says it has now."""

    def gather(self, wanted: int, seconds: float) -> None:
        """Waits until so many clients have introduced themselves."""
        until, pause, telling = time.monotonic() + seconds, 0.05, ProgressLog("connected", wanted)
        while (here := self._welcome()) < wanted:
            telling.update(here)
            if time.monotonic() > until:
                raise NetworkError(
                    f"{len(self.nodes)} of {wanted} clients came within {seconds:.0f} s: "
                    "start the others, or wait for fewer"
                )
            time.sleep(pause)
            pause = min(0.5, 1.3 * pause)
        self.next_round = max(self.next_round, 1)

    def begin(self, round: int) -> None:
        super().begin(round)
        self.has_begun = True
        self.next_round = max(self.next_round, round)
        self._welcome()
        self.next_round = max(self.next_round, round + 1)  # nobody enters in the middle of a round

    def saved(self) -> None:
        self.durable = self.memory["version"]

    def state_dict(self) -> dict[str, object]:
        return {"token": self.token, "round": self.round}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        if state_dict.get("token", self.token) != self.token:
            self.nodes, self.invited, self.token = {}, {}, str(state_dict["token"])
        self.next_round = max(self.next_round, int(str(state_dict.get("round", -1))) + 1)

    def _welcome(self) -> int:
        """How many clients are connected, once those who have introduced themselves by now are seated."""
        post = self.post
        here = post.nodes()
        self.nodes = {client: node for client, node in self.nodes.items() if node in here}
        self.invited = {letter: node for letter, node in self.invited.items() if node in here}
        for answer in post.collect(self.invited.keys()):
            self._introduced(answer, self.invited.pop(answer.letter, -1))
        new = sorted(here - set(self.nodes.values()) - set(self.invited.values()))
        sent = post.send("enrol", [(node, {"run": self.token}, {}) for node in new], self.timeout)
        self.invited |= {letter: node for letter, node in zip(sent, new, strict=True) if letter is not None}
        return len(self.nodes)

    def _introduced(self, answer: Answer, node: int) -> None:
        seat = None if answer.has_failed or node < 0 else self._seat(answer.facts, node)
        if seat is not None and self.nodes.get(seat, node) == node:
            self.nodes[seat] = node
        elif node not in self.turned_away:
            self.turned_away.add(node)
            why = f"code {answer.facts['fault']}, see its own log" if "fault" in answer.facts else "no seat is its"
            LOG.warning("node %d cannot take part: %s", node, why)

    def _answers(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> Replies:
        tick = sum(self.calls.values())
        inbox = Inbox(tick, self._form(name, offer), earlier=dict(self.unanswered))
        asked: set[int] = set()
        for _ in range(1 if self.has_begun else self.attempts):
            answered = inbox.good.keys() | {client for client, reason in inbox.faults if reason != FAILED}
            silent = [i for i, client in enumerate(cohort.tolist()) if client not in answered]
            if silent:
                self._welcome()
                asked |= self._ask(name, cohort, keys, offer, inbox, silent)
                self._wait(name, inbox)
        self._note(name, cohort, inbox)
        self._count(name, cohort, offer, inbox, asked)
        heard = [client for client in cohort.tolist() if client in inbox.good]
        self._remember(inbox, heard)
        for client in heard:
            self._resize(client, *inbox.good[client].sizes)
        return Replies(
            torch.tensor(heard, dtype=torch.long, device=self.device), from_flat(self._stacked(inbox, heard))
        )

    def _ask(
        self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, inbox: Inbox, positions: list[int]
    ) -> set[int]:
        """Sends the letters of a call; gives back to whom."""
        shared, table, packed = pack(to_flat(offer.shared)), to_flat(offer.each), dict[int, Parcel]()
        letters, clients = [], []
        for i in positions:
            client, row = int(cohort[i]), i if offer.pick is None else int(offer.pick[i])
            if client not in self.nodes:
                continue
            if row not in packed:
                packed[row] = shared | pack(select(table, row))
            letters.append((self.nodes[client], self._facts(name, client, int(keys[i]), inbox.tick), packed[row]))
            clients.append(client)
        sent = self.post.send("task", letters, self.timeout)
        inbox.letters |= {letter: client for letter, client in zip(sent, clients, strict=True) if letter is not None}
        return {client for letter, client in zip(sent, clients, strict=True) if letter is not None}

    def _facts(self, name: str, client: int, key: int, tick: int) -> Facts:
        version = self.memory["version"]
        return {
            "run": self.token, "task": name, "tick": tick, "client": client, "key": key, "round": self.round,
            "since": int(self.since[client]), "width": self.width(self.train), "test_width": self.width(self.test),
            "accepted": int(version[client]), "durable": int(self.durable[client]),
        }  # fmt: skip

    def _wait(self, name: str, inbox: Inbox) -> None:
        """Takes answers until all are there or the time is over."""
        until, pause, look = time.monotonic() + self.timeout, 0.01, time.monotonic() + LOOK
        telling, asked = ProgressLog(name, len(inbox.waiting)), len(inbox.waiting)
        while inbox.waiting and time.monotonic() < until:
            if time.monotonic() > look:
                self._welcome()  # so that who comes during a long round is there in the next
                look = time.monotonic() + LOOK
            for answer in self.post.collect(inbox.waiting | self.unanswered.keys()):
                inbox.take(answer)
                self.unanswered.pop(answer.letter, None)
            telling.update(asked - len(inbox.waiting))
            if inbox.waiting:
                time.sleep(pause)
                pause = min(1.0, 1.3 * pause)

    def _note(self, name: str, cohort: Tensor, inbox: Inbox) -> None:
        """Notes what was not used, who did not answer, and who had forgotten."""
        faulty = {client for client, _ in inbox.faults}
        silent = [c for c in cohort.tolist() if c not in inbox.good and c not in faulty]
        forgot = [client for client, good in inbox.good.items() if good.has_forgotten]
        noted = [*inbox.faults, *((c, NO_ANSWER) for c in silent), *((c, FORGOT) for c in forgot)]
        self.rejected += [Rejected(self.round, name, client, reason) for client, reason in noted]
        late = {letter: inbox.letters[letter] for letter in inbox.waiting}
        self.unanswered = dict(list((self.unanswered | late).items())[-4 * self.count :])
        self.silence = 0 if inbox.good or not len(cohort) else self.silence + 1
        if self.silence >= PATIENCE:
            raise NetworkError(
                f"nobody answered {self.silence} tasks in a row, the last was '{name}': see that nodes are connected "
                "and their logs, then resume the run"
            )

    def _count(self, name: str, cohort: Tensor, offer: Offer, inbox: Inbox, asked: set[int]) -> None:
        """Counts what was sent and all that came, usable or not."""
        sent = cohort[[client in asked for client in cohort.tolist()]]
        back = torch.tensor(list(inbox.received), dtype=torch.long)
        self.ledger.count(
            self.round, name, sent, offer.bytes_each(), back, torch.tensor([*inbox.received.values()]).long()
        )

    def _remember(self, inbox: Inbox, heard: list[int]) -> None:
        kept = [client for client in heard if inbox.good[client].is_kept]
        lost = [client for client in heard if inbox.good[client].has_forgotten]
        version = self.memory["version"].index_fill(0, torch.tensor(lost, dtype=torch.long), 0)
        self.memory = {"version": version.index_fill(0, torch.tensor(kept, dtype=torch.long), inbox.tick)}

    def _stacked(self, inbox: Inbox, heard: list[int]) -> Stack:
        """What was sent, stacked in the order of the cohort; of nobody if nobody answered."""
        if heard:
            return {name: t.to(self.device) for name, t in stack([inbox.good[c].send for c in heard]).items()}
        return {n: torch.empty(0, *s, dtype=DTYPES[d], device=self.device) for n, (d, s) in inbox.form.items()}

    def _form(self, name: str, offer: Offer) -> Form:
        """What a reply to this offer must look like, found out by answering it here once."""
        row = 0 if offer.pick is None or not len(offer.pick) else int(offer.pick[0])
        offered = to_flat(offer.shared) | select(to_flat(offer.each), row)
        key = (name, *((n, tuple(t.shape), t.dtype) for n, t in offered.items()))
        if key not in self.forms:
            self.forms[key] = expected_form(self.method, name, offered, self.x, self.population.classes)
        return self.forms[key]
