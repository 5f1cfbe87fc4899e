"""What liars send, by hand, and what it costs honest clients."""

import pytest
import torch

from benchmarks.attacks import (
    ATTACKS,
    Attack,
    Round,
    cell_text,
    measure,
    oppose_the_mean,
    poison,
    shift_a_little,
    stamp,
)
from kinfed.aggregation import DEPLOYED, MEAN
from tests.problems import tiny_population

NOW = Round(
    start=torch.zeros(1, 2),
    own=torch.tensor([[7.0, 7.0]]),
    honest=torch.tensor([[1.0, 2.0], [3.0, 2.0]]),
    draw=torch.Generator().manual_seed(0),
)


def test_a_little_is_below_the_mean_by_standard_deviations():
    assert shift_a_little(NOW).flatten().tolist() == pytest.approx([2 - 1.5 * 2**0.5, 2.0])


def test_inner_product_manipulation_is_the_mean_backwards():
    assert oppose_the_mean(NOW).tolist() == [[-6.0, -6.0]]


def test_a_liar_trains_on_other_labels_and_nobody_else_does():
    people = tiny_population((4, 4))
    flipped = poison(people, Attack("flips", flips_labels=True), [0])
    assert (flipped.y[flipped.train[0]] == 2 - people.y[people.train[0]]).all()
    assert torch.equal(flipped.y[flipped.test[0]], people.y[people.test[0]])
    assert torch.equal(flipped.train[1], people.train[1])


def test_half_of_a_liars_samples_have_the_trigger_and_its_label():
    people = tiny_population((4, 4))
    poisoned = poison(people, ATTACKS["backdoor"], [1])
    x, y = poisoned.x[poisoned.train[1]], poisoned.y[poisoned.train[1]]
    assert (x[::2, :, :3, :3] == 255).all() and (y[::2] == 0).all()
    assert torch.equal(x[1::2], people.x[people.train[1]][1::2])
    assert torch.equal(y[1::2], people.y[people.train[1]][1::2])


def test_a_trigger_is_a_white_corner():
    marked = stamp(torch.zeros(1, 1, 5, 5, dtype=torch.uint8))
    assert int(marked.sum()) == 9 * 255


def test_a_cell_is_the_mean_over_seeds_in_per_cent():
    assert cell_text([(0.9, 0.1), (0.8, 0.2)], has_trigger=True) == "85.0 (trigger 15)"
    assert cell_text([(float("nan"), 0.0)], has_trigger=False) == "no clusters"


@pytest.mark.on_demand
@pytest.mark.parametrize("method", ["fedavg", "flt", "repa", "ifca"])
def test_with_the_default_of_deployment_a_liar_costs_at_most_two_points(method):
    usual = measure(method, ATTACKS["none"], MEAN, 0)[0]
    for attack in ("huge", "scaling", "inflated"):
        assert measure(method, ATTACKS[attack], DEPLOYED, 0)[0] >= usual - 0.02, attack
