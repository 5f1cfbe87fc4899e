from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfed.data import PARTITIONS, Labels, Promise, Split, check, load
from kinfed.data.partitions import (
    IID,
    Dirichlet,
    DisjointClasses,
    FavouredLabels,
    LabelSkew,
    LabelSwapped,
    Shards,
    SharedClass,
    Structured,
    Writers,
)
from kinfed.data.partitions.label_skew import count_in_random_order, cut, favourites
from kinfed.data.partitions.planted_clusters import skew_sizes
from kinfed.data.partitions.split import IgnoresLabels, draw_stratified, draw_systematic
from kinfed.errors import ConfigError, DataError, KinfedError
from kinfed.registry import first_lines


def labels(per_class=20, classes=10, test_per_class=5):
    train, test = np.repeat(np.arange(classes), per_class), np.repeat(np.arange(classes), test_per_class)
    shuffle = np.random.default_rng(7).permutation
    return Labels(shuffle(train), shuffle(test), classes)


def draw(partition, data, seed=0):
    split = partition(data, np.random.default_rng(seed))
    check(split, data, partition.promise)
    return split


def held(split, data):
    return [sorted(set(data.train[samples].tolist())) for samples in split.train]


def labels_tested(split, data):
    return [sorted(set(data.test[samples].tolist())) for samples in split.test]


def sizes(split):
    return [len(samples) for samples in split.train]


def test_ties_go_to_random_labels_and_no_other_draw_moves():
    y, clear = np.repeat(np.arange(4), 5), np.repeat(np.arange(3), [10, 4, 6])  # 0.5 of each label is a tie
    tied = [np.bincount(y[draw_stratified(y, 2, np.random.default_rng(seed))], minlength=4) for seed in range(40)]
    assert all(sorted(counts) == [0, 0, 1, 1] for counts in tied) and np.sum(tied, 0).min() >= 10
    rngs = np.random.default_rng(0), np.random.default_rng(0)
    drawn = [draw_stratified(clear, 10, rng, low_first) for rng, low_first in zip(rngs, (False, True), strict=True)]
    assert drawn[0].tolist() == drawn[1].tolist() and rngs[0].random() == rngs[1].random()
    lowest = [np.bincount(y[draw_stratified(y, 6, np.random.default_rng(seed), low_first=True)]) for seed in range(5)]
    assert [counts.tolist() for counts in lowest] == [[2, 2, 1, 1]] * 5
    few = [
        np.bincount(y[draw_stratified(y, 2, np.random.default_rng(seed), low_first=True)], minlength=4)
        for seed in range(40)
    ]
    assert np.sum(few, 0).min() >= 10, "with fewer samples than labels the lowest would be all there are"


def test_systematic_draws_take_every_sample_alike_and_of_each_value_its_share():
    values = np.array([3, 1, 1, 2, 9, 9, 9, 4, 5, 6])
    drawn = [draw_systematic(values, 4, np.random.default_rng(seed)) for seed in range(500)]
    assert {len(set(own.tolist())) for own in drawn} == {4}
    assert np.bincount(np.concatenate(drawn)) / 500 == pytest.approx([0.4] * 10, abs=0.08)
    assert {int((values[own] == 9).sum()) for own in drawn} == {1, 2} and {
        int((values[own] < 3).sum()) for own in drawn
    } == {1, 2}
    assert not len(draw_systematic(values, 0, np.random.default_rng(0)))
    assert draw_systematic(values, 10, np.random.default_rng(0)).tolist() == list(range(10))


def test_a_split_may_have_lists_and_nothing_but_whole_numbers():
    split = Split([[0, 1], [2], []], [[0], [1], range(2)], [0, 1, 1])
    assert [own.dtype for own in (*split.train, *split.test, split.true_clusters)] == [np.int64] * 7
    check(split, labels(), Promise(minimum=0))
    own = np.array([1, 2])
    assert Split([own], [own]).train[0] is own, "lists that clients share are checked once"
    for wrong, got in ([0.5], r"float64 \[1\]"), ([True], r"bool \[1\]"), ([[1]], r"int64 \[1, 1\]"):
        with pytest.raises(DataError, match=f"train samples are {got}, wanted whole numbers"):
            Split([wrong], [[0]])


# P1


