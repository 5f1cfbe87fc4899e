"""The clients as an algorithm sees them, and one verb to make them work; `enrolment` says who is there.

Everything that crosses the wire is counted where it crosses, in `Federation.run`.
"""

import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.aggregation import FEW, MEAN, Aggregation
from kinfed.client import UNMARKED, HasMemory, Task, mark_of
from kinfed.data.population import Population
from kinfed.enrolment import EnrolledClients
from kinfed.errors import ConfigError, NetworkError
from kinfed.fastpath import begin_round
from kinfed.keys import base_key, choose, fold, normal, to_uniform
from kinfed.ledger import Ledger
from kinfed.params import NOTHING, Params, Stack, flatten, repeat, select, to_flat
from kinfed.privacy import OPEN, Privacy
from kinfed.ranges import Range
from kinfed.replies import (
    DAMAGED,
    EMPTY,
    EXCLUDED,
    FAILED,
    FORGOT,
    LONG_UPDATE,
    NO_ANSWER,
    NO_OFFER,
    NO_SAMPLES,
    NOT_ASKED,
    NOT_FINITE,
    OUT_OF_RANGE,
    OUTLYING,
    OVERSIZED,
    REFUSED,
    UNKNOWN,
    WRONG_DTYPE,
    WRONG_NAMES,
    WRONG_SHAPE,
    Offer,
    Rejected,
    Replies,
    count_models,
    measure_changes,
    select_flat,
)

__all__ = [
    "DAMAGED", "EMPTY", "FAILED", "FORGOT", "MAX_OFFENCES", "NOT_ASKED", "NOT_FINITE", "NO_ANSWER", "NO_SAMPLES",
    "OUT_OF_RANGE", "OVERSIZED", "REFUSED", "UNKNOWN", "WRONG_DTYPE", "WRONG_NAMES", "WRONG_SHAPE",
    "Federation", "Offer", "Rejected", "Replies", "count_models", "run_fedavg", "select_flat",
]  # fmt: skip
LOG = logging.getLogger("kinfed")
MOST_NAMED = 10  # clients in one line of the log
MAX_OFFENCES = 3  # of a client, before it is excluded
LONG = 10.0  # times the upper quartile of the lengths, from which on that is said: others may have converged


