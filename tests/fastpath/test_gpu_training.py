from dataclasses import replace

import pytest
import torch

from kinfed.fastpath import Schedule
from kinfed.fastpath.gpu_training import StepBatches, by_step, gather

SCHEDULE = Schedule(
    torch.zeros(9, 4),
    torch.tensor([0, 1, 2, 0, -1, 2, 0, 1, 2]),
    pick=torch.arange(12).view(1, 3, 4).remainder(9),
    mask=torch.tensor([[[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]], dtype=torch.bool),
)


def test_batches_by_step():
    batches = by_step(SCHEDULE, torch.tensor(0.5), inner_lr=0.0)
    assert batches.pick.tolist() == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 0, 1, 2]]]
    assert batches.y.tolist() == [[[0, 1, 2, 0]], [[0, 2, 0, 1]], [[2, 0, 1, 2]]]  # the unknown label is any
    assert batches.sample_weight.tolist() == [[[0.25] * 4], [[0, 0.5, 0.5, 0]], [[0] * 4]]  # and does not count
    assert batches.lr.tolist() == [[0.5], [0.5], [0]]


def test_with_an_inner_rate_halves_are_steps():
    batches = by_step(SCHEDULE, torch.tensor(0.5), inner_lr=0.25)
    assert batches.pick.tolist() == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[8, 0]], [[1, 2]]]
    assert batches.sample_weight.tolist() == [[[0.5, 0.5]], [[0.5, 0.5]], [[0, 1]], [[1, 0]], [[0, 0]], [[0, 0]]]
    assert batches.lr.flatten().tolist() == [0.25, 0.5, 0.25, 0.5, 0, 0]


def test_a_pair_without_a_second_half_moves_nothing():
    mask = torch.tensor([[[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]], dtype=torch.bool)  # the second epoch has one
    batches = by_step(replace(SCHEDULE, mask=mask), torch.tensor(0.5), inner_lr=0.25)
    assert batches.lr.flatten().tolist() == [0.25, 0.5, 0.25, 0, 0.25, 0.5]


def test_padding_steps_move_nothing():
    batches = by_step(SCHEDULE, torch.tensor(0.5), inner_lr=0.0)
    padded = batches.pad_steps(2)
    assert [len(part.lr) for part in padded.split_steps(2)] == [2, 2]
    assert padded.lr.flatten().tolist() == [0.5, 0.5, 0, 0] and not padded.sample_weight[3].any()
    assert all(torch.equal(a, b) for a, b in zip(batches, StepBatches(*(t[:3] for t in padded)), strict=True))
    assert padded.pad_steps(2).lr.shape == padded.lr.shape


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 5), (8,), ()])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
def test_samples_are_gathered_in_words_of_eight_bytes_where_they_can(shape, dtype):
    pool = torch.arange(9 * 784).remainder(251).to(dtype)[: 9 * torch.Size(shape).numel()].view(9, *shape)
    for own in (pool, pool[1:], pool.expand(2, *pool.shape).transpose(0, 1)):
        pick = torch.tensor([7, 0, 0, 3])
        assert gather(own, pick).equal(own[pick]) and gather(own, pick).dtype == dtype