def test_iid_deals_every_sample_evenly_in_train_and_test():
    split = draw(IID(7), labels())
    assert sorted(sizes(split)) == [28, 28, 28, 29, 29, 29, 29]
    assert sorted(np.concatenate(split.test).tolist()) == list(range(50))


# P2


def test_shards_are_two_runs_of_the_sorted_samples():
    data = labels()  # 20 shards of 10 samples: two in each class, none straddles
    split = draw(Shards(10), data)
    assert sizes(split) == [20] * 10 and all(len(own) <= 2 for own in held(split, data))


def test_shards_are_tested_on_the_labels_they_train_on_in_equal_shares():
    data = labels(test_per_class=50)
    split = draw(Shards(10, test_samples=10), data)
    for train, test in zip(split.train, split.test, strict=True):
        half = np.bincount(data.train[train], minlength=10) // 2  # 20 training samples, 10 test samples
        np.testing.assert_array_equal(np.bincount(data.test[test], minlength=10), half)


@pytest.mark.parametrize("seed", range(5))
def test_exact_two_classes_gives_everyone_exactly_two(seed):
    data = Labels(np.repeat([0, 1, 2, 3], [37, 11, 60, 12]), np.repeat(np.arange(4), 5), 4)
    split = draw(Shards(6, exact_two_classes=True), data, seed)  # label 2 deserves 6 of 12 shards: as many as clients
    assert all(len(own) == 2 for own in held(split, data))


def test_exact_two_classes_is_refused_where_one_label_has_most_samples():
    data = Labels(np.repeat([0, 1], [90, 10]), np.array([0, 1]), 2)
    with pytest.raises(DataError, match=r"label 0 fills .* more than there are clients"):
        draw(Shards(5, exact_two_classes=True), data)


def test_exact_two_classes_needs_two_shards_a_client():
    with pytest.raises(ConfigError, match="shards_per_client = 2, got 3"):
        Shards(5, 3, exact_two_classes=True)


# P3


def test_disjoint_classes_give_each_cluster_labels_of_its_own_in_consecutive_blocks():
    data = labels()
    split = draw(DisjointClasses(10, clusters=5), data)
    assert split.true_clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    own = held(split, data)
    assert own[0] == own[1] and sorted(chain.from_iterable(own[::2])) == list(range(10))
    first = own[0][0]
    samples = np.flatnonzero(data.train == first)
    assert set(samples[:10]) <= set(split.train[0]) and set(samples[10:]) <= set(split.train[1])  # floor(20 / 2) each


def test_disjoint_classes_test_on_all_samples_of_the_clusters_labels():
    data = labels()
    split = draw(DisjointClasses(10), data)
    assert labels_tested(split, data) == held(split, data) and all(len(samples) == 10 for samples in split.test)


def test_a_small_class_gives_smaller_blocks_and_repeats_no_sample():
    data = Labels(np.repeat([0, 1], [20, 7]), np.array([0, 1]), 2)
    split = draw(DisjointClasses(3, clusters=1), data)
    assert [np.bincount(data.train[samples]).tolist() for samples in split.train] == [[6, 2]] * 3


def test_samples_per_class_is_an_upper_limit():
    assert set(sizes(draw(DisjointClasses(10, samples_per_class=3), labels()))) == {6}


# P4


def test_shared_class_is_a_ring_where_neighbours_share_one_label_and_its_samples():
    data = labels(per_class=60)
    split = draw(SharedClass(10), data)  # n = 60, 20 samples of each of three labels
    assert sizes(split) == [60] * 10
    rings = [set(own) for own in held(split, data)[::2]]
    for cluster in range(5):
        assert len(rings[cluster] & rings[(cluster + 1) % 5]) == 1 and not rings[cluster] & rings[(cluster + 2) % 5]
    for client in (0, 1):  # rank 0 and 1 of cluster 0, against the same ranks of cluster 1
        assert len(set(split.train[client]) & set(split.train[client + 2])) == 20
    assert labels_tested(split, data) == held(split, data)


def test_the_random_sampler_takes_the_same_number_whatever_the_clients():
    data = labels(per_class=60)
    for clients in (5, 50):
        split = draw(SharedClass(clients, sampling="random", samples_per_class=25), data)
        assert set(sizes(split)) == {75} and all(len(own) == 3 for own in held(split, data))


def test_table_v_draws_750_samples_of_cifar():
    assert set(sizes(draw(SharedClass(5, sampling="random"), labels(per_class=300)))) == {750}