class Federation(EnrolledClients, ABC):
    """One verb, and what is counted and noted of it; engines say how a task reaches the clients.

    Who is there is in `kinfed.enrolment.EnrolledClients`: `clients`, `present`, `unseen`, `sizes`, …
    """

    aggregation: Aggregation = MEAN  # how the server makes one model of many
    privacy: Privacy = OPEN  # what hides samples and clients
    sums_securely: ClassVar[bool] = False  # whether the engine can add replies up without seeing them

    def __init__(
        self, method: object, population: Population, *, fraction: float = 1.0, seed: int = 0, device: str = "cpu"
    ) -> None:
        if not 0 < fraction <= 1:
            raise ConfigError(f"fraction must be in (0, 1], got {fraction}")
        super().__init__(population, torch.device(device))
        self.method, self.fraction, self.seed = method, fraction, seed
        self.weighed: tuple[tuple[object, ...], Tensor] | None = None  # weights of clients, and what these came from
        self.rounds = 100  # planned; the experiment says
        self.calls: dict[str, int] = {}
        self.ledger = Ledger(self.count)
        self.memory: Stack = {}  # what clients keep, flat, [clients, ...]; empty until one keeps something
        self.is_dry_run = False  # what clients keep now is forgotten later
        self.rejected: list[Rejected] = []
        self.in_vain = False  # whether it was said that all replies to a task were rejected
        self.released: dict[str, int] = {}  # task, or task/client -> private releases that no crash takes back
        self.client_seconds = 0.0  # spent on clients' tasks so far; the rest is the server's own work
        self.decoys = torch.zeros(0, dtype=torch.long)  # asked since nobody was drawn, and not summed

    @property
    def weights(self) -> Tensor:
        """The same as they count in averages, capped where the aggregation says so: [clients]."""
        origin = self.aggregation, self.sizes, self.clients
        if self.weighed is None or any(now is not then for now, then in zip(origin, self.weighed[0], strict=True)):
            self.weighed = origin, self.aggregation.cap(*origin[1:])
        return self.weighed[1]

    def begin(self, round: int) -> None:
        """Enters a round, and begins it in the joint training of its thread, too."""
        super().begin(round)
        begin_round()

    def settle(self, folder: Path) -> None:
        """Says where the run is written, before it begins; an engine may keep what it needs to go on there."""

    def open(self) -> None:
        """Gets clients ready, where that takes long."""

    def note_checkpoint(self) -> None:
        """Says that the federation as it is now is in a checkpoint, or has just come from one."""

    def state_dict(self) -> dict[str, object]:
        """What an engine wants to find in the checkpoint again, as JSON."""
        return {}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Takes it from a checkpoint."""

    def close(self) -> None:
        """Lets go of all that the engine started."""

    def sample(self) -> Tensor:
        """Ids of ⌊fraction · clients⌋ (at least one) of those who train, without replacement, sorted."""
        return self.sample_from(self.clients)

    def sample_from(self, ids: Tensor) -> Tensor:
        """⌊fraction · ids⌋ (at least one) of these, without replacement, sorted; never clients that are excluded.

        If training is private, each is drawn by itself; in a deployment nobody else can know who is, for that hides
        clients, too.
        """
        excluded = self.excluded
        ids = self._leave_out(ids, excluded)
        if not len(ids) and not len(self._leave_out(self.clients, excluded)):
            raise NetworkError(
                f"no client is left to train: all {len(self.clients)} were excluded, since {MAX_OFFENCES} replies of "
                "each were malformed or out of range; events.jsonl of the run has them"
                if len(self.clients)
                else "no client is left to train: none has training samples, or all have left"
            )
        if self.privacy.training.is_on:
            luck = to_uniform(self._draw_bits("sample", len(ids)))
            drawn = ids[(luck < self.fraction).nonzero()[:, 0].to(self.device)]
            self.decoys = ids[:1] if not len(drawn) else ids[:0]
            return drawn if len(drawn) else self.decoys
        key = torch.tensor(self._next_key("sample"), device=self.device)
        return ids[choose(key, len(ids), max(1, int(self.fraction * len(ids))))]

    def shuffle(self, ids: Tensor) -> Tensor:
        """These in a random order."""
        key = torch.tensor(self._next_key("shuffle"), device=self.device)
        return ids[fold(key, torch.arange(len(ids), device=self.device)).argsort()]

    def average(self, replies: Replies, name: str, sent: Params) -> Params:
        """One model from those that all clients trained from this one: by the rule of aggregation, or privately."""
        if not self.privacy.training.is_on:
            return self.aggregation.average(replies.stack(name), self.weights[replies.cohort], sent)
        members = torch.tensor([len(self.clients)], device=self.device)
        which, expected = torch.zeros_like(replies.cohort), self.fraction * members
        expected = expected.where(members >= self.privacy.min_cluster, 0.0)
        return select(self.release(repeat(sent, 1), which, replies, name, expected), 0)

    def release(self, models: Stack, which: Tensor, replies: Replies, name: str, expected: Tensor) -> Stack:
        """Each model after a private mean of what those changed that were sent it; which: [replies], expected: [C]."""
        which = which.where(~torch.isin(replies.cohort, self.decoys.to(self.device)), -1)
        return self.privacy.training.release(
            models, which, replies.stack(name), expected, lambda count: normal(self._draw_bits("noise", 2 * count))
        )

    def _draw_bits(self, name: str, count: int) -> Tensor:
        """Random 64-bit numbers: of the operating system, where others could draw keyed ones themselves."""
        key = torch.tensor(self._next_key(name))
        if not self.sees_samples:
            return torch.frombuffer(bytearray(secrets.token_bytes(8 * max(count, 1))), dtype=torch.int64)[:count]
        return fold(key, torch.arange(count))

    def run(self, task: Task, cohort: Tensor, offer: Offer = NO_OFFER) -> Replies:
        """What the cohort replies to a task; replies with a number out of its range are left out and noted."""
        name, mark = getattr(task, "__name__", str(task)), mark_of(task)
        if mark is None:
            raise ConfigError(UNMARKED.format(name))
        key, noted = self._next_key(mark.key), len(self.rejected)
        cohort, offer = self._leave_out_of_call(cohort, offer)
        keys = fold(torch.tensor(key), cohort.cpu()).to(self.device)
        began = time.perf_counter()
        replies = self._answers(name, cohort, keys, offer, mark.ranges)  # checked: on a GPU, too, they are there
        self.client_seconds += time.perf_counter() - began
        self._exclude_offenders(name, noted)
        replies = self._leave_out_of_replies(replies)
        if not len(replies.cohort):
            self._say_once_that_none_is_used(name, noted)
        if self.aggregation.is_robust and len(replies.cohort) >= FEW:
            lengths = measure_changes(offer, torch.isin(cohort, replies.cohort), replies)
            long = replies.cohort[lengths > LONG * lengths.quantile(0.75, interpolation="lower")]
            self._name_once(name, LONG_UPDATE, long, f"what they changed is over {LONG:.0f} times as long as usual")
        return replies

    @abstractmethod
    def _answers(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, ranges: Mapping[str, Range]) -> Replies:
        """The replies that can be used; what clients keep is kept, what crossed is counted, the rest is noted."""

    @property
    def evaluates_once(self) -> bool:
        """Whether a test sample that several clients have is evaluated once for all that use the same model."""
        return False

    @property
    def excluded(self) -> set[int]:
        """Clients that are asked nothing any more."""
        return {entry.client for entry in self.rejected if entry.reason == EXCLUDED}

    def _leave_out_of_call(self, cohort: Tensor, offer: Offer) -> tuple[Tensor, Offer]:
        """A cohort without clients that are excluded, and what it is offered; the same where all of it are."""
        kept = self._leave_out(cohort, self.excluded)
        if len(kept) in (0, len(cohort)):
            return cohort, offer
        return kept, offer.to(torch.isin(cohort, kept).nonzero()[:, 0])

    def _leave_out_of_replies(self, replies: Replies) -> Replies:
        kept = self._leave_out(replies.cohort, self.excluded)
        if len(kept) == len(replies.cohort):
            return replies
        return replies.select(torch.isin(replies.cohort, kept).nonzero()[:, 0])

    def _leave_out(self, ids: Tensor, excluded: set[int]) -> Tensor:
        return ids[[client not in excluded for client in ids.tolist()]] if excluded else ids

    def _exclude_offenders(self, name: str, noted: int) -> None:
        """Excludes those that since the entry `noted` have sent what no honest client sends once too often."""
        faulty = {entry.client for entry in self.rejected[noted:] if entry.is_offence}
        counts = Counter(entry.client for entry in self.rejected if entry.is_offence) if faulty else Counter[int]()
        for client in sorted(client for client in faulty if counts[client] >= MAX_OFFENCES):
            self.rejected.append(Rejected(self.round, name, client, EXCLUDED))
            LOG.warning(
                "%s is excluded for the rest of the run: %d of its replies were malformed or out of range",
                self.name_client(client), counts[client],
            )  # fmt: skip

    def _say_once_that_none_is_used(self, name: str, noted: int) -> None:
        """Logs that none of the replies noted since this entry is used, the first time that replies came in vain."""
        reasons = Counter(entry.reason for entry in self.rejected[noted:] if entry.was_dropped)
        if self.in_vain or not reasons:
            return
        self.in_vain = True
        remedy = "; weights have diverged, or samples are not finite: a smaller training.lr is the usual remedy"
        LOG.warning(
            "round %d: no reply to '%s' could be used (%s)%s", self.round + 1, name,
            ", ".join(f"{reason}: {count}" for reason, count in reasons.items()),
            remedy if NOT_FINITE in reasons else "",
        )  # fmt: skip

    def find_outliers(self, clients: Tensor, points: Tensor, there: Tensor | None = None) -> Tensor:
        """Which of these clients may form no cluster, by their points (`Aggregation.find_outliers`): bool [clients].

        Each is named once, in the log and in the events of the run.
        """
        outlying = self.aggregation.find_outliers(points, there)
        says = "far from all others in what they sent, so that they form no cluster"
        self._name_once("clustering", OUTLYING, clients[outlying], says)
        return outlying

    def find_outlying_models(self, replies: Replies) -> Tensor:
        """The same by the models that clients trained."""
        if not self.aggregation.is_robust:
            return torch.zeros_like(replies.cohort, dtype=torch.bool)  # without a copy of all weights
        return self.find_outliers(replies.cohort, flatten(replies.stack("params")))

    def _name_once(self, task: str, reason: str, clients: Tensor, says: str) -> None:
        """Notes what these clients are suspected of; each is named once in the log."""
        known = {entry.client for entry in self.rejected if entry.reason == reason} if len(clients) else set[int]()
        if found := [client for client in clients.tolist() if client not in known]:
            self.rejected += [Rejected(self.round, task, client, reason) for client in found]
            names = ", ".join(map(self.name_client, found[:MOST_NAMED])) + (", …" if len(found) > MOST_NAMED else "")
            LOG.warning("%s: %s (%d of %d clients)", says, names, len(found), len(self.clients))

    def name_client(self, client: int) -> str:
        """A client as messages name it."""
        return f"client {client}"

    def initial_memory(self) -> Params:
        """What a client remembers before its first task, flat."""
        first = self.method.initial_memory() if isinstance(self.method, HasMemory) else NOTHING
        return {name: t.to(self.device) for name, t in to_flat(first).items()}

    def _next_key(self, name: str) -> int:
        self.calls[name] = self.calls.get(name, 0) + 1
        return base_key(self.seed, name, self.calls[name])


def run_fedavg(task: Task, params: Params, rounds: int, fed: Federation) -> Params:
    """The model after so many rounds of FedAvg; `task` takes and replies `params`."""
    for _ in range(rounds):
        replies = fed.run(task, fed.sample(), Offer(shared={"params": params}))
        if len(replies.cohort) or fed.privacy.training.is_on:
            params = fed.average(replies, "params", params)
    return params
