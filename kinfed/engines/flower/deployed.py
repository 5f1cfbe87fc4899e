"""The server of a deployed federation: it has no client's samples, only what each client said when it enrolled."""

import csv
import io
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kinfed.aggregation import DEPLOYED, Aggregation
from kinfed.capabilities import SIGNATURE_TASK, reason_for_labels, summed_tasks_of
from kinfed.checks import at_least
from kinfed.data.arrays import ServerSamples
from kinfed.data.population import Role
from kinfed.engines.flower.messages import ConfigValues, NodeIdentity, ReplyCollector
from kinfed.engines.flower.network_federation import NetworkFederation
from kinfed.engines.flower.patience import Patience
from kinfed.errors import CheckpointError
from kinfed.federation import Offer, Replies
from kinfed.files import write_bytes
from kinfed.method import Method
from kinfed.ranges import Range

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from kinfed.engines.flower.transport import Transport


LOG = logging.getLogger("kinfed.engines")
ROSTER = "roster.csv"
RELEASES = "releases.json"  # in the run folder: private releases, each written down before it is made
KEYS = "node_keys.json"  # in the run folder: name of a client -> SHA-256 of its node's public key
LONGEST_NAME = 100  # characters
DEPLOYED_PATIENCE = Patience(quorum=0.8, grace=30.0, max_rest=15)


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
    def parse(cls, config: ConfigValues, joins: int, max_samples: int) -> "Enrolment | None":
        """The enrolment in a message's config; None where a value is missing or out of its range."""
        values: dict[str, Any] = {f.name: config.get(f.name) for f in fields(cls)} | {"joins": joins}
        if any(type(values[f.name]) is not f.type for f in fields(cls)) or not is_name(values["name"]):
            return None
        return cls(**values) if all(0 <= values[part] <= max_samples for part in ("train", "test")) else None


