"""Degenerate settings of the methods with one model must give FedAvg exactly (methods.md, section 8)."""

from dataclasses import replace

import pytest

from kinfed.methods import FedAvg
from kinfed.models import Model
from kinfed.training import LocalTraining
from tests.methods.registry import LOCAL, make, population
from tests.problems import assert_close, assert_same_bits, fit, small_net, tiny_population


def final(name, people=None, rounds=3, **more):
    return fit(make(name, **more), population=people or population(), rounds=rounds, fraction=0.5)[0]


EQUAL = tiny_population((20,) * 6)


@pytest.mark.parametrize("local", [LOCAL, replace(LOCAL, momentum=0.0), replace(LOCAL, decay=0.5)])
def test_fednova_with_equal_steps_is_fedavg(local):
    assert_close(final("fednova", EQUAL, local=local).params, final("fedavg", EQUAL, local=local).params)


def test_fednova_with_different_steps_is_not():
    nova, plain = final("fednova").params, final("fedavg").params
    assert (nova["1.weight"] - plain["1.weight"]).abs().max() > 1e-3


def test_scaffolds_first_round_is_fedavgs():
    assert_close(final("scaffold", weighting="samples", rounds=1).params, final("fedavg", rounds=1).params)
    assert_close(final("scaffold", EQUAL, rounds=1).params, final("fedavg", EQUAL, rounds=1).params)


def test_scaffold_of_one_client_is_fedavg():
    single = tiny_population((20,), clusters=1)  # c = cᵢ, so nothing is corrected
    assert_close(final("scaffold", single).params, final("fedavg", single).params)


def test_fedprox_without_pull_is_fedavg():
    assert_same_bits(final("fedprox", mu=0.0).params, final("fedavg").params)
    assert_same_bits(
        final("fedprox", mu=0.0, aggregate_over="all_clients").params,
        final("fedavg", aggregate_over="all_clients").params,
    )


def test_fedprox_is_fedavg_with_a_proximal_term():
    assert_same_bits(final("fedprox", mu=0.5).params, final("fedavg", local=replace(LOCAL, mu=0.5)).params)


def test_fedprox_with_a_huge_pull_keeps_the_received_model():
    stuck = final("fedprox", local=LocalTraining(2, 5, 1e-5, momentum=0), mu=9e4)
    assert_close(stuck.params, small_net().init(), atol=1e-3)


@pytest.mark.filterwarnings("ignore:.* which is FedAvg")
def test_lg_fedavg_that_shares_everything_is_fedavg():
    assert_same_bits(final("lg_fedavg", shared_tensors=4).shared, final("fedavg").params)
    assert_same_bits(final("lg_fedavg", shares=lambda name: True).shared, final("fedavg").params)


def test_fine_tuning_does_not_touch_the_one_model():
    assert_same_bits(final("fedavg_ft").params, final("fedavg").params)


class SecondHalf(Model):
    """Looks at samples 10 to 19 of a batch only."""

    def compute_gradient(self, params, batch):
        return super().compute_gradient(params, batch.part(slice(10, None)))


def test_per_fedavg_without_an_inner_step_is_fedavg_on_every_second_mini_batch():
    local = LocalTraining(2, 10, 0.7, momentum=0.9)
    meta = final("per_fedavg", EQUAL, local=local, alpha=1e-12, beta=0.05)
    half = FedAvg(SecondHalf(small_net().build, classes=3), LocalTraining(2, 20, 0.05, momentum=0))
    assert_close(meta.params, fit(half, population=EQUAL, rounds=3, fraction=0.5)[0].params, atol=1e-6)
