"""Whom each method can assign after the start, and what that costs: the table of docs/roles.md.

    python benchmarks/roles.py            # prints the table
    python benchmarks/roles.py --write    # and puts it into docs/roles.md

Every registered method really does it: some clients train for two rounds, then a late, a holdout and an unlabelled
client come, each is admitted by itself and served its model. Bytes are the ledger's and the offer's; compute is what
torch counts in the client's tasks. Costs do not depend on values, so the samples are random.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from kinfed.client_tasks import find_client_model
from kinfed.data import Population, Role
from kinfed.engines import Vectorised
from kinfed.engines.sequential import loop, make_client
from kinfed.errors import RoleError
from kinfed.federation import Offer
from kinfed.method import Method
from kinfed.methods import METHODS, FedAvg
from kinfed.methods.split_tree import SplitRule
from kinfed.models import Model, make_model
from kinfed.params import Params, Payload, bytes_of, from_flat, select, to_flat
from kinfed.relatedness import Relatedness
from kinfed.signatures import EmbeddingStatistics, EncoderCentroids, Pretraining, Tuning
from kinfed.training import LocalTraining

PAGE = Path(__file__).parents[1] / "docs" / "roles.md"
BEGIN, END = "<!-- written by benchmarks/roles.py -->", "<!-- end of what it writes -->"
TRAINING, ROWS, SHAPE, CLASSES, JOINS, AFTER = 4, 60, (1, 28, 28), 10, 2, 2
UNSEEN = {"late": Role(joins=JOINS), "holdout": Role(JOINS, holdout=True), "unlabelled": Role(JOINS, labelled=False)}
QUICK = Pretraining("public", epochs=1, least_steps=1)  # how well an encoder was trained changes no cost
SETTINGS: dict[str, dict[str, object]] = {  # the others have their defaults
    "lg_fedavg": {"shared_tensors": 2},
    "fesem": {"clusters": 2},
    "cfl": {"rule": SplitRule(mean_below=1e9, some_above=0.0), "after": 1},  # one split before unseen clients come
    "flhc": {"rounds_before": 1},
    "repa": {"clusters": 2, "signature": EmbeddingStatistics(encoder_rounds=0)},
    "wd": {"clusters": 2, "rounds_before": 1},
    "flux": {"rounds_before": 1},
    "fedgroup": {"clusters": 2},
    "clove": {"clusters": 2},
    "feddrift": {"first": "own", "step_rounds": 1, "isolation": 9},  # four models
}


def paper_settings(tuning: Tuning) -> dict[str, object]:
    """FLT's signature as published."""
    return {"signature": EncoderCentroids(tuning=tuning, pretraining=QUICK), "relatedness": Relatedness()}


VARIANTS: list[tuple[str, str, dict[str, object]]] = [  # other settings that change the cost
    ("flt", "signature.name=encoder_centroids", paper_settings("own_copy")),
    ("flt", "signature.name=encoder_centroids signature.tuning=none", paper_settings("none")),
    ("flis_hc", "newcomers=loss", {"newcomers": "loss", "beta": 2.0}),  # as many clusters as training clients
]
AGAIN = {"fesem": "when others change sides", "cfl": "when its cluster is split"}  # nothing of it in these rounds
COSTS = ("assigning: down", "assigning: up", "assigning: compute", "serving: down", "serving: compute")
HEAD = ("method", *UNSEEN, "asked to", *COSTS, "assigned again", "why not")

T = TypeVar("T")
Method = Method[Any]


@dataclass(frozen=True)
class Assignment:
    """What it took to assign one client, and then to serve it its model."""

    tasks: tuple[str, ...]  # it was asked to do
    down: int  # bytes
    up: int
    flops: int  # of the client
    served: int  # bytes
    served_flops: int
    untrained: float  # share of the weights it is served that are still the first model's
    refused: str = ""  # or why it cannot be assigned