# P5


def test_quantity_skew_has_the_published_sizes():
    for total, clients, low, high, median, first in (
        (12_000, 240, 26, 259, 29, 124),
        (12_000, 60, 101, 1256, 106.5, 128),
    ):
        found = skew_sizes(total, clients)
        assert (found.sum(), found.min(), found[1:].max(), np.median(found), found[0]) == (
            total,
            low,
            high,
            median,
            first,
        )
    last = skew_sizes(4800, 240)  # the last cluster of M=2400
    assert (last.sum(), last.min(), last[-1], last[0]) == (4800, 11, 80, 105)
    assert (skew_sizes(4800, 60).min(), skew_sizes(4800, 60).max()) == (41, 429)


def test_structured_gives_the_last_cluster_the_labels_left():
    data = labels(classes=7, per_class=30)
    split = draw(Structured(6, clusters=3, labels_per_cluster=3), data)
    assert labels_tested(split, data) == [[0, 1, 2]] * 2 + [[3, 4, 5]] * 2 + [[6]] * 2
    assert sum(sizes(split)) == 210 and sum(sizes(split)[4:]) == 30


def test_structured_can_balance_labels_and_test_the_last_cluster_on_label_zero():
    y = np.repeat(np.arange(8), [30, 12, 20, 30, 18, 30, 25, 30])
    data = Labels(y, y, 8)
    split = draw(Structured(6, clusters=3, labels_per_cluster=3, balanced=True, pads_tests=True), data)
    trained = np.bincount(y[np.concatenate(split.train)], minlength=8)
    assert trained.tolist() == [12] * 8  # those of the rarest
    tested = [np.bincount(y[test], minlength=8).tolist() for test in split.test]
    assert tested[0] == [12, 12, 12, 0, 0, 0, 0, 0] and tested[-1] == [12, 0, 0, 0, 0, 0, 12, 12]
    plain = draw(Structured(6, clusters=3, labels_per_cluster=3), data)
    assert np.bincount(y[plain.test[-1]], minlength=8)[0] == 0


def test_structured_emnist_is_600_clients_in_10_clusters(real_root):
    if not (real_root / "emnist47.npz").exists():
        pytest.skip(f"no emnist47.npz in {real_root}")
    data = load("emnist47", real_root)
    split = draw(Structured(600), Labels(data.y_train, data.y_test, 47))
    assert sum(sizes(split)) == len(data.y_train) and np.bincount(split.true_clusters).tolist() == [60] * 10


# P6


def test_label_swap_is_iid_with_one_pair_for_each_cluster():
    split = draw(LabelSwapped(8), labels())
    assert split.true_clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and set(sizes(split)) == {25}
    assert split.swaps == ((0, 1), (2, 3), (4, 5), (6, 7)) and sum(map(len, split.test)) == 50


def test_pairs_that_touch_a_label_twice_are_refused():
    with pytest.raises(ConfigError, match="occur once each"):
        LabelSwapped(8, pairs=((0, 1), (1, 2)))


# P7


def writers():
    return Labels(
        np.zeros(9, np.int64),
        np.zeros(4, np.int64),
        1,
        np.array([5, 5, 5, 2, 2, 9, 9, 9, 7]),
        np.array([5, 2, 9, 9]),
    )


def test_writers_become_clients_where_they_have_train_and_test_samples():
    split = draw(Writers(), writers())
    assert [samples.tolist() for samples in split.train] == [
        [3, 4],
        [0, 1, 2],
        [5, 6, 7],
    ]  # writers 2, 5, 9; 7 is never tested
    assert [samples.tolist() for samples in split.test] == [[1], [0], [2, 3]]


def test_writers_can_be_limited_by_number_and_by_samples():
    assert len(draw(Writers(max_writers=2), writers()).train) == 2
    assert [len(samples) for samples in draw(Writers(min_samples=5), writers()).train] == [3]  # writer 9: three and two
    with pytest.raises(DataError, match="lower min_samples"):
        draw(Writers(min_samples=6), writers())
    with pytest.raises(DataError, match="the writer of each sample"):
        draw(Writers(), labels())


def test_writers_without_a_common_number_are_named():
    apart = replace(writers(), writer_test=np.array([11, 12, 13, 14]))
    with pytest.raises(DataError, match=r"writer_train has 2, 5, 7, …, writer_test has 11, 12, 13, …; .+ same number"):
        draw(Writers(), apart)


