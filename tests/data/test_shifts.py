import numpy as np
import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from kinfed.data import (
    SHIFTS,
    Augment,
    Change,
    LabelPermutation,
    LabelRotation,
    LabelSwap,
    Patterns,
    Population,
    Rotation,
)
from kinfed.data.augmentation import POOL, draw_pipeline
from kinfed.errors import ConfigError, DataError


def population(channels=1, **more):
    """Four clients with two training samples each, all tested on samples 8 and 9."""
    x = torch.arange(10 * channels * 16).view(10, channels, 4, 4) % 256
    samples = tuple(tensor([2 * client, 2 * client + 1]) for client in range(4))
    return Population(
        x.to(torch.uint8), tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 2]), samples, (tensor([8, 9]),) * 4, 4, **more
    )


def rng(seed=0):
    return np.random.default_rng(seed)


def labels(found, client):
    return found.y[found.train[client]].tolist(), found.y[found.test[client]].tolist()


def test_a_label_swap_exchanges_two_labels_in_train_and_test_and_plants_clusters():
    found = LabelSwap(((0, 1), (2, 3)))(population(), rng())
    assert found.true_clusters.tolist() == [0, 0, 1, 1]
    assert labels(found, 0) == ([1, 0], [1, 2]) and labels(found, 1) == ([2, 3], [1, 2])
    assert labels(found, 2) == ([0, 1], [0, 3]) and labels(found, 3) == ([3, 2], [0, 3])


def test_a_label_swap_keeps_planted_clusters_and_the_pixels():
    before = population(true_clusters=tensor([1, 0, 1, 0]))
    found = LabelSwap(((0, 1), (2, 3)))(before, rng())
    assert found.true_clusters.tolist() == [1, 0, 1, 0] and labels(found, 0) == ([0, 1], [0, 3])
    for client in range(4):
        assert_close(found.x[found.train[client]], before.x[before.train[client]])


def test_copies_are_appended_once_for_each_variant_and_sample():
    found = LabelSwap(((0, 1), (2, 3)))(population(), rng())
    assert len(found.y) == 10 + 2 * (
        4 + 2
    )  # two clusters, each with four training samples and the two shared test samples
    assert found.test[0].tolist() == found.test[1].tolist() != found.test[2].tolist()
    assert found.y[:10].tolist() == population().y.tolist()


def test_samples_that_come_with_a_change_are_shifted_too():
    change = Change(2, tensor([3]), (tensor([0]),), (tensor([9]),))
    found = LabelSwap(((0, 1), (2, 3)))(population(changes=(change,)), rng())
    moved = found.changes[0]
    assert found.y[moved.train[0]].tolist() == [0] and found.y[moved.test[0]].tolist() == [3]  # cluster 1: 2 and 3


def test_as_many_pairs_as_planted_clusters_are_wanted():
    with pytest.raises(DataError, match="has 2 planted clusters, the shift is for 3"):
        LabelSwap(((0, 1), (1, 2), (2, 3)))(population(true_clusters=tensor([0, 0, 1, 1])), rng())
    with pytest.raises(DataError, match=r"exchange label 4, the data have labels 0..3"):
        LabelSwap(((0, 4),))(population(), rng())
    with pytest.raises(ConfigError, match="two different labels"):
        LabelSwap(((1, 1),))


def test_a_rotation_by_quarters_is_exact_and_no_rotation_copies_nothing():
    before = population()
    found = Rotation((0, 90))(before, rng())
    assert found.true_clusters.tolist() == [0, 0, 1, 1] and len(found.y) == 10 + 6
    assert found.train[0].tolist() == [0, 1] and found.y[found.train[3]].tolist() == [2, 3]
    assert_close(found.x[found.train[3]], torch.rot90(before.x[6:8], 1, (2, 3)))
    assert_close(found.x[found.test[3]], torch.rot90(before.x[8:], 1, (2, 3)))


def test_each_client_can_draw_an_angle_of_its_own():
    found = Rotation(per="client")(population(), rng(1))
    for client, quarters in enumerate(found.true_clusters.tolist()):
        assert_close(
            found.x[found.train[client]], torch.rot90(population().x[2 * client : 2 * client + 2], quarters, (2, 3))
        )
    assert len(set(found.true_clusters.tolist())) > 1


def test_an_odd_angle_keeps_the_shape_and_blackens_the_corners():
    found = Rotation((45,))(population(), rng())
    turned = found.x[found.train[3]]
    assert turned.shape == (2, 1, 4, 4) and turned.dtype == torch.uint8 and turned[:, 0, 0, 0].max() < 60


def test_an_augmentation_gives_each_client_its_own_pipeline_and_the_same_seed_the_same_bits():
    before = population(3)
    first, again, other = (Augment()(before, rng(seed)) for seed in (5, 5, 6))
    assert first.true_clusters is None and len(first.y) == 10 + 4 * 4 and first.x.dtype == torch.uint8
    assert torch.equal(first.x, again.x) and not torch.equal(first.x, other.x)
    tests = [first.x[samples] for samples in first.test]
    assert not all(torch.equal(tests[0], seen) for seen in tests)  # the same samples look different
    assert [labels(first, client) for client in range(4)] == [labels(before, client) for client in range(4)]


