"""What clients train outside of rounds follows no schedule of the learning rate; and rates of zero break nothing."""

from dataclasses import replace

import pytest
import torch

from kinfed.client_tasks import evaluate
from kinfed.data import LATER, Role
from kinfed.engines import Vectorised
from kinfed.federation import Offer
from kinfed.methods import FLHC, WD, FedAvgFT, FedBABU, FedClust, FedNova, FedRep, PFedMe, Scaffold
from kinfed.training import LocalTraining
from tests.methods.by_hand import QUADRATIC, client_with, weight
from tests.methods.planted import net, renamed
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, fit

PLAIN = LocalTraining(epochs=2, batch_size=8, lr=0.1)
LONG = replace(PLAIN, epochs=20)
ROUNDS = 6
COSINE = {"schedule": "cosine", "schedule_rounds": 4}  # the rate is 0 from round 4 on
SCHEDULES = {"decay": {"decay": 0.3}, "cosine": COSINE, "warm-up": {"warm_up": 20}}
some_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


@some_schedule
def test_a_client_tunes_at_the_whole_learning_rate_in_any_round_or_at_one_of_its_own(schedule):
    local, client = replace(PLAIN, **schedule), client_with(1.0, 2.0, 3.0, at_round=9)
    whole, _ = PLAIN(client, weight(0.0), QUADRATIC.gradient)
    half, _ = replace(PLAIN, lr=0.05)(client, weight(0.0), QUADRATIC.gradient)
    assert_same_bits(local.for_adaptation()(client, weight(0.0), QUADRATIC.gradient)[0], whole)
    assert_same_bits(replace(local, adapt_lr=0.05).for_adaptation()(client, weight(0.0), QUADRATIC.gradient)[0], half)


@pytest.mark.parametrize("kind", [FedAvgFT, FedBABU, FedRep])
def test_methods_tune_once_their_schedule_has_ended(kind):
    more = {"tune_epochs": 5} if kind is FedRep else {}
    state, fed = fit(kind(net(), replace(PLAIN, adapt_epochs=5, **COSINE), **more), population=renamed(), rounds=ROUNDS)

    def count_right(round):
        fed.round, fed.calls = round, {}  # the same random numbers
        return fed.run(evaluate, fed.clients, fed.method.offer(state, fed.clients, fed))["metric"]

    assert torch.equal(count_right(0), count_right(ROUNDS))


COMPARED = {
    "flhc": (lambda local: FLHC(net(), local, rounds_before=1), renamed, PLAIN),
    "fedclust": (lambda local: FedClust(net(), local), renamed, LONG),
    "flis_hc": (lambda local: make("flis_hc", local=local), population, LONG),
}


def case_of(name: str, schedule: str):
    """In every run each method with the first schedule, and each schedule with the first method."""
    later = name != next(iter(COMPARED)) and schedule != next(iter(SCHEDULES))
    marks = [pytest.mark.on_demand] if later else []
    return pytest.param(name, SCHEDULES[schedule], id=f"{name}-{schedule}", marks=marks)


@pytest.mark.parametrize(("name", "schedule"), [case_of(name, of) for name in COMPARED for of in SCHEDULES])
def test_who_comes_after_training_joins_its_group_whatever_rates_are_by_then(name, schedule):
    method, people, local = COMPARED[name]
    roles = tuple(Role(joins=LATER if i >= 8 else 0) for i in range(12))
    state, fed = fit(method(replace(local, **schedule)), population=people(roles=roles), rounds=ROUNDS)
    found, truth = fed.method.cluster_assignment(state), fed.true_clusters
    for client in range(8, 12):
        mates = found[:8][truth[:8] == truth[client]]
        assert (mates == found[client]).float().mean() > 0.5


def test_the_rounds_before_a_clustering_are_no_rounds_of_a_warm_up():
    plain, warm = (WD(net(), local, rounds_before=3, clusters=2) for local in (PLAIN, replace(PLAIN, warm_up=10)))
    roots = [method.init(Vectorised(method, renamed())).root for method in (plain, warm)]
    assert_same_bits(*roots)


@pytest.mark.parametrize(
    "method",
    [Scaffold(net(), replace(PLAIN, **COSINE)), PFedMe(net(), replace(PLAIN, **COSINE), begin="last")]
    + [FedNova(net(), replace(PLAIN, **COSINE, **more)) for more in ({}, {"clip_norm": 1.0}, {"optimiser": "adam"})],
    ids=["scaffold", "pfedme", "fednova", "fednova, clipped", "fednova, adam"],
)
def test_replies_are_used_and_change_nothing_once_a_cosine_has_ended(method):
    fed = Vectorised(method, renamed())
    state, states = method.init(fed), []
    for t in range(ROUNDS):
        fed.begin(t)
        state = method.round(state, t, fed)
        states.append(state)
    assert not fed.rejected
    assert_close(states[-1].params, states[3].params, atol=1e-6)


def test_a_control_variate_stays_where_nothing_moved():
    client = client_with(2.0, 4.0, at_round=5, control=weight(1.0))
    reply = Scaffold(QUADRATIC, replace(PLAIN, **COSINE)).train(client, params=weight(0.0), control=weight(0.5))
    assert float(reply.send["change"]["w"]) == 0 and float(reply.keep["control"]["w"]) == 1


def test_rates_are_those_of_a_schedule_in_rounds():
    method = make("fedavg", local=replace(PLAIN, decay=0.5))
    fed = Vectorised(method, population())
    params = method.init(fed).params
    moved = []
    for fed.round in (0, 1):
        trained = fed.run(method.train, fed.clients[:1], Offer(shared={"params": params})).stack("params")
        moved.append(sum((trained[name][0] - params[name]).abs().sum() for name in params))
    assert moved[1] < 0.8 * moved[0]