def test_random_writers_are_a_draw_of_the_seed():
    picks = {
        tuple(len(samples) for samples in draw(Writers(1, random_writers=True), writers(), seed).train)
        for seed in range(9)
    }
    assert picks == {(2,), (3,)}


# P8


def test_label_skew_gives_client_i_label_i_and_exactly_s_labels():
    data = labels(per_class=60)
    split = draw(LabelSkew(30, share=0.3), data)
    own = held(split, data)
    assert all(len(found) == 3 and client % 10 in found for client, found in enumerate(own))
    assert sum(sizes(split)) == 600 and labels_tested(split, data) == own


def test_label_skew_leaves_labels_to_nobody_unless_asked():
    data = labels(per_class=60)
    seen = {len(set(chain.from_iterable(held(draw(LabelSkew(5), data, seed), data)))) for seed in range(5)}
    assert min(seen) < 10
    assert len(set(chain.from_iterable(held(draw(LabelSkew(7, every_label=True), data), data)))) == 10
    with pytest.raises(DataError, match="cannot hold 10 labels"):
        draw(LabelSkew(4, every_label=True), data)


# P9


def test_dirichlet_deals_every_sample_and_keeps_the_minimum():
    data = labels(per_class=100)
    split = draw(Dirichlet(10, beta=0.5), data)
    assert sum(sizes(split)) == 1000 and min(sizes(split)) >= 10
    assert labels_tested(split, data) == held(split, data)


def test_dirichlet_with_much_beta_is_nearly_even_and_with_little_is_skewed():
    data = labels(per_class=100)
    even, skewed = (held(draw(Dirichlet(10, beta, minimum=1), data), data) for beta in (1000.0, 0.05))
    assert all(len(own) == 10 for own in even) and np.mean([len(own) for own in skewed]) < 5


def test_dirichlet_gives_full_clients_no_more():
    weight = np.array([0.5, 0.3, 0.2])
    assert cut(10, weight, np.array([False, False, False])).tolist() == [5, 3, 2]
    assert cut(10, weight, np.array([True, False, False])).tolist() == [0, 6, 4]
    assert cut(4, np.array([1.0, 0, 0]), np.array([True, False, False])).tolist() == [0, 2, 2]


def test_an_unbalanced_dirichlet_fills_clients_beyond_their_fair_share():
    data = labels(per_class=100)
    most = [max(sizes(draw(Dirichlet(10, 0.1, 1, balanced), data))) for balanced in (True, False)]
    assert most[0] < 200 < most[1]  # a full client has fewer than 100 before its last label, which adds 100 at most


def test_dirichlet_gives_up_with_a_reason():
    with pytest.raises(DataError, match=r"in 3 draws .* fewer than 10 of 200 samples"):
        draw(Dirichlet(20, tries=3), labels())


# P10


def counted(samples, of):
    return np.bincount(of[samples], minlength=10)


def test_favoured_labels_have_six_samples_for_each_sample_of_another():
    data = labels(per_class=25, test_per_class=50)
    split = draw(
        FavouredLabels(10, test_samples=25), data
    )  # 3 of 10 clients favour a label: 3 · 6 + 7 · 1 = 25 samples
    for train, test in zip(split.train, split.test, strict=True):
        assert sorted(counted(train, data.train)) == [1] * 7 + [6] * 3
        np.testing.assert_array_equal(counted(test, data.test), counted(train, data.train))


def test_every_sample_is_dealt_out_and_every_label_favoured_equally_often():
    data = labels(per_class=60)
    split = draw(FavouredLabels(20, favoured=3, weight=4), data)  # 20 · 3 / 10 = 6 clients favour a label
    tables = np.array([counted(samples, data.train) for samples in split.train])
    assert tables.sum() == 600 and max(sizes(split)) - min(sizes(split)) <= 10  # a label rounds by one sample at most
    assert ((tables > 4).sum(0) == 6).all()  # 60 · 4 / (6 · 4 + 14) = 6.3 against 1.6 samples


def test_labels_are_favoured_by_as_many_clients_or_one_more():
    chosen = favourites(7, 2, 5, np.random.default_rng(0))  # 14 wishes for 5 labels
    assert chosen.sum(1).tolist() == [2] * 7 and sorted(chosen.sum(0)) == [2, 3, 3, 3, 3]
    assert len({tuple(own) for own in favourites(40, 2, 5, np.random.default_rng(1)).tolist()}) > 5