class Metered(Vectorised):
    """An engine that counts what its clients compute when asked to, one after the other as the reference engine."""

    flops: int | None = None

    def _run(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        if self.flops is None:
            return super()._run(name, cohort, keys, offer)
        answers, flops = counted(lambda: loop(self, name, cohort, keys, offer))
        self.flops += flops
        return answers

    def metered(self, work: Callable[[], T]) -> tuple[T, int]:
        """What the server's `work` gives back, and the floating point operations of its client tasks."""
        self.flops = 0
        try:
            return work(), self.flops
        finally:
            self.flops = None

    def moved(self, client: int) -> tuple[int, int]:
        """Bytes down to and up from a client so far, without its training."""
        down, up = (
            sum(int(of[client]) for task, of in table.items() if task != "train")
            for table in (self.ledger.down, self.ledger.up)
        )
        return down, up


def counted(work: Callable[[], T]) -> tuple[T, int]:
    """What `work` gives back, and the floating point operations it took."""
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten._linalg_eigh: eigh_flops}) as counter:
        result = work()
    return result, counter.get_total_flops()


def eigh_flops(shape: tuple[int, ...], *_: object, **__: object) -> int:
    """About 9 n³ for all eigenvectors of a symmetric matrix by the QR algorithm; torch has no number for it."""
    return 9 * int(shape[-1]) ** 3


def make_population() -> Population:
    """Clients with random samples, and the server's own samples."""
    clients, draw = TRAINING + len(UNSEEN), torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, ((clients + 1) * ROWS, *SHAPE), dtype=torch.uint8, generator=draw)
    y = torch.randint(0, CLASSES, (len(x),), generator=draw)
    own = tuple(torch.arange(len(x)).split(ROWS))
    roles = (Role(),) * TRAINING + tuple(UNSEEN.values())
    for client, role in enumerate(roles):
        y[own[client]] = y[own[client]] if role.labelled else -1
    return Population(
        x, y, own[:clients], (own[0][:0],) * clients, CLASSES, roles=roles, public=own[clients]
    )  # fmt: skip


def model() -> Model:
    """The classifier of the reference problem."""
    return make_model("mlp_200", SHAPE, CLASSES)


@cache
def epoch() -> int:
    """Floating point operations of one local epoch of a client."""
    fed = Metered(FedAvg(model(), LocalTraining(epochs=1)), make_population())
    offer = Offer(shared={"params": model().init()})
    return fed.metered(lambda: fed.run(FedAvg.train, torch.tensor([0]), offer))[1]


def build(name: str, settings: dict[str, object]) -> Method:
    """A method for the reference problem."""
    return METHODS[name](model=model(), local=LocalTraining(), **settings)  # type: ignore[call-arg]


def start(method: Method) -> tuple[Any, Metered]:
    """The state when unseen clients come, and the federation."""
    fed = Metered(method, make_population(), workers=1)
    state = method.init(fed)
    for t in range(JOINS):
        fed.begin(t)
        state = method.round(state, t, fed)
    fed.begin(JOINS)
    return state, fed


def assign(method: Method, state: Any, client: int, fed: Metered) -> tuple[Any, Assignment]:
    """The state after assigning one client, and what that took."""
    cohort, before, calls = torch.tensor([client]), fed.moved(client), len(fed.ledger.rounds)
    try:
        state, flops = fed.metered(lambda: method.admit(state, cohort, fed))
    except RoleError as error:
        return state, Assignment((), 0, 0, 0, 0, 0, 0.0, str(error))
    down, up = (now - then for now, then in zip(fed.moved(client), before, strict=True))
    tasks = tuple(dict.fromkeys(task for _, task, *_ in fed.ledger.rounds[calls:]))
    offer = method.offer(state, cohort, fed)
    weights, more = counted(lambda: used(method, offer, client, fed))
    return state, Assignment(tasks, down, up, flops, offer.bytes_each(), more, untrained(method, weights))


def used(method: Method, offer: Offer, client: int, fed: Metered) -> Params:
    """The model that a client makes of what it is offered."""
    own = select(to_flat(offer.each), 0 if offer.pick is None else int(offer.pick[0]))
    one = make_client(fed, client, torch.tensor(0), select(fed.memory_of(torch.tensor([client])), 0))
    return method.personalise(one, from_flat(to_flat(offer.shared) | own))


