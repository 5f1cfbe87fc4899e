"""What liars send, by hand, and what it costs honest clients."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from benchmarks.attacks import Result, Setup, by_cluster, cell_text, configure, measure
from benchmarks.lies import (
    ATTACKS,
    BOUND,
    Attack,
    Round,
    copy_first,
    flip,
    minimise_the_maximum,
    minimise_the_sum,
    move_half_way,
    oppose_the_mean,
    poison,
    push_one_way,
    reverse_the_last_layer,
    send_noise_at_the_bound,
    shift_a_little,
    spend_the_bound_on_weights,
    stamp,
    stay_under_the_bound,
)
from kinfed.aggregation import DEPLOYED, MEAN
from kinfed.config import make_population
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


def test_zero_sends_back_what_was_sent():
    lie = ATTACKS["zero"].lie
    assert lie is not None and lie(NOW).tolist() == [[0.0, 0.0]]


def test_weights_alone_take_what_clipping_leaves_to_statistics_too():
    now = replace(NOW, own=torch.tensor([[7.0, 1.0]]), statistics=torch.tensor([False, True]))  # means (2, 2)
    lied = spend_the_bound_on_weights(now)
    assert lied[0, 1].item() == 1.0 and lied[0, 0].item() < 0
    assert lied.norm().item() == pytest.approx(BOUND * 5**0.5)


def test_the_last_layer_alone_is_backwards_and_the_whole_just_below_the_bound():
    now = replace(NOW, own=torch.tensor([[1.0, 2.0]]), last=torch.tensor([False, True]))  # the lower median norm is √5
    assert reverse_the_last_layer(now).tolist() == [[1.0, pytest.approx(-((5 * BOUND**2 - 1) ** 0.5))]]


@pytest.mark.parametrize("method", ["pca_km_hc", "fedrc"])
def test_the_last_layer_is_that_of_the_network_in_every_model_that_a_client_sends(method):
    masks = []

    def note(now):
        masks.append(now.last)
        return now.own

    measure(method, Attack("looks", note), DEPLOYED, 0, Setup(rounds=1, clients=6))
    models = 2 if method == "fedrc" else 1
    assert {int(mask.sum()) for mask in masks} == {models * (200 * 10 + 10)}, "weights and bias of mlp_200's outputs"
    assert all(bool(mask[-models * 2010 :].all()) for mask in masks)


def test_min_max_is_as_far_from_the_farther_update_as_honest_ones_are_apart():
    # mean (2, 2), updates at (±1, 0) from it, 2 apart: (1 + γ/√2)² + γ²/2 = 4, so γ² + √2 γ = 3
    step = (14**0.5 - 2**0.5) / 2
    assert minimise_the_maximum(NOW).flatten().tolist() == pytest.approx([2 - step / 2**0.5] * 2)


def test_min_sum_has_the_sum_of_squared_distances_of_the_farthest_update():
    # 4 from either update to the other: 2 · (1 + γ²) = 4, so γ = 1
    assert minimise_the_sum(NOW).flatten().tolist() == pytest.approx([2 - 0.5**0.5] * 2)


def test_under_is_the_mean_backwards_just_below_twice_the_median_norm():
    lie = stay_under_the_bound(NOW)  # norms √5 and √13, whose lower median is √5
    assert lie.flatten().tolist() == pytest.approx([-BOUND * (5 / 2) ** 0.5] * 2)


def test_noise_is_as_long_as_clipping_leaves_it():
    assert float(send_noise_at_the_bound(NOW).norm()) == pytest.approx(BOUND * 5**0.5)


def test_one_way_is_the_same_whenever_it_is_asked():
    again = replace(NOW, honest=2 * NOW.honest)
    assert float(push_one_way(NOW).norm()) == pytest.approx(BOUND * 5**0.5)
    assert_close(push_one_way(again), 2 * push_one_way(NOW))


def test_half_of_the_labels_are_flipped_among_themselves():
    assert flip(torch.arange(6), 6, half=True).tolist() == [2, 1, 0, 3, 4, 5]
    assert flip(torch.arange(6), 6, half=False).tolist() == [5, 4, 3, 2, 1, 0]


def test_a_copy_is_all_that_the_first_honest_client_sends():
    sent = {"params/w": torch.tensor([[1.0], [2.0], [3.0]]), "count": torch.tensor([4, 5, 6])}
    copied = copy_first(sent, torch.tensor([True, False, False]))
    assert copied["params/w"].tolist() == [[2.0], [2.0], [3.0]] and copied["count"].tolist() == [5, 5, 6]


def test_half_way_moves_by_half_of_what_lies_between_two_clusters():
    values, liar = torch.tensor([[3.0], [1.0], [3.0], [6.0], [8.0], [50.0]]), torch.arange(6) == 0
    moved = move_half_way(values, liar, torch.tensor([0, 0, 0, 1, 1, 2]))
    assert moved.tolist() == [[5.5], [1.0], [3.0], [6.0], [8.0], [50.0]], "means 2 and 7"
    assert torch.equal(move_half_way(values, liar, torch.tensor([0] * 6)), values)  # nobody of another cluster


@pytest.mark.parametrize(("shift", "planted"), [("rotation", [0.0, 90.0, 180.0]), ("label_swap", 3)])
def test_a_case_has_as_many_models_as_planted_clusters(shift, planted):
    config = configure("ifca", 0, Setup(clients=6, clusters=3, shift=shift, rounds=1))
    found = make_population(config).true_clusters
    assert found is not None and found.tolist() == [0, 0, 1, 1, 2, 2]
    assert config.methods["ifca"]["clusters"] == 3


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
    assert cell_text([Result(0.9, 0.1), Result(0.8, 0.2)], has_trigger=True) == "85.0 (trigger 15)"
    assert cell_text([Result(float("nan"))], has_trigger=False) == "no clusters"


def test_a_cell_by_cluster_has_the_liars_own_the_others_and_the_ari():
    assert by_cluster([Result(0.9, 0, 0.85, 0.95, 1), Result(0.9, 0, 0.95, 0.85, 0)]) == "90.0 / 90.0, ARI 0.50"
    assert by_cluster([Result(0.9, 0, 0.8, 1.0)]) == "80.0 / 100.0"


def test_a_cell_has_the_spread_over_seeds_where_asked():
    seeds = [Result(0.9, 0.1, 0.85, 0.5, 1), Result(0.8, 0.2, 0.75, 0.5, 1), Result(0.7, 0.3, 0.65, 0.5, 1)]
    assert cell_text(seeds, has_trigger=True, has_spread=True) == "80.0 ± 10.0 (trigger 20)"
    assert by_cluster(seeds, has_spread=True) == "75.0 ± 10.0 / 50.0 ± 0.0, ARI 1.00"
    assert cell_text(seeds[:1], has_trigger=False, has_spread=True) == "90.0"


@pytest.mark.on_demand
@pytest.mark.parametrize("method", ["fedavg", "flt", "repa", "ifca"])
def test_with_the_default_of_deployment_a_liar_costs_at_most_two_points(method):
    usual = measure(method, ATTACKS["none"], MEAN, 0)[0]
    for attack in ("huge", "scaling", "inflated"):
        assert measure(method, ATTACKS[attack], DEPLOYED, 0)[0] >= usual - 0.02, attack


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["bound_noise", "one_way"])
def test_noise_of_usual_length_keeps_no_clusters_from_being_found(attack):
    setup = Setup(rounds=4, clients=15, clusters=3)
    assert measure("flhc", ATTACKS[attack], DEPLOYED, 0, setup).ari == 1


@pytest.mark.parametrize("attack", ["bound_noise", "one_way"])
def test_noise_of_usual_length_takes_no_cluster_of_fesem(attack):
    setup = Setup(rounds=6, clients=15, clusters=3, shift="label_swap")
    assert measure("fesem", ATTACKS[attack], DEPLOYED, 0, setup).ari == 1


@pytest.mark.slow
def test_noise_of_usual_length_takes_no_cluster_of_fedgroup():
    setup = Setup(rounds=2, clients=15, clusters=3)
    assert measure("fedgroup", ATTACKS["one_way"], DEPLOYED, 0, setup).ari == 1
