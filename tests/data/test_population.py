import pytest
import torch
from torch import tensor

from kinfed.data import LATER, Change, Population, Role, label_counts
from kinfed.errors import DataError


def population(**changed):
    parts = {
        "x": torch.zeros(6, 1, 2, 2, dtype=torch.uint8),
        "y": tensor([0, 1, 2, 0, 1, 2]),
        "train": (tensor([0, 1]), tensor([2])),
        "test": (tensor([3]), tensor([3, 4])),
        "classes": 3,
    }
    return Population(**(parts | changed))


def test_clients_may_share_test_samples_and_all_train_by_default():
    found = population()
    assert found.clients == 2 and found.role(1) == Role() and found.role(1).trains


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"train": (), "test": ()}, "at least one client"),
        ({"train": (tensor([0]), tensor([], dtype=torch.int64))}, "client 1 trains but has no training samples"),
        ({"train": (tensor([0, 1, 0]), tensor([2]))}, "client 0: sample 0 is twice among the training samples"),
        ({"test": (tensor([3]), tensor([4, 4]))}, "client 1: sample 4 is twice among the test samples"),
        ({"test": (tensor([3]), tensor([2, 4]))}, "client 1: sample 2 is both a training and a test sample"),
        ({"train": (tensor([0]), tensor([6]))}, "train samples of client 1 must be 0..5, got 6..6"),
        ({"test": (tensor([-1]), tensor([3]))}, "test samples of client 0 must be 0..5, got -1..-1"),
        ({"test": (tensor([3]),)}, "train has 2 clients but test has 1"),
        ({"classes": 2}, "labels must be 0..1 (-1: none), got 0..2"),
        ({"y": tensor([0, 1, 2])}, "6 samples x but 3 labels"),
        ({"y": torch.zeros(6)}, "targets are numbers [6]: `classes` must be how many a sample has, got 3"),
        ({"y": torch.zeros(6).half()}, "wanted int64"),
        ({"x": torch.full((6, 2), -1)}, "token ids must be 0, 1, 2, …, got -1 (sample 0)"),
        ({"y": tensor([-1, 1, 2, 0, 1, 2])}, "where -1 is a class, count classes from 0"),
        ({"roles": (Role(),)}, "got 1 roles for 2 clients"),
        ({"roles": (Role(), Role(look_alike_of=0))}, "client 1 is a look-alike and must be holdout and join LATER"),
        ({"roles": (Role(), Role(LATER, True, True, 2))}, "client 1 is a look-alike of 2, wanted a real client"),
        ({"roles": (Role(), Role(LATER, True, True, 1))}, "client 1 is a look-alike of 1, wanted a real client"),
        ({"views": ((),)}, "got views for 1 of 2 clients"),
        ({"held_out": tensor([6])}, "held_out must be 0..5, got 6..6"),
        ({"true_clusters": tensor([0])}, "clusters has shape [1], wanted [2]"),
        ({"public": tensor([4])}, "client 1: sample 4 is also public"),
        ({"train": (tensor([0.0]), tensor([2]))}, "wanted int64 [n]"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changed, expected):
    with pytest.raises(DataError) as caught:
        population(**changed)
    assert expected in str(caught.value)


def test_a_holdout_client_needs_no_training_samples():
    nothing = tensor([], dtype=torch.int64)
    assert not population(train=(tensor([0]), nothing), roles=(Role(), Role(holdout=True))).role(1).trains


def test_only_unlabelled_clients_train_without_labels_and_nobody_is_tested_without():
    y = tensor([0, 1, -1, 0, 1, 2])
    assert not population(y=y, roles=(Role(), Role(labelled=False))).role(1).trains
    with pytest.raises(DataError, match="client 1 has samples without a label"):
        population(y=tensor([0, 1, -1, 0, -1, 2]), roles=(Role(), Role(labelled=False)))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"round": 0}, "a round of at least 1"),
        ({"train": ()}, "1 clients, 0 train"),
        ({"clients": tensor([2])}, "clients of a change must be 0..1"),
        ({"train": (tensor([5, 5]),)}, "client 1: sample 5 is twice"),
        ({"true_clusters": tensor([0, 1])}, "clusters of a change has shape [2], wanted [1]"),
    ],
)
def test_changes_are_checked_like_clients(changed, expected):
    parts = {
        "round": 3,
        "clients": tensor([1]),
        "train": (tensor([5]),),
        "test": (tensor([0]),),
        "true_clusters": tensor([4]),
    }
    population(changes=(Change(**parts),))
    with pytest.raises(DataError) as caught:
        population(changes=(Change(**(parts | changed)),))
    assert expected in str(caught.value)


def test_label_counts_are_of_labelled_training_samples():
    y = tensor([0, 1, -1, 0, 1, 2])
    found = population(
        y=y, train=(tensor([0, 1, 4]), tensor([2])), test=(tensor([3]),) * 2, roles=(Role(), Role(0, False, False))
    )
    assert label_counts(found).tolist() == [[1, 2, 0], [0, 0, 0]]
