import math

import pytest
import torch
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from kinfed.ledger import Ledger
from kinfed.metrics import (
    accuracy_of,
    adjusted_rand,
    agreement,
    converged_at,
    crossed,
    fedavg_parameters,
    flt_parameters,
    is_stuck,
    mean_accuracy,
    megabits_per_client,
    method_bytes,
    mutual_information,
    pair_quality,
    purity,
    rounds_to_target,
    share_at_target,
    standard_error,
    variance,
    worst_decile,
)

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
    means = [(1, 0.5), (2, 0.9), (3, 0.7), (4, 0.95), (5, 0.951)]
    assert rounds_to_target(means, 0.9) == 2
    assert rounds_to_target(means, 0.99) is None
    assert converged_at(means) == 4
    assert converged_at([(3, 0.4)]) == 3 and converged_at([]) is None


def test_accuracy_is_stuck_when_it_fell_and_does_not_move():
    fallen = [(1, 0.3), (2, 0.8), (3, 0.1), (4, 0.1)]
    assert is_stuck(fallen, chance=0.1) and not is_stuck(fallen[:3], chance=0.1)
    for means in ([(1, 0.8), (2, 0.5), (3, 0.5)], [(1, 0.1), (2, 0.1)], [], [*fallen, (5, 0.2)]):
        assert not is_stuck(means, chance=0.1)
    assert not is_stuck([(1, 0.12), (2, 0.0), (3, 0.0)], chance=0.1)  # it never was any good


def test_a_client_without_test_rows_has_no_accuracy():
    accuracy = accuracy_of(torch.tensor([3, 0]), torch.tensor([4, 0]))
    assert accuracy[0] == 0.75 and accuracy[1].isnan()


def test_cluster_agreement_ignores_names_and_the_unplaced():
    planted = torch.tensor([0, 0, 1, 1, 1])
    perfect = agreement(torch.tensor([7, 7, 3, 3, -1]), planted)
    assert perfect == pytest.approx({"ari": 1.0, "nmi": 1.0, "purity": 1.0, "clusters": 2.0})
    assert agreement(torch.zeros(5), planted)["ari"] == 0.0


def test_purity_by_hand():
    # group 0 holds planted 0, 0, 1 (2 right), group 1 holds 1, 1 (2 right)
    table = crossed(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1]))
    assert table.tolist() == [[2, 1], [0, 2]] and purity(table) == pytest.approx(4 / 5)


def test_adjusted_rand_and_mutual_information_by_hand():
    table = torch.tensor([[2.0, 1], [0, 2]])
    # pairs together in both 1 + 1, in ours 3 + 1, planted 1 + 3, of 10: (2 - 1.6)/(4 - 1.6)
    assert adjusted_rand(table) == pytest.approx(1 / 6)
    shared = 0.4 * math.log(0.4 / (0.6 * 0.4)) + 0.2 * math.log(0.2 / 0.36) + 0.4 * math.log(0.4 / (0.4 * 0.6))
    entropy = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))  # of both
    assert mutual_information(table) == pytest.approx(shared / entropy)


@pytest.mark.parametrize("clusters", [1, 2, 5, 40])
def test_agreement_is_that_of_scikit_learn(clusters):
    luck = torch.Generator().manual_seed(clusters)
    ours, true = torch.randint(0, clusters, (40,), generator=luck), torch.randint(0, 4, (40,), generator=luck)
    said = agreement(ours, true)
    assert said["ari"] == pytest.approx(adjusted_rand_score(true, ours), abs=1e-12)
    assert said["nmi"] == pytest.approx(normalized_mutual_info_score(true, ours), abs=1e-12)


def test_nobody_divided_is_full_agreement():
    assert agreement(torch.zeros(3), torch.zeros(3)) == {"ari": 1.0, "nmi": 1.0, "purity": 1.0, "clusters": 1.0}


def test_pair_quality_by_hand():
    related = torch.eye(4).bool()
    related[0, 1] = related[1, 0] = related[1, 2] = related[2, 1] = True
    precision, recall = pair_quality(related, torch.tensor([0, 0, 1, 1]))
    assert (precision, recall) == (0.5, 0.5)


def test_communication_of_the_papers():
    assert fedavg_parameters(20, 159_010, 100) == 636_040_000
    assert flt_parameters(100, 25_956, 5, 128, 20, 159_010, 100) == 100 * (25_956 + 640) + 636_040_000
    # FLIS: 19 rounds of LeNet-5, a tenth of 100 clients, two models each
    assert megabits_per_client(4 * fedavg_parameters(10, 62_006, 19), 100) == pytest.approx(7.54, abs=0.005)
    assert megabits_per_client(4 * fedavg_parameters(10, 6_621_540, 47), 100) == pytest.approx(1991.76, abs=0.005)


def test_evaluation_is_not_the_methods_cost():
    ledger = Ledger(2)
    who = torch.tensor([0, 1])
    ledger.count(0, "train", who, 100, who, 10)
    ledger.count(0, "evaluate", who, 100, who, 12)
    assert method_bytes(ledger) == 220
