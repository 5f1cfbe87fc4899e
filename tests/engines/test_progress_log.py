import logging

import pytest

from kinfed.engines import Sequential, Vectorised
from kinfed.engines import workers as progress_log
from kinfed.engines.workers import ProgressLog
from kinfed.methods import FedAvg
from kinfed.training import LocalTraining
from tests.problems import small_net, tiny_population


@pytest.fixture
def said(caplog):
    with caplog.at_level(logging.INFO, "kinfed"):
        yield lambda: caplog.messages


def test_what_takes_long_is_said_more_and_more_seldom(monkeypatch, said):
    now = 1000.0
    monkeypatch.setattr(progress_log.time, "monotonic", lambda: now)
    cohort = ProgressLog("train", 300)
    for second in range(200):
        now = 1000.0 + second
        cohort.update(second)
    assert said() == [f"train: {seconds} of 300 clients" for seconds in (10, 30, 70, 130, 190)]


def test_nothing_is_said_of_what_is_quick_or_over(monkeypatch, said):
    quick = ProgressLog("train", 3)
    assert [quick.wrap(lambda item: 2 * item, lambda _: 1)(item) for item in (1, 2, 3)] == [2, 4, 6]
    monkeypatch.setattr(progress_log, "SECONDS", 0.0)
    ProgressLog("train", 3).update(3)
    assert said() == []


@pytest.mark.parametrize(
    ("engine", "more", "steps"),
    [
        (Sequential, {}, (1, 2, 3, 4, 5)),
        (Vectorised, {"block": 2}, (2, 4)),
        (Vectorised, {"block": 2, "workers": 2}, (2, 4)),
        (Vectorised, {"sequential": True, "workers": 2}, (1, 2, 3, 4, 5)),
    ],
)
def test_every_engine_says_how_far_a_cohort_is(engine, more, steps, monkeypatch, said):
    monkeypatch.setattr(progress_log, "SECONDS", 0.0)
    method = FedAvg(small_net(), LocalTraining(epochs=1, batch_size=5, lr=0.05))
    fed = engine(method, tiny_population((20,) * 6), **more)
    method.round(method.init(fed), 0, fed)
    assert said() == [f"train: {done} of 6 clients" for done in steps]
