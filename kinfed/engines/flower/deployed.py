"""The server of a deployed federation: it has no client's samples, only what each client said when it enrolled."""

import csv
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kinfed.aggregation import DEPLOYED, Aggregation
from kinfed.data.arrays import ServerSamples
from kinfed.data.population import Role
from kinfed.engines.flower.messages import ConfigValues
from kinfed.engines.flower.network_federation import NetworkFederation
from kinfed.errors import CheckpointError
from kinfed.method import Method

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from kinfed.engines.flower.transport import Transport


ROSTER = "roster.csv"


@dataclass(frozen=True)
class Enrolment:
    """What a client said when it enrolled, and when."""

    name: str
    train: int  # samples
    test: int
    labelled: bool
    holdout: bool
    joins: int = 0  # round

    @property
    def role(self) -> Role:
        """The role of the client in the federation."""
        return Role(joins=self.joins, holdout=self.holdout or not self.train, labelled=self.labelled)

    @classmethod
    def parse(cls, config: ConfigValues, joins: int) -> "Enrolment | None":
        """The enrolment in a message's config; None where a value is missing or invalid."""
        values: dict[str, Any] = {f.name: config.get(f.name) for f in fields(cls)} | {"joins": joins}
        is_valid = all(type(values[f.name]) is f.type for f in fields(cls))
        if not is_valid or not values["name"] or min(values["train"], values["test"]) < 0:
            return None
        return cls(**values)


class DeployedFederation(NetworkFederation):
    """Clients are nodes of Flower's deployment runtime; one that connects is enrolled, and admitted in the next round.

    `max_clients` bounds the client ids; an id that no client has yet is not in `clients`, `present` or `unseen`.
    """

    aggregation: Aggregation = DEPLOYED  # whoever connects is not believed everything

    def __init__(
        self, method: Method[object], samples: ServerSamples, max_clients: int, grid: "Grid", *, fraction: float = 1.0,
        seed: int = 0, device: str = "cpu", timeout: float = 600.0, attempts: int = 2,
    ) -> None:  # fmt: skip
        from kinfed.engines.flower.transport import Transport

        super().__init__(
            method, samples.population(max_clients), fraction=fraction, seed=seed, device=device, timeout=timeout,
            attempts=attempts,
        )  # fmt: skip
        self.sees_samples = False
        self.roster: dict[int, Enrolment] = {}  # by client id
        self.written_roster: dict[int, Enrolment] = {}
        self.folder: Path | None = None
        self.over_grid = Transport(grid)

    @property
    def transport(self) -> "Transport":
        return self.over_grid

    @property
    def test_samples(self) -> int:
        return sum(len(self.test[client]) for client in self.clients.tolist())

    def wait_for_clients(self, wanted: int, seconds: float) -> None:
        """Waits until so many clients have enrolled; the first ones are numbered by name, whatever their order."""
        is_new = not self.roster
        super().wait_for_clients(wanted, seconds)
        if is_new:
            known = sorted(self.roster.items(), key=lambda entry: entry[1].name)
            self.nodes = {new: self.nodes[old] for new, (old, _) in enumerate(known) if old in self.nodes}
            for client, (_, enrolment) in enumerate(known):
                self._register(client, enrolment)
        self._write_roster()

    def settle(self, folder: Path) -> None:
        self.folder = folder
        self._write_roster()

    def begin(self, round: int) -> None:
        super().begin(round)
        self._write_roster()

    def state_dict(self) -> dict[str, object]:
        roster = {str(client): asdict(enrolment) for client, enrolment in self.roster.items()}
        return super().state_dict() | {"roster": roster}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        super().load_state_dict(state_dict)
        roster = state_dict.get("roster", {})
        if not isinstance(roster, dict) or any(int(client) >= self.count for client in roster):
            raise CheckpointError(
                f"the checkpoint has more clients than {self.count}: keep `clients` of plan.toml as it was"
            )
        for client, enrolment in roster.items():
            self._register(int(client), Enrolment(**enrolment))

    def _find_client(self, enrolment: ConfigValues, node: int) -> int | None:
        """The id of a client that is known by its name, or a free one."""
        enrolled = Enrolment.parse(enrolment, joins=self.next_round)
        if enrolled is None:
            return None
        known = next((client for client, other in self.roster.items() if other.name == enrolled.name), None)
        if known is not None:
            if known in self.nodes and self.nodes[known] != node:
                return None  # another node of this name is connected
            self._register(known, replace(enrolled, joins=self.roster[known].joins))
            return known
        free = next((client for client in range(self.count) if client not in self.roster), None)
        if free is not None and not self.is_over:
            self._register(free, enrolled)
            return free
        return None

    def _update_sizes(self, client: int, train: object, test: object) -> None:
        known = self.roster[client]
        if type(train) is not int or type(test) is not int or min(train, test) < 0:
            return
        if (train, test) != (known.train, known.test):
            self._register(client, replace(known, train=train, test=test))

    def _register(self, client: int, enrolment: Enrolment) -> None:
        self.roster[client] = enrolment
        self.roles = (*self.roles[:client], enrolment.role, *self.roles[client + 1 :])
        self.since[client] = enrolment.joins
        train, test = torch.arange(enrolment.train), torch.arange(enrolment.test)  # how many, not which
        self.train[client], self.test[client] = train, test

    def _write_roster(self) -> None:
        """Writes which client has which id: metrics and clusters of a run know ids only."""
        if self.folder is None or self.written_roster == self.roster:
            return
        table = [[client, *asdict(enrolment).values()] for client, enrolment in sorted(self.roster.items())]
        with open(self.folder / ROSTER, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([["client", *(f.name for f in fields(Enrolment))], *table])
        self.written_roster = dict(self.roster)

    def _ids(self, wanted: Tensor) -> Tensor:
        """Ids of the wanted clients that have enrolled by now."""
        ids = super()._ids(wanted)
        return ids[[client in self.roster for client in ids.tolist()]]
