"""Who is there: the clients of a population by round and role, and the samples that each holds now."""

from bisect import bisect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kinfed.client import width_of
from kinfed.data.population import LATER, Change, Population, Role
from kinfed.data.roles import RoleColumns


class EnrolledClients:
    """The clients of a federation in its present round: their ids by role, their samples, and how many these are."""

    def __init__(self, population: Population, device: torch.device) -> None:
        self.device = device
        self.population = population
        self.x, self.y = population.on(self.device)
        self.train, self.test = (_moved(part, self.device) for part in (population.train, population.test))
        self.roles = population.roles or (Role(),) * len(population.train)
        self.count = len(self.roles)
        self.true_clusters = population.true_clusters
        self.columns = RoleColumns.of(self.roles)
        self.listed: dict[tuple[str, int, bool], Tensor] = {}  # ids of clients, as long as nobody comes or goes
        self.since = self.columns.joins.clone()
        self.held: Tensor | None = None  # training samples of each label, once they were asked for
        self.round = 0
        self.is_over = False  # training has ended, and those who join later are there
        self.sees_samples = True  # False: clients' samples are elsewhere, and the server knows how many they are

    @property
    def sizes(self) -> Tensor:
        """Training samples of every client, known from enrolment: [clients]."""
        return torch.tensor([own.size(0) for own in self.train], device=self.device)  # len() takes ten times as long

    @property
    def test_samples(self) -> int:
        """How many different samples those who train are tested on."""
        return len(torch.cat([self.test[i] for i in self.clients.tolist()]).unique())

    @property
    def clients(self) -> Tensor:
        """Ids of those who train now."""
        return self._list("clients", lambda: self._columns.trains & self._stays & (self._columns.joins <= self.round))

    @property
    def present(self) -> Tensor:
        """Ids of all who are there now, holdout and unlabelled clients included."""
        return self._list("present", lambda: self._present)

    @property
    def real(self) -> Tensor:
        """Ids of all who can be served by now; look-alikes, who are made to be placed and not to be served, are not."""
        return self._list("real", lambda: self._present & self._columns.real)

    @property
    def unseen(self) -> Tensor:
        """Ids of those who can be served by now but do not train."""
        return self.present[torch.isin(self.present, self.clients, invert=True)]

    @property
    def loses_clients(self) -> bool:
        """Whether some leave before the others."""
        return bool((self._columns.leaves < LATER).any())

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
        """Training samples of each label that each client has now: [clients, classes]; samples without one are none.

        Where targets are no classes, all samples have the same.
        """
        if not self.population.has_classes:
            return self.sizes.cpu()[:, None]
        if self.held is None:
            classes, owner = self.population.classes, self.everyone.repeat_interleave(self.sizes)
            y = self.y[torch.cat(self.train)]
            at = (owner * classes + y)[y >= 0]
            self.held = torch.bincount(at, minlength=self.count * classes).view(self.count, classes).cpu()
        return self.held

    def begin(self, round: int) -> None:
        """Enters a round: clients whose data change in it hold their new samples from now on."""
        for change in sorted(self.population.changes, key=lambda change: change.round):  # a resumed run enters several
            if self.round < change.round <= round:
                self._change(change)
        self.round = round

    def width(self, part: list[Tensor]) -> int:
        """Samples of this part that tasks look at in one go: bounded, and the same for every client."""
        return width_of(len(own) for own in part)

    @property
    def _columns(self) -> RoleColumns:
        if self.columns.roles is not self.roles:  # somebody has come
            self.columns = RoleColumns.of(self.roles)
            self.listed.clear()
        return self.columns

    @property
    def _present(self) -> Tensor:
        return ((self._columns.joins <= self.round) | self.is_over) & self._stays

    @property
    def _stays(self) -> Tensor:
        return self._columns.leaves > self.round

    def _list(self, name: str, wanted: Callable[[], Tensor]) -> Tensor:
        """Ids of the wanted clients; looked for anew only when somebody has come or gone."""
        key = name, bisect(self._columns.turns, self.round), self.is_over
        if key not in self.listed:
            self.listed = {old: ids for old, ids in self.listed.items() if old[1:] == key[1:]}
            self.listed[key] = self._ids(wanted())
        return self.listed[key]

    def _ids(self, wanted: Tensor) -> Tensor:
        return wanted.nonzero()[:, 0].to(self.device)

    def _change(self, change: Change) -> None:
        self.held = None
        for i, client in enumerate(change.clients.tolist()):
            self.train[client], self.test[client] = (part[i].to(self.device) for part in (change.train, change.test))
            self.since[client] = change.round
        if self.true_clusters is not None and change.true_clusters is not None:
            self.true_clusters = self.true_clusters.index_copy(0, change.clients, change.true_clusters)


def _moved(part: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Every client's samples on the device, taken there in one go."""
    return list(torch.cat(list(part)).to(device).split([own.size(0) for own in part])) if part else []
