from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from kinfed.errors import ConfigError
from kinfed.relatedness import DISTANCES, set_distances

POINTS = 3 * torch.randn(6, 4, 2, generator=torch.Generator().manual_seed(0))
EVEN = torch.full((6, 4), 0.25)


def distances(kind: str, points=POINTS, shares=EVEN) -> torch.Tensor:
    return set_distances(kind, points, shares, points, shares)


@pytest.mark.parametrize("kind", DISTANCES)
def test_it_is_symmetric_zero_for_equal_sets_and_blind_to_order(kind):
    found = distances(kind)
    rounding = 0.01 if kind == "transport" else 0  # Sinkhorn stops somewhat short of the optimum
    torch.testing.assert_close(found, found.T, atol=1e-4, rtol=rounding)
    torch.testing.assert_close(found.diagonal(), torch.zeros(6), atol=1e-3, rtol=0)
    shuffled = POINTS[:, [2, 0, 3, 1]]
    across = set_distances(kind, POINTS, EVEN, shuffled, EVEN)
    torch.testing.assert_close(across, found, atol=1e-4, rtol=rounding)


@pytest.mark.parametrize("kind", DISTANCES)
def test_one_point_each_is_the_plain_distance(kind):
    points = torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]]])
    assert distances(kind, points, torch.ones(2, 1))[0, 1] == pytest.approx(5.0)


def brute_force(a: torch.Tensor, b: torch.Tensor) -> float:
    small, large = (a, b) if len(a) <= len(b) else (b, a)
    ways = permutations(range(len(large)), len(small))
    return min(float((small - large[list(way)]).square().sum()) for way in ways) ** 0.5 / len(small)


def test_matching_equals_all_permutations_also_for_unequal_sizes():
    shares = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).float()
    found = distances("matching", POINTS, shares)
    for i in range(6):
        for j in range(6):
            there = brute_force(POINTS[i][shares[i] > 0], POINTS[j][shares[j] > 0])
            assert found[i, j] == pytest.approx(there, abs=1e-4), (i, j)


def test_the_nearest_pair_is_at_most_root_k_times_the_matching():
    assert (distances("min") <= 2 * distances("matching") + 1e-5).all()


def exact_transport(a, b, p, q) -> float:
    cost = torch.cdist(a, b).numpy().ravel()
    k = len(p)
    rows = [np.kron(np.eye(k)[i], np.ones(k)) for i in range(k)] + [np.kron(np.ones(k), np.eye(k)[j]) for j in range(k)]
    return float(linprog(cost, A_eq=np.array(rows)[:-1], b_eq=np.concatenate([p, q])[:-1]).fun)


def test_transport_is_close_to_the_exact_solution():
    shares = torch.softmax(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), 1).double()
    found = distances("transport", POINTS, shares)
    for i, j in ((0, 1), (2, 5), (3, 4)):
        assert found[i, j] == pytest.approx(exact_transport(POINTS[i], POINTS[j], shares[i], shares[j]), rel=0.03)


def test_transport_does_not_care_how_often_a_point_is_split():
    whole = torch.tensor([[[0.0, 0.0], [9.0, 0.0], [9.0, 0.0]]])
    split = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [9.0, 0.0]]])
    same = set_distances(
        "transport", whole, torch.tensor([[0.5, 0.25, 0.25]]), split, torch.tensor([[0.25, 0.25, 0.5]])
    )
    assert float(same) < 0.05
    assert float(set_distances("matching", whole, torch.ones(1, 3), split, torch.ones(1, 3))) == pytest.approx(3.0)


def test_matching_of_many_points_is_refused():
    with pytest.raises(ConfigError, match="up to 6"):
        distances("matching", torch.zeros(2, 7, 2), torch.ones(2, 7))
