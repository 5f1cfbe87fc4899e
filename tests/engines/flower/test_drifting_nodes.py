"""Nodes whose samples change, and nodes that leave: Flower gives what the engines of one process give."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from kinfed.data import LabelSwapDrift, NewClasses, Role
from kinfed.engines import Sequential, Vectorised
from kinfed.experiment import Experiment
from tests.engines.flower.loopback import Loopback, make_flower
from tests.methods.registry import make
from tests.problems import tiny_population

STAGES = {"change_rounds": (1, 2), "concepts": ((0, 0, 0), (0, 0, 1), (1, 0, 0))}
DRIFTS = (LabelSwapDrift(pairs=((0, 1),), **STAGES), NewClasses(labels=((0, 1), (1, 2)), **STAGES))


def measure(fed):
    experiment = Experiment.over(fed, rounds=4)
    return experiment.run(), experiment.drift_log


@pytest.mark.flower
@pytest.mark.parametrize("drift", DRIFTS, ids=lambda drift: type(drift).__name__)
def test_nodes_drift_and_leave_as_clients_of_one_process_do(drift):
    people = drift(tiny_population(clusters=1), np.random.default_rng(0))
    people = replace(people, roles=(*[Role()] * 5, Role(leaves=3)))
    method = make("ifca")
    (summary, log), *others = (
        measure(fed)
        for fed in (Vectorised(method, people), Sequential(method, people), make_flower(method, people, Loopback(6)))
    )
    assert len(log.events) == 2 + 4
    for other, their_log in others:
        assert other == pytest.approx(summary, abs=1e-4, nan_ok=True)
        assert [event[:2] for event in their_log.events] == [event[:2] for event in log.events]