def test_a_weight_of_one_favours_nothing():
    data = labels(per_class=20)
    split = draw(FavouredLabels(10, weight=1), data)
    assert all((counted(samples, data.train) == 2).all() for samples in split.train)


def test_samples_that_rounding_leaves_go_to_clients_at_random():
    rng = np.random.default_rng(0)
    dealt = np.array([count_in_random_order(3, np.ones(6), rng) for _ in range(60)])
    assert (dealt.sum(1) == 3).all() and (dealt.sum(0) > 10).all()


# all


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (IID(201), "needs at least 201 samples, got 200"),
        (IID(51), "50 test samples cannot be split over 51 clients"),
        (Shards(101), "needs at least 202 samples, got 200"),
        (DisjointClasses(10, 5, 3), "need 15 labels, the data have 10"),
        (DisjointClasses(200, 5), "has 20 samples for the 40 clients of cluster"),
        (DisjointClasses(3, 5), "5 clusters need at least as many clients, got 3; use fewer in partition.clusters"),
        (SharedClass(10, 6), "need 12 labels, the data have 10"),
        (SharedClass(10, sampling="random"), "has 20 samples, samples_per_class wants 250"),
        (Structured(30, 3, 5), "3 clusters of 5 labels need at least 11, the data have 10"),
        (Structured(400, 2, 5), "needs at least 200 samples, got 100"),
        (LabelSwapped(8, ((0, 1), (2, 10))), "exchange label 10, the data have labels 0..9"),
        (LabelSkew(150), "samples for"),
        (Dirichlet(21), "needs at least 210 samples, got 200"),
        (FavouredLabels(201), "needs at least 201 samples, got 200"),
        (FavouredLabels(5, 10), "10 of 10 labels cannot be favoured"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(partition, expected):
    with pytest.raises(KinfedError) as caught:
        draw(partition, labels())
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: IID(0),
        lambda: LabelSkew(share=0),
        lambda: LabelSkew(share=1.5),
        lambda: Dirichlet(beta=0),
        lambda: FavouredLabels(favoured=0),
        lambda: FavouredLabels(weight=0.5),
        lambda: FavouredLabels(weight=float("nan")),
    ],
)
def test_settings_are_checked_when_they_are_made(make):
    with pytest.raises(ConfigError):
        make()


def test_pathological_clients_take_labels_in_order_and_parts_of_random_size():
    data, partition = labels(per_class=60), PARTITIONS["pathological"]
    split = draw(partition(clients=4, labels_per_client=5, least=40), data, 0)
    # 10 labels, each at ⌈4/10 · 5⌉ = 2 clients: 0..4 at the first two, which then have theirs, 5..9 at the others
    held = [sorted(set(data.train[part].tolist())) for part in split.train]
    assert held == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [5, 6, 7, 8, 9]]
    assert sum(map(len, split.train)) == len(data.train)
    first = np.bincount(data.train[split.train[0]])[:5]  # from max(30 / 10, 40 / 10) = 4 to below 60 / 2 = 30
    assert first.min() >= 4 and first.max() < 30 and len(set(first.tolist())) > 1
    even = draw(partition(clients=4, labels_per_client=5, balanced=True), data, 0)
    assert [len(part) for part in even.train] == [150, 150, 150, 150]


def test_pathological_clients_cannot_hold_more_labels_than_there_are():
    with pytest.raises(DataError, match="set labels_per_client lower"):
        draw(PARTITIONS["pathological"](clients=4, labels_per_client=6), labels(classes=5), 0)


def test_label_sets_leave_each_client_the_labels_of_one_set_of_its_iid_part():
    data, partition = labels(per_class=60), PARTITIONS["label_sets"](clients=8, sets=2, labels_per_set=3)
    split = draw(partition, data, 0)
    held = [frozenset(data.train[part].tolist()) for part in split.train]
    assert all(len(own) == 3 for own in held) and len(set(held)) <= 2
    assert all(set(data.test[part].tolist()) <= own for part, own in zip(split.test, held, strict=True))
    assert [held[a] == held[b] for a in range(8) for b in range(8)] == [
        split.true_clusters[a] == split.true_clusters[b] for a in range(8) for b in range(8)
    ]
    assert max(map(len, split.train)) <= np.ceil(len(data.train) / 8)  # what is left of an IID part


