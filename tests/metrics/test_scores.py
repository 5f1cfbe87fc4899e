"""Accuracy, fairness, targets and convergence, by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from kinfed.engines import Sequential, Vectorised, vectorised
from kinfed.methods import FedAvgFT
from kinfed.metrics import (
    accuracy_of,
    converged_at,
    is_stuck,
    mean_accuracy,
    rounds_to_target,
    share_at_target,
    standard_error,
    variance,
    worst_decile,
)
from kinfed.metrics.scores import measure_clients
from kinfed.models import Model
from kinfed.training import LocalTraining
from tests.problems import tiny_population

ACCURACY = torch.tensor([0.9, 1.0, 0.5, 0.8])


def test_every_client_counts_the_same():
    assert mean_accuracy(ACCURACY) == pytest.approx(0.8)


def test_standard_error_is_binomial():
    assert standard_error(0.8273, 10_000) * 100 == pytest.approx(0.378, abs=5e-4)


def test_variance_is_of_the_population_in_squared_points():
    # deviations from 80: 10, 20, -30, 0
    assert variance(ACCURACY) == pytest.approx((100 + 400 + 900) / 4)


def test_the_worst_decile_has_at_least_one_client():
    assert worst_decile(ACCURACY) == pytest.approx(0.5)
    assert worst_decile(torch.arange(20) / 20) == pytest.approx((0 + 1 / 20) / 2)


def test_reaching_the_target_includes_the_target():
    assert share_at_target(ACCURACY.double(), 0.9) == pytest.approx(0.25)
    assert share_at_target(torch.tensor([0.99, 1.0, 0.98], dtype=torch.double), 0.99) == pytest.approx(2 / 3)


def test_rounds_to_target_and_convergence():
    means = [(1, 0.5), (2, 0.9), (3, 0.7), (4, 0.95), (5, 0.951), (6, 0.949)]
    assert rounds_to_target(means, 0.9) == 2
    assert rounds_to_target(means, 0.99) is None
    assert converged_at(means) == 4
    assert converged_at([]) is None


def test_two_evaluations_say_nothing_about_convergence():
    assert converged_at([(1, 0.4), (2, 0.9)]) is None and converged_at([(1, 0.9), (2, 0.9)]) is None
    assert converged_at([(1, 0.1), (2, 0.9), (3, 0.9), (4, 0.9)]) == 2
    steps = [(t, float(t)) for t in range(97)] + [(97, 96.0), (98, 96.0), (99, 96.0)]
    assert converged_at(steps) is None  # the last three of a hundred


def test_accuracy_is_stuck_when_it_fell_and_does_not_move():
    fallen = [(1, 0.3), (2, 0.8), (3, 0.1), (4, 0.1)]
    assert is_stuck(fallen, chance=0.1) and not is_stuck(fallen[:3], chance=0.1)
    for means in ([(1, 0.8), (2, 0.5), (3, 0.5)], [(1, 0.1), (2, 0.1)], [], [*fallen, (5, 0.2)]):
        assert not is_stuck(means, chance=0.1)
    assert not is_stuck([(1, 0.12), (2, 0.0), (3, 0.0)], chance=0.1)  # it never was any good


def test_a_client_without_test_samples_has_no_accuracy():
    accuracy = accuracy_of(torch.tensor([3, 0]), torch.tensor([4, 0]))
    assert accuracy[0] == 0.75 and accuracy[1].isnan()


def test_all_metrics_are_measured_side_by_side(monkeypatch):
    population = tiny_population()
    population = replace(population, test=(population.test[0][:0], *population.test[1:]))  # one without test samples
    model = Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), classes=3)
    method = FedAvgFT(model, LocalTraining(1, 5, 0.05))
    slow, fast = Sequential(method, population), Vectorised(method, population)
    expected = measure_clients(method, method.init(slow), slow)
    monkeypatch.setattr(vectorised, "loop", lambda *given, **named: pytest.fail("one client after the other"))
    found = measure_clients(method, method.init(fast), fast)
    assert found == pytest.approx(expected, abs=1e-5) and 0.5 < found["accuracy"] < 1 and "auroc" in found
