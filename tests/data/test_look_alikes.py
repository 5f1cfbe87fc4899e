"""Look-alikes resemble their original, and change nothing about anybody else."""

import numpy as np
import pytest
import torch

from kinfed.data import LATER, Augment, ChangeSettings, Dataset, LabelSwap, RoleSettings, Rotation, build_population
from kinfed.data.partitions import IID, DisjointClasses, LabelSwapped
from kinfed.data.roles import alike_counts
from kinfed.errors import ConfigError, DataError

TWO = RoleSettings(look_alikes=2)


def dataset(per_class=40, classes=4, test_per_class=30):
    """Square images of 4x4; the first two pixels tell an image's number, so that it can be known again unshifted."""
    train, test = np.tile(np.arange(classes), per_class), np.tile(np.arange(classes), test_per_class)
    x = np.zeros((len(train) + len(test), 1, 4, 4), np.uint8)
    number = np.arange(len(x))
    x[:, 0, 0, 0], x[:, 0, 0, 1] = number % 256, number // 256
    return Dataset("tiny", x[: len(train)], train, x[len(train) :], test, classes)


def rng(seed=0):
    return np.random.default_rng(seed)


def numbers(x):
    """Which images of the dataset these are."""
    return (x[:, 0, 0, 0].long() + 256 * x[:, 0, 0, 1].long()).tolist()


def both(shift=None, partition=None, **more):
    """The same population without and with two look-alikes a client."""
    partition = partition or DisjointClasses(8, clusters=2)
    return (
        build_population(dataset(), partition, 1, shift=shift, roles=roles, **more) for roles in (RoleSettings(), TWO)
    )


@pytest.mark.parametrize("shift", [None, Augment(), Augment(pipelines=2), Rotation((0, 90)), Rotation(per="client")])
def test_the_original_clients_have_the_same_samples_as_without(shift):
    without, found = both(shift, change=ChangeSettings(2, 0.5), public_fraction=0.1)
    assert (without.clients, found.clients) == (8, 24)
    assert torch.equal(found.x[: len(without.x)], without.x) and torch.equal(found.y[: len(without.y)], without.y)
    for part in ("train", "test"):
        kept = getattr(found, part)[:8]
        assert all(torch.equal(a, b) for a, b in zip(kept, getattr(without, part), strict=True))
    for before, after in zip(without.changes, found.changes, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before.train + before.test, after.train + after.test, strict=True))
    assert torch.equal(found.true_clusters[:8], without.true_clusters) and (found.true_clusters[8:] == -1).all()


def test_they_come_after_training_in_the_order_of_their_originals():
    _, found = both()
    assert [role.look_alike_of for role in found.roles] == [None] * 8 + [c for c in range(8) for _ in range(2)]
    assert all(role.holdout and role.joins == LATER and not role.trains for role in found.roles[8:])
    assert all(len(samples) == 0 for samples in found.test[8:])


def test_their_samples_are_test_samples_of_the_dataset_each_once_with_the_labels_of_the_original():
    _, found = both(partition=DisjointClasses(8, clusters=2))
    for client in range(8, 24):
        original = found.roles[client].look_alike_of
        samples = found.train[client]
        assert samples.min() >= 160 and len(samples.unique()) == len(samples) > 8
        held, alike = (found.y[t].bincount(minlength=4) for t in (found.train[original], samples))
        assert torch.equal(held > 0, alike > 0)
        assert 0.2 * len(found.train[original]) - 1 <= len(samples) <= 1.4 * len(found.train[original]) + 1
    sizes = {len(samples) for samples in found.train[8:]}
    assert len(sizes) > 3


def test_public_test_samples_are_not_theirs():
    _, found = both(public_fraction=0.5, public_test=True)
    assert not torch.isin(torch.cat(found.train[8:]), found.public).any()


def test_a_look_alike_is_turned_as_its_original_is():
    _, found = both(Rotation((0, 90)))
    for client in range(8, 24):
        images = found.x[found.train[client]]
        upright = (
            images if found.true_clusters[found.roles[client].look_alike_of] == 0 else torch.rot90(images, -1, (2, 3))
        )
        assert min(numbers(upright)) >= 160 and len(set(numbers(upright))) == len(images)