def test_label_sets_of_all_labels_are_iid_and_one_cluster():
    data = labels(per_class=60)
    split = draw(PARTITIONS["label_sets"](clients=4, labels_per_set=data.classes), data, 0)
    assert sum(map(len, split.train)) == len(data.train) and split.true_clusters.tolist() == [0, 0, 0, 0]
    with pytest.raises(DataError, match="labels_per_set lower"):
        draw(PARTITIONS["label_sets"](labels_per_set=data.classes + 1), data, 0)


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"writers", "natural"}))
def test_the_same_seed_gives_the_same_samples_and_another_seed_others(name):
    partition = {"structured": Structured(20, 2), "dirichlet": Dirichlet(10, 1.0, 1)}.get(name) or PARTITIONS[name](
        clients=20
    )
    data = labels(per_class=60)
    first, again, other = (draw(partition, data, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first.train + first.test, again.train + again.test, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.train, other.train, strict=True))


def test_every_partition_says_in_one_line_what_it_is():
    assert all(line.endswith(".") for line in first_lines(PARTITIONS).values())


@pytest.mark.parametrize(
    ("train", "promise", "expected"),
    [
        ([[0, 1], [1, 2]], Promise(), "at two clients"),
        ([[0], [1]], Promise(complete=True), "only 2 of 3 training samples"),
        ([[0], []], Promise(), "client 1 has 0 training samples, at least 1"),
        ([[0, 1], [2]], Promise(spread=0), "have 1 to 2 training samples"),
        ([[0, 0], [1]], Promise(), "client 0 has a train sample twice"),
        ([[3], [1]], Promise(), "client 0: train samples must be 0..2, got 3..3"),
    ],
)
def test_the_check_notices_broken_promises(train, promise, expected):
    data = Labels(np.zeros(3, np.int64), np.zeros(2, np.int64), 1)
    split = Split([np.array(samples, np.int64) for samples in train], [np.array([0]), np.array([1])])
    with pytest.raises(DataError) as caught:
        check(split, data, promise)
    assert expected in str(caught.value)


def recipes(clients, clusters, width, exact):
    return [
        IID(clients),
        Shards(clients, exact_two_classes=exact),
        DisjointClasses(clients, clusters, width),
        SharedClass(clients, clusters + 2, width + 1, "random" if exact else "blocks", 2 if exact else None),
        Structured(clients, clusters, width),
        LabelSwapped(clients, ((0, 1), (2, 3))[: 1 + exact]),
        Writers(clients, 1 + exact, exact),
        LabelSkew(clients, 0.1 + 0.2 * width, exact),
        Dirichlet(clients, 0.1 * width, minimum=clusters, balanced=exact, tries=5),
        FavouredLabels(clients, width, 1.0 + 3 * exact, clusters),
    ]


@settings(max_examples=60, deadline=None)
@given(
    samples=st.lists(st.integers(0, 6), min_size=1, max_size=80),
    clients=st.integers(1, 12),
    clusters=st.integers(1, 5),
    width=st.integers(1, 4),
    exact=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_recipe_keeps_its_promise_or_says_why_not(samples, clients, clusters, width, exact, seed):
    train = np.array(samples)
    data = Labels(train, train[::2].copy(), 7, train % 3, train[::2] % 3)
    for recipe in recipes(clients, clusters, width, exact):
        try:
            draw(recipe, data, seed)
        except KinfedError as error:
            assert len(str(error)) > 20


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_partitions_that_say_so_ignore_labels(name):
    data = labels(per_class=200, test_per_class=40)
    writer_train, writer_test = np.arange(2000) % 20, np.arange(400) % 20
    data = replace(data, writer_train=writer_train, writer_test=writer_test)
    others = replace(data, train=data.train[::-1].copy(), test=data.test[::-1].copy())
    few = {"dirichlet": Dirichlet(5), "structured": Structured(10, 5, 2)}
    partition = few.get(name) or PARTITIONS[name]()
    first, second = (partition(known, np.random.default_rng(0)) for known in (data, others))
    same = all(map(np.array_equal, first.train + first.test, second.train + second.test))
    is_swapped = name == "label_swap"  # dealt alike, but then labels are exchanged
    assert same == (isinstance(partition, IgnoresLabels) or is_swapped)
