"""The server of a real federation: it has no client's rows, and knows of each client what it said when it enrolled."""

import csv
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kinfed.data.population import NO_SAMPLES, Population, Role
from kinfed.engines.flower.networked import Networked
from kinfed.engines.flower.packing import Facts
from kinfed.errors import CheckpointError
from kinfed.method import Method

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from kinfed.engines.flower.messages import Post


ROSTER = "roster.csv"


@dataclass(frozen=True)
class OwnRows:
    """The server's own rows, maybe none at all: they say what clients' rows look like."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n]
    classes: int

    def population(self, seats: int) -> Population:
        """So many clients of which nothing is known yet."""
        nothing, public = (NO_SAMPLES,) * seats, torch.arange(len(self.y))
        return Population(
            self.x, self.y, nothing, nothing, self.classes, roles=(Role(holdout=True),) * seats, public=public
        )


@dataclass(frozen=True)
class Enrolled:
    """What a client said of itself, and when."""

    name: str
    train: int  # rows
    test: int
    labelled: bool
    holdout: bool
    joins: int = 0  # round

    @property
    def role(self) -> Role:
        return Role(joins=self.joins, holdout=self.holdout or not self.train, labelled=self.labelled)

    @classmethod
    def read(cls, facts: Facts, joins: int) -> "Enrolled | None":
        """The client in these facts; None where one is missing or cannot be."""
        values = {f.name: facts.get(f.name) for f in fields(cls)} | {"joins": joins}
        sound = all(type(values[f.name]) is f.type for f in fields(cls))
        if not sound or not values["name"] or min(int(str(values[n])) for n in ("train", "test")) < 0:
            return None
        return cls(**values)  # type: ignore[arg-type]


class Deployed(Networked):
    """Clients are nodes of Flower's deployment runtime; who appears is enrolled, and admitted in the next round."""

    def __init__(
        self, method: Method[object], own: OwnRows, seats: int, grid: "Grid", *, fraction: float = 1.0,
        seed: int = 0, device: str = "cpu", timeout: float = 600.0, attempts: int = 2,
    ) -> None:  # fmt: skip
        from kinfed.engines.flower.messages import Post

        super().__init__(
            method, own.population(seats), fraction=fraction, seed=seed, device=device, timeout=timeout,
            attempts=attempts,
        )  # fmt: skip
        self.sees_samples = False
        self.roster: dict[int, Enrolled] = {}  # by number
        self.written: dict[int, Enrolled] = {}
        self.folder: Path | None = None
        self.way = Post(grid)

    @property
    def post(self) -> "Post":
        return self.way

    @property
    def test_samples(self) -> int:
        return sum(len(self.test[client]) for client in self.clients.tolist())

    def gather(self, wanted: int, seconds: float) -> None:
        """Waits until so many clients have enrolled; the first ones are numbered by name, whoever came first."""
        is_new = not self.roster
        super().gather(wanted, seconds)
        if is_new:
            known = sorted(self.roster.items(), key=lambda entry: entry[1].name)
            self.nodes = {new: self.nodes[old] for new, (old, _) in enumerate(known) if old in self.nodes}
            for seat, (_, client) in enumerate(known):
                self._sit(seat, client)
        self._write()

    def settle(self, folder: Path) -> None:
        self.folder = folder
        self._write()

    def begin(self, round: int) -> None:
        super().begin(round)
        self._write()

    def state_dict(self) -> dict[str, object]:
        return super().state_dict() | {"roster": {str(seat): asdict(client) for seat, client in self.roster.items()}}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        super().load_state_dict(state_dict)
        roster = state_dict.get("roster", {})
        if not isinstance(roster, dict) or any(int(seat) >= self.count for seat in roster):
            raise CheckpointError(f"the checkpoint has more clients than the {self.count} seats: keep their number")
        for seat, client in roster.items():
            self._sit(int(seat), Enrolled(**client))

    def _seat(self, facts: Facts, node: int) -> int | None:
        """The seat of a client that is known by its name, or a free one."""
        said = Enrolled.read(facts, joins=self.next_round)
        if said is None:
            return None
        known = next((seat for seat, client in self.roster.items() if client.name == said.name), None)
        if known is not None:
            if known in self.nodes and self.nodes[known] != node:
                return None  # somebody else of this name is connected
            self._sit(known, replace(said, joins=self.roster[known].joins))
            return known
        free = next((seat for seat in range(self.count) if seat not in self.roster), None)
        if free is not None and not self.is_over:
            self._sit(free, said)
            return free
        return None

    def _resize(self, client: int, train: object, test: object) -> None:
        known = self.roster[client]
        if (
            type(train) is int
            and type(test) is int
            and min(train, test) >= 0
            and (train, test) != (known.train, known.test)
        ):
            self._sit(client, replace(known, train=train, test=test))

    def _sit(self, seat: int, client: Enrolled) -> None:
        self.roster[seat] = client
        self.roles = (*self.roles[:seat], client.role, *self.roles[seat + 1 :])
        self.since[seat] = client.joins
        self.train[seat], self.test[seat] = torch.arange(client.train), torch.arange(client.test)  # how many, not which

    def _write(self) -> None:
        """Writes down who has which number, for people: metrics and groups of a run know numbers only."""
        if self.folder is None or self.written == self.roster:
            return
        rows = [[seat, *asdict(client).values()] for seat, client in sorted(self.roster.items())]
        with open(self.folder / ROSTER, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([["client", *(f.name for f in fields(Enrolled))], *rows])
        self.written = dict(self.roster)

    def _ids(self, wanted: Tensor) -> Tensor:
        """Ids of those who are wanted and have enrolled by now; the other seats are empty."""
        ids = super()._ids(wanted)
        return ids[[client in self.roster for client in ids.tolist()]]