def test_a_look_alike_has_its_originals_labels_swapped():
    _, found = both(partition=LabelSwapped(4, pairs=((0, 1), (2, 3))))
    truth = torch.from_numpy(np.concatenate([dataset().y_train, dataset().y_test]))
    for client in range(4, 12):
        cluster = int(found.true_clusters[found.roles[client].look_alike_of])
        swap = torch.tensor([[1, 0, 2, 3], [0, 1, 3, 2]][cluster])
        samples = found.train[client]
        assert torch.equal(found.y[samples], swap[truth[numbers(found.x[samples])]])


def test_a_look_alike_passes_its_originals_pipeline():
    shift = Augment(count=3)
    _, found = both(shift)
    pipelines = [found.views_of(client) for client in range(found.clients)]
    assert len(set(pipelines[:8])) == 8
    assert pipelines[8:] == [pipelines[client] for client in range(8) for _ in range(2)]
    raw = found.x[:280].flatten(1).unique(dim=0)
    seen = found.x[torch.cat(found.train[8:])].flatten(1)
    unchanged = (seen[:, None] == raw).all(2).any(1).double().mean()
    assert unchanged < 0.5  # some pipelines leave some images alone


def test_two_shifts_are_applied_one_after_the_other():
    _, found = both(Rotation((0, 90)), LabelSwapped(4, pairs=((0, 1), (2, 3))))
    kinds = [[type(view).__name__ for view in found.views_of(client)] for client in range(4)]
    assert sorted(map(tuple, kinds)) == [("Swapped",), ("Swapped",), ("Swapped", "Turned"), ("Swapped", "Turned")]


def test_a_look_alike_resembles_what_its_original_has_after_a_change():
    _, found = both(change=ChangeSettings(3, 1.0))
    (change,) = found.changes
    for client in range(8, 24):
        last = found.y[change.train[found.roles[client].look_alike_of]]
        assert set(found.y[found.train[client]].tolist()) == set(last.tolist())


def test_only_clients_that_train_have_look_alikes():
    roles = RoleSettings(0.25, 0.25, 0.25, look_alikes=1)
    found = build_population(dataset(), IID(8), 0, roles=roles)
    originals = [role.look_alike_of for role in found.roles[8:]]
    assert len(originals) == 2 and all(found.roles[client].trains for client in originals)
    assert all(found.roles[client].joins == 0 for client in originals)


def test_counts_are_scaled_and_rounded():
    held, plenty = np.array([10, 5, 0, 1]), np.array([99, 99, 99, 99])
    assert alike_counts(held, plenty, (0.8, 0.8), rng()).tolist() == [8, 4, 0, 1]
    assert alike_counts(held, plenty, (1.4, 1.4), rng()).tolist() == [14, 7, 0, 1]


def test_where_a_label_is_scarce_the_label_shares_stay():
    assert alike_counts(np.array([40, 20]), np.array([20, 99]), (1.0, 1.0), rng()).tolist() == [20, 10]
    assert alike_counts(np.array([40, 20]), np.array([99, 0]), (1.0, 1.0), rng()).tolist() == [40, 0]


def test_a_small_look_alike_is_drawn_again_where_that_can_help():
    plenty = np.array([99, 99])
    assert all(alike_counts(np.array([10, 10]), plenty, (0.1, 1.0), rng(seed)).sum() > 8 for seed in range(20))
    assert alike_counts(np.array([3, 2]), plenty, (0.2, 1.4), rng()).tolist() == [4, 3]  # the largest there is


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="look_alikes must be at least 0, got -1"):
        RoleSettings(look_alikes=-1)
    with pytest.raises(ConfigError, match="0 < low <= high"):
        RoleSettings(look_alike_scale=(1.0, 0.5))
    empty = RoleSettings(look_alikes=1, look_alike_scale=(0.001, 0.001))
    with pytest.raises(DataError, match="look-alike of client 0 would have no samples"):
        build_population(dataset(), IID(4), 0, roles=empty)


def test_a_shift_given_by_name_keeps_its_views_in_order():
    swapped = build_population(dataset(), IID(4), 0, shift=LabelSwap(((0, 1), (2, 3))), roles=TWO)
    assert [view.first for (view,) in swapped.views[:4]] == [0, 0, 2, 2]
