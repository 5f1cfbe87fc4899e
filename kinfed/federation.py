"""The clients as an algorithm sees them: who is there, and one verb to make them work.

Everything that crosses the wire is counted where it crosses, in `Federation.run`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from kinfed.aggregation import MEAN, Aggregation
from kinfed.client import UNMARKED, HasMemory, Task, mark_of, width_of
from kinfed.data.population import Change, Population, Role
from kinfed.data.roles import RoleColumns
from kinfed.errors import ConfigError
from kinfed.keys import base_key, fold, uniform
from kinfed.ledger import Ledger
from kinfed.params import NOTHING, Params, Payload, Stack, bytes_of, each_leaf, from_flat, put, repeat, to_flat
from kinfed.privacy import OPEN, Privacy

NOT_FINITE, NO_ANSWER, FAILED, REFUSED = "not finite", "no answer", "failed", "refused"
MISSING = (NO_ANSWER, FAILED, REFUSED)  # nothing came that could have been used
FORGOT = "forgot"  # a client had lost its memory and began anew; its reply was used


class Offer(NamedTuple):
    shared: Payload = NOTHING  # the same for the whole cohort
    each: Payload = NOTHING  # row pick[i] is for cohort[i]
    pick: Tensor | None = None  # None: row i is for cohort[i]

    def bytes_each(self) -> int:
        """Bytes that every client of the cohort is sent."""
        return bytes_of(self.shared) + sum(t[0].numel() * t.element_size() for t in to_flat(self.each).values())

    def to(self, positions: Tensor) -> "Offer":
        """The offer to the clients at these positions of the cohort."""
        return self._replace(pick=positions if self.pick is None else self.pick[positions]) if self.each else self


NO_OFFER = Offer()


class Rejected(NamedTuple):
    """A reply that was not used, or did not come, and why; or one that came from a client that had lost its memory."""

    round: int
    task: str
    client: int  # -1: nobody knows whose it is
    reason: str = NOT_FINITE

    @property
    def is_missing(self) -> bool:
        """Whether there was nothing to use."""
        return self.reason in MISSING

    @property
    def was_dropped(self) -> bool:
        """Whether a reply came and was not used."""
        return not self.is_missing and self.reason != FORGOT


@dataclass(frozen=True)
class Replies:
    """Answers, stacked: row i of every tensor is from client cohort[i]; who did not answer is not in it."""

    cohort: Tensor
    send: Payload

    def __getitem__(self, name: str) -> Tensor:
        value = self.send[name]
        if not isinstance(value, Tensor):
            raise TypeError(f"'{name}' is a stack of models: use replies.stack('{name}')")
        return value

    def stack(self, name: str) -> Stack:
        """The answers `name` of all clients as a stack of models."""
        value = self.send[name]
        if isinstance(value, Tensor):
            raise TypeError(f"'{name}' is one tensor: use replies['{name}']")
        return dict(value)

    def at(self, positions: Tensor) -> "Replies":
        """The answers at these positions alone."""
        return Replies(self.cohort[positions], from_flat(_some(positions, self.send)))

    def align(self, clients: Tensor, values: Tensor) -> Tensor:
        """What those who replied computed ([replies, d]) as rows of these clients (sorted ids), NaN for the others."""
        blank = torch.full((len(clients), values.shape[1]), torch.nan, device=values.device)
        return blank.index_copy(0, torch.searchsorted(clients, self.cohort), values)


class Federation(ABC):
    """Who is there, what is counted, and one verb; engines say how a task reaches the clients."""

    aggregation: Aggregation = MEAN  # how the server makes one model of many
    privacy: Privacy = OPEN  # what hides samples and clients
    sums_securely: ClassVar[bool] = False  # whether the engine can add replies up without seeing them

    def __init__(
        self, method: object, population: Population, *, fraction: float = 1.0, seed: int = 0, device: str = "cpu"
    ) -> None:
        if not 0 < fraction <= 1:
            raise ConfigError(f"fraction must be in (0, 1], got {fraction}")
        self.method, self.fraction, self.seed = method, fraction, seed
        self.device = torch.device(device)
        self.population = population
        self.x, self.y = population.x.to(self.device), population.y.to(self.device)
        self.train, self.test = (_moved(part, self.device) for part in (population.train, population.test))
        self.roles = population.roles or (Role(),) * len(population.train)
        self.count = len(self.roles)
        self.true_clusters = population.true_clusters
        self.columns = RoleColumns.of(self.roles)
        self.since = self.columns.joins.clone()
        self.held: Tensor | None = None  # training samples of each label, once they were asked for
        self.round = 0
        self.is_over = False  # training has ended, and those who join later are there
        self.calls: dict[str, int] = {}
        self.ledger = Ledger(self.count)
        self.memory: Stack = {}  # what clients keep, flat, [clients, ...]; empty until one keeps something
        self.rejected: list[Rejected] = []
        self.sees_samples = True  # False: clients' rows are elsewhere, and the server knows how many they are

    @property
    def sizes(self) -> Tensor:
        """Training samples of every client, known from enrolment: [clients]."""
        return torch.tensor([rows.size(0) for rows in self.train], device=self.device)  # len() takes ten times as long

    @property
    def weights(self) -> Tensor:
        """The same as they count in averages, capped where the aggregation says so: [clients]."""
        return self.aggregation.cap(self.sizes, self.clients)

    @property
    def test_samples(self) -> int:
        """How many different rows those who train are tested on."""
        return len(torch.cat([self.test[i] for i in self.clients.tolist()]).unique())

    @property
    def clients(self) -> Tensor:
        """Ids of those who train by now."""
        return self._ids(self._columns.trains & (self._columns.joins <= self.round))

    @property
    def present(self) -> Tensor:
        """Ids of all who are there by now, holdout and unlabelled clients included."""
        return self._ids(self._present)

    @property
    def real(self) -> Tensor:
        """Ids of all who can be served by now; look-alikes, who are made to be placed and not to be served, are not."""
        return self._ids(self._present & self._columns.real)

    @property
    def unseen(self) -> Tensor:
        """Ids of those who can be served by now but do not train."""
        return self.present[torch.isin(self.present, self.clients, invert=True)]

    @property
    def unlabelled(self) -> Tensor:
        """Ids of all who have no labels, whenever they come."""
        return self._ids(~self._columns.labelled)

    @property
    def everyone(self) -> Tensor:
        """Ids of all clients there will ever be."""
        return torch.arange(self.count, device=self.device)

    @property
    def labels_held(self) -> Tensor:
        """Training samples of each label that each client has now: [clients, classes]; samples without one are none."""
        if self.held is None:
            classes, owner = self.population.classes, self.everyone.repeat_interleave(self.sizes)
            y = self.y[torch.cat(self.train)]
            at = (owner * classes + y)[y >= 0]
            self.held = torch.bincount(at, minlength=self.count * classes).view(self.count, classes).cpu()
        return self.held

    def begin(self, round: int) -> None:
        """Enters a round: clients whose data change in it hold their new rows from now on."""
        for change in self.population.changes:
            if self.round < change.round <= round:
                self._change(change)
        self.round = round

    def settle(self, folder: Path) -> None:  # noqa: B027 - engines need not
        """Says where the run is written, before it begins; an engine may keep what it needs to go on there."""

    def open(self) -> None:  # noqa: B027
        """Gets clients ready, where that takes long."""

    def note_checkpoint(self) -> None:  # noqa: B027
        """Says that the federation as it is now is in a checkpoint, or has just come from one."""

    def state_dict(self) -> dict[str, object]:
        """What an engine wants to find in the checkpoint again, as JSON."""
        return {}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:  # noqa: B027
        """Takes it from a checkpoint."""

    def close(self) -> None:  # noqa: B027
        """Lets go of all that the engine started."""

    def sample(self) -> Tensor:
        """Ids of ⌊fraction · clients⌋ (at least one) of those who train, without replacement, sorted."""
        return self.sample_from(self.clients)

    def sample_from(self, ids: Tensor) -> Tensor:
        """⌊fraction · ids⌋ (at least one) of these, without replacement, sorted."""
        chosen = uniform(torch.tensor(self._next_key("sample")), len(ids)).argsort(stable=True)
        return ids[chosen[: max(1, int(self.fraction * len(ids)))].sort().values.to(self.device)]

    def run(self, task: Task, cohort: Tensor, offer: Offer = NO_OFFER) -> Replies:
        """What the cohort answers to a task; answers with a NaN or an infinity in them are left out and noted."""
        name, mark = getattr(task, "__name__", str(task)), mark_of(task)
        if mark is None:
            raise ConfigError(UNMARKED.format(name))
        keys = fold(torch.tensor(self._next_key(mark.key)), cohort.cpu()).to(self.device)
        return self._answers(name, cohort, keys, offer)

    @abstractmethod
    def _answers(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> Replies:
        """The answers that can be used; what clients keep is kept, what crossed is counted, the rest is noted."""

    def initial_memory(self) -> Params:
        """What a client remembers before its first task, flat."""
        first = self.method.initial_memory() if isinstance(self.method, HasMemory) else NOTHING
        return {name: t.to(self.device) for name, t in to_flat(first).items()}

    def _next_key(self, name: str) -> int:
        self.calls[name] = self.calls.get(name, 0) + 1
        return base_key(self.seed, name, self.calls[name])

    def width(self, part: list[Tensor]) -> int:
        """Rows of this part that tasks look at in one go: bounded, and the same for every client."""
        return width_of(len(rows) for rows in part)

    @property
    def _columns(self) -> RoleColumns:
        if self.columns.roles is not self.roles:  # somebody has come
            self.columns = RoleColumns.of(self.roles)
        return self.columns

    @property
    def _present(self) -> Tensor:
        return (self._columns.joins <= self.round) | self.is_over

    def _ids(self, wanted: Tensor) -> Tensor:
        return wanted.nonzero()[:, 0].to(self.device)

    def _change(self, change: Change) -> None:
        self.held = None
        for i, client in enumerate(change.clients.tolist()):
            self.train[client], self.test[client] = (part[i].to(self.device) for part in (change.train, change.test))
            self.since[client] = change.round
        if self.true_clusters is not None and change.true_clusters is not None:
            self.true_clusters = self.true_clusters.index_copy(0, change.clients, change.true_clusters)


def run_fedavg(task: Task, params: Params, rounds: int, fed: Federation) -> Params:
    """The model after so many rounds of FedAvg; `task` takes and replies `params`."""
    for _ in range(rounds):
        replies = fed.run(task, fed.sample(), Offer(shared={"params": params}))
        if len(replies.cohort):
            params = fed.aggregation.average(replies.stack("params"), fed.weights[replies.cohort], params)
    return params


class Resident(Federation):
    """A federation whose clients live in this process; engines say how a task reaches them."""

    def _answers(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> Replies:
        send, keep = self._run(name, cohort, keys, offer)
        good = self._finite(name, cohort, send)
        if keep:
            self._keep(cohort[good], _some(good, keep))
        replies = Replies(cohort[good], from_flat(_some(good, send)))
        up = sum(t[0].numel() * t.element_size() for t in to_flat(send).values())
        self.ledger.count(self.round, name, cohort, offer.bytes_each(), cohort, up)
        return replies

    @abstractmethod
    def _run(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        """What all clients of the cohort send and keep, stacked."""

    def remembered(self, cohort: Tensor) -> Stack:
        """What these clients remember, flat, stacked."""
        if self.memory:
            return each_leaf(lambda t: t[cohort], self.memory)
        return repeat(self.initial_memory(), len(cohort))

    def _keep(self, cohort: Tensor, kept: Stack) -> None:
        if not self.memory:
            self.memory = repeat(self.initial_memory(), self.count)
        self.memory = self.memory | put({name: self.memory[name] for name in kept}, cohort, kept)

    def _finite(self, name: str, cohort: Tensor, send: Payload) -> Tensor:
        good = torch.ones(len(cohort), dtype=torch.bool, device=self.device)
        for tensor in to_flat(send).values():
            if tensor.is_floating_point() and tensor.numel():
                least, most = tensor.reshape(len(cohort), -1).aminmax(dim=1)  # what is not a number is both
                good &= torch.isfinite(least) & torch.isfinite(most)
        self.rejected += [Rejected(self.round, name, int(client)) for client in cohort[~good]]
        return good.nonzero()[:, 0]


def _some(which: Tensor, payload: Payload) -> Stack:
    """The answers of these, flat; nothing is copied where these are all."""
    return each_leaf(lambda t: t if len(t) == len(which) else t[which], to_flat(payload))


def _moved(part: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Every client's rows on the device, taken there in one go."""
    return list(torch.cat(list(part)).to(device).split([rows.size(0) for rows in part])) if part else []
