import logging
import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from kinfed.data import Role
from kinfed.engines import Vectorised, vectorised
from kinfed.engines.workers import SAMPLES, ExecutionPlan, candidate_plans, subset, time_plans
from kinfed.experiment import Experiment
from kinfed.methods import FedAvg, Local, Scaffold
from kinfed.training import LocalTraining
from tests.engines.test_workers import nets
from tests.problems import assert_close, assert_same_bits, fit, tiny_population

POPULATION = tiny_population((7, 23, 12, 31, 9, 18, 22, 8, 30), shape=(1, 28, 28))
LOCAL = LocalTraining(epochs=2, batch_size=8, lr=0.1)
SIDE, TURN, ALONE = ExecutionPlan(2), ExecutionPlan(1), ExecutionPlan(2, sequential=True)


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(vectorised, "cores", lambda: 2)
    monkeypatch.setattr(vectorised, "SLOW", 0.0)


def test_a_quick_training_is_not_tried_by_itself_and_one_core_has_fewer_ways():
    assert candidate_plans(2, fast_path=False) == (SIDE, TURN, ALONE)
    assert candidate_plans(2, fast_path=True) == (SIDE, TURN)
    assert candidate_plans(1, fast_path=True) == (TURN,)


@pytest.mark.parametrize(("alone", "chosen"), [(0.04, SIDE), (0.01, ALONE)])
def test_only_a_clearly_faster_way_takes_the_place_of_the_first(alone, chosen):
    way, seconds = time_plans({SIDE: partial(time.sleep, 0.05), ALONE: partial(time.sleep, alone)})
    assert way == chosen and seconds[SIDE] >= 0.05


def test_a_trial_sees_few_rows_of_its_clients():
    fed = Vectorised(FedAvg(nets()["own"], LOCAL), tiny_population((50, 7, 60), shape=(1, 28, 28)))
    some = subset(fed, [2, 1])
    assert [len(rows) for rows in some.train] == [SAMPLES, 7]
    assert torch.equal(some.train[0], fed.train[2][:SAMPLES])


def test_clients_without_labels_or_training_rows_can_be_in_a_trial():
    population = tiny_population((50, 7, 60), shape=(1, 28, 28))
    y = population.y.clone()
    y[population.train[1]] = -1
    roles = (Role(), Role(joins=3, labelled=False), Role(holdout=True))
    population = replace(population, y=y, train=(*population.train[:2], population.train[2][:0]), roles=roles)
    some = subset(Vectorised(FedAvg(nets()["own"], LOCAL), population), [1, 2])
    assert some.roles == (Role(labelled=False), Role(holdout=True))


def test_the_engine_chooses_when_a_task_comes_again_and_says_so(two_cores, caplog):
    with caplog.at_level(logging.DEBUG, "kinfed"):
        _, fed = fit(FedAvg(nets()["own"], LOCAL), population=POPULATION, rounds=2, every=1, workers=0)
    assert fed.tuned.keys() == {"train", "evaluate"}
    assert any("autotuned 'train'" in said and "one client at a time" in said for said in caplog.messages)


def test_what_comes_once_is_not_tried(two_cores):
    _, fed = fit(FedAvg(nets()["own"], LOCAL), population=POPULATION, rounds=1, workers=0)
    assert not fed.tuned and fed.plan == SIDE


def test_what_takes_no_time_is_not_tried(two_cores, monkeypatch):
    monkeypatch.setattr(vectorised, "SLOW", 3600.0)
    _, fed = fit(FedAvg(nets()["own"], LOCAL), population=POPULATION, rounds=2, workers=0)
    assert not fed.tuned


def test_what_waits_for_others_on_the_machine_is_not_tried(monkeypatch):
    def wait(fed, *call):
        time.sleep(vectorised.SLOW)
        return run(fed, *call)

    run = Vectorised._run_once_per_test_set
    monkeypatch.setattr(Vectorised, "_run_once_per_test_set", wait)
    small = tiny_population((4, 4, 4), shape=(1, 28, 28))
    _, fed = fit(FedAvg(nets()["mlp_200"], LOCAL), population=small, rounds=2, every=1, workers=0)
    assert not fed.slow and not fed.tuned


def test_on_one_core_waiting_makes_no_plan_slower():
    def work(seconds):
        time.sleep(seconds)
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass

    one, alone = ExecutionPlan(1), ExecutionPlan(1, sequential=True)
    plan, seconds = time_plans({one: partial(work, 0.1), alone: partial(work, 0.0)})
    assert plan == one and seconds[one] < 0.1


@pytest.mark.parametrize("method", [FedAvg, Local, Scaffold])
def test_a_trial_leaves_no_trace_in_the_numbers(method, two_cores):
    fits = [fit(method(nets()["mlp_200"], LOCAL), population=POPULATION, rounds=3, workers=n) for n in (0, 2)]
    (tried, fed), (plain, other) = fits
    assert fed.tuned["train"] in (SIDE, TURN) and not other.tuned
    assert fed.calls == other.calls and fed.ledger.rounds == other.ledger.rounds
    assert_same_bits(fed.memory, other.memory)
    assert_same_bits(tried.params, plain.params) if method is FedAvg else None


@pytest.mark.parametrize(
    ("method", "name"),
    [(FedAvg, "mlp_200"), (FedAvg, "lenet5"), (FedAvg, "own"), (Scaffold, "mlp_200"), (Scaffold, "own")],
)
def test_one_client_at_a_time_agrees_with_clients_side_by_side(method, name):
    states = [
        fit(method(nets()[name], LOCAL), population=POPULATION, **how)[0]
        for how in ({}, {"sequential": True, "workers": 2})
    ]
    assert_close(*(state.params for state in states))


def test_a_resumed_run_goes_the_way_that_was_chosen(tmp_path, two_cores, monkeypatch):
    method = FedAvg(nets()["own"], LOCAL)
    monkeypatch.setattr(vectorised, "time_plans", lambda runs: (ALONE, {}))
    first = Experiment.over(Vectorised(method, POPULATION, workers=0), rounds=3, checkpoint=tmp_path / "at")
    first.run()
    monkeypatch.setattr(vectorised, "time_plans", lambda runs: (SIDE, {}))
    fed = Vectorised(method, POPULATION, workers=0)
    Experiment.over(fed, rounds=4, checkpoint=tmp_path / "at").run(resume=True)
    assert fed.tuned["train"] == ALONE
