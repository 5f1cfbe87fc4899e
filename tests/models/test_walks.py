import torch

from kinfed.models import Feed
from kinfed.models.on_gpu import _batches
from kinfed.models.walks import Batches

FEED = Feed(
    torch.zeros(9, 4),
    torch.tensor([0, 1, 2, 0, -1, 2, 0, 1, 2]),
    pick=torch.arange(12).view(1, 3, 4).remainder(9),
    mask=torch.tensor([[[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]], dtype=torch.bool),
)


def test_batches_by_step():
    batches = _batches(FEED, torch.tensor(0.5), inner=0.0)
    assert batches.pick.tolist() == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 0, 1, 2]]]
    assert batches.y.tolist() == [[[0, 1, 2, 0]], [[0, 2, 0, 1]], [[2, 0, 1, 2]]]  # the unknown label is any
    assert batches.share.tolist() == [[[0.25] * 4], [[0, 0.5, 0.5, 0]], [[0] * 4]]  # and does not count
    assert batches.stride.tolist() == [[0.5], [0.5], [0]]


def test_with_an_inner_rate_halves_are_steps():
    batches = _batches(FEED, torch.tensor(0.5), inner=0.25)
    assert batches.pick.tolist() == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[8, 0]], [[1, 2]]]
    assert batches.share.tolist() == [[[0.5, 0.5]], [[0.5, 0.5]], [[0, 1]], [[1, 0]], [[0, 0]], [[0, 0]]]
    assert batches.stride.flatten().tolist() == [0.25, 0.5, 0.25, 0.5, 0, 0]


def test_steps_that_fill_up_move_nothing():
    batches = _batches(FEED, torch.tensor(0.5), inner=0.0)
    filled = batches.filled(2)
    assert [len(part.stride) for part in filled.cut(2)] == [2, 2]
    assert filled.stride.flatten().tolist() == [0.5, 0.5, 0, 0] and not filled.share[3].any()
    assert all(torch.equal(a, b) for a, b in zip(batches, Batches(*(t[:3] for t in filled)), strict=True))
    assert filled.filled(2).stride.shape == filled.stride.shape
