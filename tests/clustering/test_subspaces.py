"""Singular vectors of each label, and angles between them, by hand."""

import pytest
import torch

from kinfed.clustering.subspaces import Labelled, find_angles, find_bases


def test_bases_are_the_leading_singular_vectors_of_each_label_by_hand():
    # label 0: rows along x (squares 9 + 9) and y (1), none along z; label 1: one row, (0, 3, 4) = 5 · (0, 0.6, 0.8)
    x = torch.tensor([[3.0, 0, 0], [-3, 0, 0], [0, 1, 0], [0, 3, 4], [9, 9, 9]]).double()
    member = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]).double()  # the last is padding
    found = find_bases([Labelled(x[:2], member[:2]), Labelled(x[2:], member[2:])], 2)
    wanted = torch.zeros(3, 3, 2).double()
    wanted[0, 0, 0] = wanted[0, 1, 1] = 1
    wanted[1, :, 0] = torch.tensor([0, 0.6, 0.8])
    torch.testing.assert_close(found, wanted)


def test_bases_are_those_of_a_singular_value_decomposition():
    x = torch.rand(40, 30, generator=torch.Generator().manual_seed(0)).double()
    found = find_bases([Labelled(x, torch.ones(40, 1).double())], 3)[0]
    wanted = torch.linalg.svd(x.T, full_matrices=False).U[:, :3]
    torch.testing.assert_close((found * wanted).sum(0).abs(), torch.ones(3).double(), atol=1e-4, rtol=0)


def test_a_sample_that_is_not_finite_spoils_the_bases_of_its_client():
    x = torch.tensor([[1.0, torch.nan], [1.0, 1.0]]).double()
    assert find_bases([Labelled(x, torch.ones(2, 1).double())], 1).isnan().all()
    assert find_bases([Labelled(x, torch.tensor([[0.0], [1.0]]).double())], 1).isfinite().all()  # as padding


def basis(*degrees):
    """One label for each number: a vector at so many degrees in the plane; None: no such label."""
    of = [
        [0.0, 0.0] if d is None else [torch.cos(r), torch.sin(r)]
        for d in degrees
        for r in [torch.tensor(d or 0.0).deg2rad()]
    ]
    return torch.tensor(of)[:, :, None]


@pytest.mark.parametrize(
    "one, other, angle, wanted",
    [
        ((0.0, 40.0), (70.0, 100.0), "smallest", 30.0),  # 40° and 70°
        ((0.0, None), (180.0, None), "smallest", 0.0),  # the sign of a vector does not matter
        ((0.0, None), (180.0, None), "signed", 180.0),  # here it does
        ((0.0, 40.0), (210.0, 100.0), "signed", 60.0),  # 40° and 100°; 40° and 210° are 170° apart, not 10°
        ((0.0, None), (30.0, None), "principal", 30.0),
        ((0.0, 40.0), (70.0, 71.0), "principal", 0.0),  # both span the plane
        ((0.0, 40.0), (70.0, 100.0), "by_label", 65.0),  # (70° + 60°) / 2
        ((0.0, None), (20.0, 50.0), "by_label", 55.0),  # (20° + 90°) / 2
        ((0.0, None), (20.0, None), "by_label", 20.0),  # a label that neither has does not count
    ],
)
def test_angles_by_hand(one, other, angle, wanted):
    found = find_angles(basis(*one)[None], torch.stack([basis(*other), basis(*one)]), angle)
    torch.testing.assert_close(found, torch.tensor([[wanted, 0.0]]), atol=0.1, rtol=0)  # arccos near 1 is not exact