def test_pipelines_can_belong_to_planted_clusters():
    found = Augment(pipelines=2)(population(), rng())
    assert found.true_clusters.tolist() == [0, 0, 1, 1] and torch.equal(found.test[0], found.test[1])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted(POOL))
def test_every_operation_works_on_gray_and_colour_and_tiny_images(name, channels):
    x = torch.from_numpy(rng().uniform(0, 255, (5, channels, 8, 6))).float()
    done = POOL[name](rng(1))(x.clone(), rng(2))
    assert done.shape == x.shape and done.isfinite().all()
    assert name == "grayscale" or not torch.equal(done, x)


def test_an_empty_pipeline_only_mirrors_some_images():
    x = torch.arange(16, dtype=torch.uint8).view(8, 1, 1, 2)
    done = draw_pipeline(0, 1, rng())(x, rng())
    mirrored = [not torch.equal(a, b) for a, b in zip(x, done, strict=True)]
    assert 0 < sum(mirrored) < 8
    assert all(torch.equal(done[i], x[i].flip(2) if mirrored[i] else x[i]) for i in range(8))


def test_gray_images_have_no_grayscale_in_their_pool():
    draw_pipeline(8, 3, rng())
    with pytest.raises(ConfigError, match=r"count must be 0..7 operations, got 8"):
        draw_pipeline(8, 1, rng())


@pytest.mark.parametrize("shift", [Rotation(), Augment(), Patterns(), LabelRotation()])
def test_shifts_of_pixels_need_images(shift):
    features = Population(torch.zeros(2, 5), tensor([0, 1]), (tensor([0]),), (tensor([1]),), 2)
    with pytest.raises(DataError, match="needs uint8 images"):
        shift(features, rng())


def test_shifts_have_names():
    plain = {"label_swap", "rotation", "augment"}
    assert set(SHIFTS) == {*plain, "patterns", "label_permutation", "label_rotation"}


def test_a_client_draws_one_angle_and_one_colour_for_all_its_images():
    before, found = population(), Patterns(2, 3)(population(), rng(1))
    drawn = np.random.default_rng(1).integers(6, size=4)  # angle 0: red, blue, green; angle 180: red, blue, green
    assert found.x.shape[1] == 3 and found.y[found.train[0]].tolist() == [0, 1]
    for client, pattern in enumerate(drawn):
        filled, seen = (0, 2, 1)[pattern % 3], before.x[before.train[client]]
        expected = torch.rot90(seen, 2 * int(pattern // 3), (2, 3)).repeat(1, 3, 1, 1)
        expected[:, filled] = 255
        assert_close(found.x[found.train[client]], expected)
    assert [drawn[a] == drawn[b] for a in range(4) for b in range(4)] == [
        bool(found.true_clusters[a] == found.true_clusters[b]) for a in range(4) for b in range(4)
    ]


def test_patterns_without_colours_keep_the_channels_and_two_colours_are_red_and_blue():
    assert Patterns(4, 1)(population(), rng()).x.shape[1] == 1
    found = Patterns(1, 2)(population(3), rng())
    assert {tuple((found.x[found.train[c]] == 255).all((0, 2, 3)).tolist()) for c in range(4)} <= {
        (True, False, False),
        (False, False, True),
    }


def test_clients_permute_the_same_labels_each_in_its_own_order():
    before, found = population(), LabelPermutation(3)(population(), rng(5))
    again = np.random.default_rng(5)
    chosen = again.choice(4, 3, replace=False)
    for client in range(4):
        names = dict(zip(chosen.tolist(), again.permutation(chosen).tolist(), strict=True))
        for part in ("train", "test"):
            old, new = (getattr(p, part)[client] for p in (before, found))
            assert found.y[new].tolist() == [names.get(y, y) for y in before.y[old].tolist()]
            assert_close(found.x[new], before.x[old])


def test_permuting_one_label_changes_nothing_and_leaves_one_cluster():
    found = LabelPermutation(1)(population(), rng())
    assert labels(found, 1) == labels(population(), 1) and found.true_clusters.tolist() == [0, 0, 0, 0]


def test_clients_turn_the_images_of_the_same_labels_each_by_its_own_angles():
    before, found = population(), LabelRotation(2, (0, 90))(population(), rng(3))
    again = np.random.default_rng(3)
    chosen = again.choice(4, 2, replace=False).tolist()
    for client in range(4):
        quarters = dict(zip(chosen, (again.choice((0, 90), 2) // 90).tolist(), strict=True))
        old, new = before.train[client], found.train[client]
        for was, now in zip(old.tolist(), new.tolist(), strict=True):
            assert_close(found.x[now], torch.rot90(before.x[was], quarters.get(int(before.y[was]), 0), (1, 2)))
            assert found.y[now] == before.y[was]


@pytest.mark.parametrize("shift", [LabelPermutation(5), LabelRotation(5)])
def test_more_labels_than_the_data_have_are_refused(shift):
    with pytest.raises(DataError, match="is for 5 labels, the data have 4 labels"):
        shift(population(), rng())
