"""Means of the last models: only of those whose successive updates undo each other."""

from itertools import pairwise

import torch

from kinfed.methods.tail_averaging import TailAverage
from kinfed.params import Stack


def models(*weights: float) -> Stack:
    column = torch.tensor(weights, dtype=torch.float)[:, None]
    return {"w": column, "statistic": 100 * column}


def follow(*rounds: Stack) -> TailAverage:
    """After these rounds, the last two of which are in the mean."""
    tail = TailAverage.none(len(rounds[0]["w"]), torch.device("cpu"))
    for t, (before, after) in enumerate(pairwise(rounds)):
        tail = tail.watch(before, after, ["w"]).add(after, t - len(rounds) + 3)
    return tail


def test_a_model_that_comes_back_is_averaged_and_one_that_goes_on_is_not():
    first, second, third, last = models(0, 0), models(1, 1), models(0, 2), models(2, 3)
    tail = follow(first, second, third, last)
    assert tail.drift.tolist() == [-3.0, 2.0], "1 · -1 + -1 · 2 and 1 · 1 + 1 · 1; statistics do not count"
    assert tail.mean["w"].flatten().tolist() == [1.0, 2.5]
    served = tail.serve(last)
    assert served["w"].flatten().tolist() == [1.0, 3.0] and served["statistic"].flatten().tolist() == [100.0, 300.0]


def test_a_round_in_which_nobody_trained_a_model_leaves_its_latest_update():
    assert follow(models(0), models(1), models(1), models(0)).drift.tolist() == [-1.0]


def test_without_two_updates_or_before_the_last_rounds_the_last_model_is_served():
    only, last = follow(models(0), models(1)), models(1)
    assert only.drift.tolist() == [0.0] and torch.equal(only.serve(last)["w"], last["w"])
    before = TailAverage.none(1, torch.device("cpu")).add(last, -1)
    assert not before.mean and before.serve(last) is last