def untrained(method: Method, weights: Params) -> float:
    """The share of these weights that nobody has trained."""
    served = find_client_model(method)
    first = served.init()
    same = sum(weights[name].numel() for name in served.weights if torch.equal(weights[name], first[name]))
    return same / served.parameters()


def rounds_asked(method: Method, state: Any, client: int, fed: Metered) -> int:
    """In how many of the next rounds this client is asked to do something, without its training."""
    fed.roles = tuple(Role(joins=99) if i >= TRAINING and i != client else role for i, role in enumerate(fed.roles))
    asked = 0
    for t in range(JOINS, JOINS + AFTER):
        before = fed.moved(client)
        fed.begin(t)
        state = method.round(state, t, fed)
        asked += fed.moved(client) != before
    return asked


def measure(name: str, settings: dict[str, object]) -> tuple[dict[str, Assignment], int]:
    """What assigning takes by role, and in how many of the next rounds a holdout client is assigned again."""
    method = build(name, settings)
    state, fed = start(method)
    assigned = {role: assign(method, state, TRAINING + i, fed) for i, role in enumerate(UNSEEN)}
    again = rounds_asked(method, assigned["holdout"][0], TRAINING + list(UNSEEN).index("holdout"), fed)
    return {role: assignment for role, (_, assignment) in assigned.items()}, again


def line(name: str, key: str, assignments: dict[str, Assignment], again: int) -> str:
    """A row of the table; a cost that differs between roles shows all of its values."""
    done = [assignment for assignment in assignments.values() if not assignment.refused]
    costs = [" / ".join(dict.fromkeys(of)) for of in zip(*map(said, done), strict=True)]
    often = {0: AGAIN.get(name, "never"), AFTER: "every round"}.get(again, "some rounds")
    why = "; ".join(dict.fromkeys(reason(p.refused) for p in assignments.values() if p.refused))
    return row(
        [f"`{name}`" + (f", `{key}`" if key else ""), *map(verdict, assignments.values()), *costs, often, why or "–"]
    )


def said(assignment: Assignment) -> tuple[str, ...]:
    """The cells of one role's cost."""
    tasks = ", ".join(f"`{task}`" for task in assignment.tasks) or "–"
    compute = (amount(flops / epoch()) for flops in (assignment.flops, assignment.served_flops))
    return tasks, size(assignment.down), size(assignment.up), next(compute), size(assignment.served), next(compute)


def verdict(assignment: Assignment) -> str:
    """Whether a client is assigned, and whether it is served weights that nobody trained."""
    if assignment.refused:
        return "no"
    return f"yes, {assignment.untrained:.0%} untrained" if assignment.untrained else "yes"


def size(count: int) -> str:
    """Bytes, and how many models w that is."""
    return f"{count} ({amount(count / bytes_of(model().init()))} w)" if count else "0"


def amount(value: float) -> str:
    """A number with at most three digits that count."""
    return f"{value:.3g}" if value >= 0.001 or not value else "<0.001"


def reason(refusal: str) -> str:
    """The words of a refusal that say why."""
    return refusal.partition(", but ")[2].partition(";")[0]


def row(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def cases() -> dict[tuple[str, str], dict[str, object]]:
    """The settings of all rows: of all methods, and of some of them with other settings."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for name in METHODS:
        own = SETTINGS.get(name, {})
        rows |= {(name, ""): own} | {(name, key): own | more for of, key, more in VARIANTS if of == name}
    return rows


def table() -> str:
    """All rows under their head."""
    lines = [line(*case, *measure(case[0], settings)) for case, settings in cases().items()]
    return "\n".join([row(HEAD), row(["---"] * len(HEAD)), *lines])


def written() -> str:
    """The table that is in the docs now."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def write(found: str) -> None:
    """Puts the table into the docs."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/roles.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = table()
    print(found)
    if options.write:
        write(found)


if __name__ == "__main__":
    main()
