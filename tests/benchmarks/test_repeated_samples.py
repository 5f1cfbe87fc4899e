"""Copies of clients' samples, and how they are counted."""

import numpy as np
import pytest
import torch

from benchmarks.repeated_samples import COPIES, DEVELOPMENT, TEST, copy_samples
from tests.problems import tiny_population


@pytest.mark.parametrize(
    ("how", "sizes"), [("none", [4, 9]), ("twice", [8, 18]), ("five", [20, 45]), ("clients", [4, 18])]
)
def test_each_sample_is_there_so_often(how, sizes):
    plain = tiny_population((4, 9))
    copied = copy_samples(plain, COPIES[how], 0)
    assert [len(own) for own in copied.train] == sizes and copied.test == plain.test
    for one, other in zip(plain.train, copied.train, strict=True):
        assert torch.equal(torch.unique(plain.x[one], dim=0), torch.unique(copied.x[other], dim=0))


def test_labels_are_balanced_by_copies():
    y = torch.tensor([0, 0, 0, 1, 2, 2])
    copies = COPIES["balanced"](0, y, np.random.default_rng(0))
    assert copies.min() == 1 and np.bincount(y, copies).tolist() == [3, 3, 3]


def test_every_case_has_ways_to_copy():
    assert all(set(case.copies) <= set(COPIES) for case in (*DEVELOPMENT.values(), *TEST.values()))