def is_name(name: str) -> bool:
    """Whether a client may be called so: one line of printable characters that a table can hold."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


class DeployedFederation(NetworkFederation):
    """Clients are nodes of Flower's deployment runtime; one that connects is enrolled, and admitted in the next round.

    `max_clients` bounds the client ids; an id that no client has yet is not in `clients`, `present` or `unseen`. A name
    belongs to the key of the first node that enrols under it, and a key to one name (`binds_names`).
    """

    aggregation: Aggregation = DEPLOYED  # whoever connects is not believed everything

    def __init__(
        self, method: Method[object], samples: ServerSamples, max_clients: int, grid: "Grid", *, fraction: float = 1.0,
        seed: int = 0, device: str = "cpu", patience: Patience = DEPLOYED_PATIENCE, max_samples: int = 10**7,
        binds_names: bool = True,
    ) -> None:  # fmt: skip
        from kinfed.engines.flower.transport import Transport

        super().__init__(
            method, samples.population(max_clients), fraction=fraction, seed=seed, device=device, patience=patience
        )  # fmt: skip
        at_least(1, max_samples=max_samples)
        self.sees_samples = False
        self.max_samples = max_samples  # that a client may say it has
        self.binds_names = binds_names  # False where nodes have no keys of their own
        self.bound: dict[str, str] = {}  # name -> key of its node
        self.keys_path: Path | None = None  # where that is written
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

    def name_client(self, client: int) -> str:
        return self.roster[client].name if client in self.roster else super().name_client(client)

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
        self.folder, self.keys_path = folder, folder / KEYS
        self._write_roster()
        self._write_keys()
        self._load_releases(folder / RELEASES)

    def load_keys(self, folder: Path) -> None:
        """Takes from a run folder which name belongs to which key, and keeps that up to date there from now on."""
        self.keys_path = path = folder / KEYS
        try:
            bound = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged ({error}): without it names belong to nobody") from None
        if not isinstance(bound, dict) or not all(isinstance(key, str) for key in bound.values()):
            raise CheckpointError(f"{path} is damaged: wanted a table of names and keys")
        self.bound |= bound

    def _load_releases(self, path: Path) -> None:
        """Counts on from what was released before, also by a server that died before its next checkpoint."""
        try:
            released = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            self.released = {str(name): int(number) for name, number in released.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged ({error}): nobody knows how much privacy was spent") from None
        if self.released:
            LOG.info("privacy: what was released before counts, also since the last checkpoint")

    def _count_releases(self, names: Iterable[str]) -> None:
        """Counts private releases for good, before they are made: noise of a node or server is drawn anew each time."""
        self.released |= {name: self.released.get(name, 0) + 1 for name in names}
        if self.folder is not None:
            write_bytes(self.folder / RELEASES, (json.dumps(self.released, indent=2) + "\n").encode())

    def _answers(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, ranges: Mapping[str, Range]) -> Replies:
        if self.privacy.training.is_on and name in summed_tasks_of(self.method):
            self._count_releases([name])
        return super()._answers(name, cohort, keys, offer, ranges)

    def _send_requests(
        self, name: str, cohort: Tensor, keys: Tensor, offer: Offer, replies: ReplyCollector, positions: list[int]
    ) -> set[int]:
        if self.privacy.signature.is_private and name == SIGNATURE_TASK:
            self._count_releases(f"{name}/{self.name_client(client)}" for client in cohort[positions].tolist())
        return super()._send_requests(name, cohort, keys, offer, replies, positions)

    def begin(self, round: int) -> None:
        super().begin(round)
        self._write_roster()

    def state_dict(self) -> dict[str, object]:
        roster = {str(client): asdict(enrolment) for client, enrolment in self.roster.items()}
        return super().state_dict() | {"roster": roster, "samples": self._summarise_samples()}

    def _summarise_samples(self) -> dict[str, object]:
        """What plan.toml says of samples and their classes, by its keys."""
        planned = self.population
        return {
            "shape": list(planned.x.shape[1:]), "dtype": str(planned.x.dtype).removeprefix("torch."),
            "classes": planned.classes, "class_names": list(planned.class_names),
            "feature_names": list(planned.feature_names),
        }  # fmt: skip

    def _refuse_other_samples(self, before: object) -> None:
        """Raises where the models of a checkpoint were trained on other columns or classes than nodes have now."""
        now = self._summarise_samples()
        if isinstance(before, dict) and (changed := [name for name in now if before.get(name) != now[name]]):
            listed = "; ".join(f"{name} was {before.get(name)}, is {now[name]}" for name in changed)
            raise CheckpointError(
                f"plan.toml has changed since this run began: {listed}. Set it back, or start a new run (another `out`)"
            )

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self._refuse_other_samples(state_dict.get("samples"))  # earlier checkpoints do not say
        super().load_state_dict(state_dict)
        roster = state_dict.get("roster", {})
        if not isinstance(roster, dict) or any(int(client) >= self.count for client in roster):
            raise CheckpointError(
                f"the checkpoint has more clients than {self.count}: keep `clients` of plan.toml as it was"
            )
        for client, enrolment in roster.items():
            self._register(int(client), Enrolment(**enrolment))

    def _find_client(self, enrolment: ConfigValues, node: int, identity: NodeIdentity) -> int | str:
        """The id of a client that is known by its name, or a free one; or why there is none."""
        enrolled = Enrolment.parse(enrolment, self.next_round, self.max_samples)
        if enrolled is None:
            return f"a value of its enrolment is missing or out of range (at most {self.max_samples} samples)"
        if self.binds_names and (reason := self._check_key(enrolled.name, identity)):
            return reason
        if self.has_begun and (reason := self._check_samples(enrolled)):
            return reason
        found = self._find_place(enrolled, node)
        if isinstance(found, int) and self.binds_names and identity.key:
            self._bind(enrolled.name, identity.key)
        return found

    def _check_samples(self, enrolled: Enrolment) -> str | None:
        """Why the samples of a client cannot be taken while the run goes on; None if they can.

        Before it begins that is an error for all (`require_labels`); later one client must not end the run.
        """
        known, reason = self._find_known(enrolled.name), reason_for_labels(self.method)
        if enrolled.labelled and enrolled.train:
            return None
        if known is not None and self.roster[known].labelled and self.roster[known].train:
            return "it has no labelled training samples any more"
        return f"it has no labelled training samples, but {reason}" if reason else None

    def _find_known(self, name: str) -> int | None:
        """The id of the client of this name."""
        return next((client for client, other in self.roster.items() if other.name == name), None)

    def _check_key(self, name: str, identity: NodeIdentity) -> str | None:
        """Why a node of this identity may not take part under this name; None if it may."""
        if identity.name and identity.name != name:
            return f"its key is registered as {identity.name!r}, but its config says {name!r}"
        if self.bound.get(name, identity.key) != identity.key:
            return f"{name!r} belongs to the key of another node"
        other = next((other for other, key in self.bound.items() if key == identity.key and other != name), None)
        return None if other is None else f"its key belongs to {other!r}"

    def _bind(self, name: str, key: str) -> None:
        """Notes in the run folder, for good, that a name belongs to a key."""
        if self.bound.get(name) != key:
            self.bound[name] = key
            self._write_keys()

    def _write_keys(self) -> None:
        if self.keys_path is not None and self.bound:
            write_bytes(self.keys_path, (json.dumps(self.bound, indent=2) + "\n").encode())

    def _find_place(self, enrolled: Enrolment, node: int) -> int | str:
        known = self._find_known(enrolled.name)
        if known is not None:
            if known in self.nodes and self.nodes[known] != node:
                return "another node is connected under its name"
            self._register(known, replace(enrolled, joins=self.roster[known].joins))
            return known
        free = next((client for client in range(self.count) if client not in self.roster), None)
        if free is not None and not self.is_over:
            self._register(free, enrolled)
            return free
        return "the federation has no place for it"

    def _check_sizes(self, client: int, train: object, test: object) -> tuple[int, int] | None:
        if type(train) is not int or type(test) is not int:
            return None
        return (train, test) if min(train, test) >= 0 and max(train, test) <= self.max_samples else None

    def _update_sizes(self, client: int, train: int, test: int) -> None:
        known = self.roster[client]
        if (train, test) != (known.train, known.test):
            self._register(client, replace(known, train=train, test=test))

    def _register(self, client: int, enrolment: Enrolment) -> None:
        self.roster[client] = enrolment
        self.roles = (*self.roles[:client], enrolment.role, *self.roles[client + 1 :])
        self.since[client] = enrolment.joins
        nothing = torch.zeros(1, dtype=torch.long)  # how many samples, not which: expanded, it takes no memory
        self.train[client], self.test[client] = nothing.expand(enrolment.train), nothing.expand(enrolment.test)

    def _write_roster(self) -> None:
        """Writes which client has which id: metrics and clusters of a run know ids only."""
        if self.folder is None or self.written_roster == self.roster:
            return
        table = [[client, *asdict(enrolment).values()] for client, enrolment in sorted(self.roster.items())]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([["client", *(f.name for f in fields(Enrolment))], *table])
        write_bytes(self.folder / ROSTER, text.getvalue().encode())
        self.written_roster = dict(self.roster)

    def _ids(self, wanted: Tensor) -> Tensor:
        """Ids of the wanted clients that have enrolled by now."""
        ids = super()._ids(wanted)
        return ids[[client in self.roster for client in ids.tolist()]]
