"""Cases in which clients' numbers depend on samples in other ways."""

import argparse

import numpy as np
import pytest

from benchmarks.target_units import DEVELOPMENT, TEST, Case, measure


@pytest.mark.parametrize("case", {case.targets: case for case in (*DEVELOPMENT, *TEST)}.values())
def test_a_case_draws_the_same_samples_for_one_cluster_and_two_and_other_targets_for_the_second(case):
    (x, one, client), (again, two, _) = (case.draw(3, clusters) for clusters in (1, 2))
    assert np.array_equal(x, again) and np.bincount(client).min() >= 12 and client.max() + 1 == case.clients
    assert np.array_equal(one[client % 2 == 0], two[client % 2 == 0])
    assert not np.array_equal(one[client % 2 == 1], two[client % 2 == 1])


def test_a_row_has_what_was_found_in_this_unit():
    options = argparse.Namespace(seeds=[0], raw=False)
    row = measure(Case("level", 16, 60, 4), 1e-3, options)
    assert row == "| level | 16 | 60 | 4 | 0.001 | 0 of 1 | 1.00 |"
