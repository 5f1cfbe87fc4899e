"""Clients that join while the others train: every method serves them, lets them train, and finds their kin."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from kinfed.capabilities import FindsClusters
from kinfed.data import Population, Role
from kinfed.engines import Vectorised
from kinfed.experiment import Evaluation, Experiment, RoundResult
from kinfed.method import Method
from kinfed.methods import CFL, FLHC, IFCA, WD, CLoVE, FedClust, FedDrift, FedGroup, FedSoft, FeSEM, StoCFL
from kinfed.methods.split_tree import SplitRule
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import CASES, KERNEL, MORE, make, mark_alike, population
from tests.problems import same_clusters

CLIENTS, LATE, JOINS, ROUNDS = 12, (4, 5), 2, 4  # who is late: one of either planted group
GONE = 7  # and who leaves
LONG = replace(LOCAL, epochs=20)  # FLIS: predictions tell groups apart only once models have learnt something


def roles(joins: int = JOINS) -> tuple[Role, ...]:
    return tuple(Role(joins=joins if i in LATE else 0) for i in range(CLIENTS))


def dimmed(**more: object) -> Population:
    """The images of every second client are four times as dark: a PCA of one's own can tell that."""
    people = population(**more)
    x = people.x.clone()
    for client in range(1, CLIENTS, 2):
        x[torch.cat([people.train[client], people.test[client]])] //= 4
    return replace(people, x=x)


TRAINING = ("train", "train_both", "train_and_judge", "train_from_start")
SEPARATED = {  # method -> settings and clients with which it separates the planted groups before anybody is late
    "auto": (lambda: make("auto"), population),
    "flt": (lambda: make("flt"), population),
    KERNEL: (lambda: make(KERNEL), population),
    "pca_km_hc": (lambda: make("pca_km_hc", threshold=0.8), dimmed),
    "ifca": (lambda: IFCA(net(), LOCAL, least_share=0.35), renamed),
    "fesem": (lambda: FeSEM(net(), LOCAL, clusters=2), renamed),
    "cfl": (lambda: CFL(net(), LOCAL, SplitRule(0.5, 0.5, gap=0.6), after=1), renamed),
    "flhc": (lambda: FLHC(net(), LOCAL, rounds_before=1), renamed),
    "flis_dc": (lambda: make("flis_dc", local=LONG, beta=0.6), population),
    "flis_hc": (lambda: make("flis_hc", local=LONG), population),
    "repa": (lambda: make("repa"), population),
    "pacfl": (lambda: make("pacfl"), population),
    "fedclust": (lambda: FedClust(net(), LONG), renamed),
    "fedgroup": (lambda: FedGroup(net(), LOCAL, clusters=2), renamed),
    "clove": (lambda: CLoVE(net(), LOCAL, seed=1), renamed),
    "stocfl": (lambda: StoCFL(net(), LOCAL, threshold=0.5), renamed),
    "flux": (lambda: make("flux", radius=1.5), partial(population, MORE)),
    "feddrift": (lambda: FedDrift(net(), LONG, delta=0.3, step_rounds=1, first="own"), renamed),
    "fedsoft": (lambda: FedSoft(net(), LOCAL, every=1), renamed),
    "flsc": (lambda: make("flsc"), population),
    "oracle": (lambda: make("oracle"), population),
    "wd": (lambda: WD(net(), LOCAL, rounds_before=3, clusters=2), renamed),
}


class Diary:
    """An observer that remembers every round."""

    def __init__(self) -> None:
        self.results: list[RoundResult] = []

    def on_start(self, rounds: int, done: int) -> None: ...

    def on_round(self, result: RoundResult) -> None:
        self.results.append(result)

    def on_end(self, summary: object) -> None: ...


def watched(method: Method, people: Population, rounds: int = ROUNDS):  # type: ignore[type-arg, no-untyped-def]
    diary, fed = Diary(), Vectorised(method, people)
    scored = Evaluation(metrics="main", signatures="none")
    Experiment.over(fed, rounds=rounds, evaluation=scored, observers=(diary,)).run()
    return diary.results, fed


@pytest.mark.parametrize("named", mark_alike("round", "admit", "personalise"), indirect=True)
def test_a_client_that_joins_is_served_at_once_and_trains_from_then_on_and_one_that_leaves_does_not(method):
    joins, leaves, rounds = 1, 2, 3
    some = list(roles(joins))
    some[GONE] = Role(leaves=leaves)
    results, fed = watched(method, population(roles=tuple(some)), rounds)
    served = [[not result.scores.main[i].isnan() for i in LATE] for result in results]
    assert served == [[False, False]] * joins + [[True, True]] * (rounds - joins)
    asked = [clients for _, task, clients, _, _ in fed.ledger.rounds if task in TRAINING]
    assert asked == [10] * joins + [12] * (leaves - joins) + [11] * (rounds - leaves)
    assert [bool(result.scores.main[GONE].isnan()) for result in results] == [False] * leaves + [True]
    if "train_both" in fed.ledger.up:  # some rounds send two models
        return
    trained = [rounds - joins if i in LATE else leaves if i == GONE else rounds for i in range(CLIENTS)]
    sent = fed.ledger.up["train"].double() / torch.tensor(trained)
    assert len(sent.unique()) == 1, "as much as the others in each of its rounds"


def test_every_method_that_finds_clusters_is_tried_with_clusters_it_can_find():
    assert set(SEPARATED) == {name for name in CASES if isinstance(make(name), FindsClusters)}


@pytest.mark.parametrize("name", SEPARATED)
def test_a_client_that_joins_finds_its_kin(name):
    build, people = SEPARATED[name]
    results, fed = watched(build(), people(roles=roles()))
    before, after = results[JOINS - 1].clusters, results[JOINS].clusters
    others = torch.tensor([i for i in range(CLIENTS) if i not in LATE])
    assert same_clusters(before[others], fed.true_clusters[others]), "the planted groups were separated before"
    assert same_clusters(after, fed.true_clusters), "and who joins is placed with its kin"
    assert same_clusters(results[-1].clusters, fed.true_clusters)
