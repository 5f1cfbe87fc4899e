import numpy as np
import pytest
import torch

from kinfed.config import load_config
from kinfed.config.settings import DataSettings
from kinfed.data import LATER, Augment, ChangeSettings, Dataset, RoleSettings, build_population, label_counts, load
from kinfed.data.build import score_on_training
from kinfed.data.changes import Redraw
from kinfed.data.drift import NewClasses, RotationDrift
from kinfed.data.partitions import IID, Dirichlet, DisjointClasses, LabelSwapped, SharedClass, Structured, Writers
from kinfed.data.partitions.split import Split, hold_out_once
from kinfed.data.shifts import Rotation
from kinfed.errors import ConfigError, DataError


def dataset(per_class=20, classes=10, test_per_class=10, **more):
    train, test = np.tile(np.arange(classes), per_class), np.tile(np.arange(classes), test_per_class)
    pixels = np.arange(len(train) + len(test), dtype=np.int64)  # every image tells its number
    x = np.stack([pixels % 256, pixels // 256], 1).astype(np.uint8).reshape(-1, 1, 1, 2)
    return Dataset("tiny", x[: len(train)], train, x[len(train) :], test, classes, **more)


def everything(population):
    changes = [t for change in population.changes for t in (change.clients, *change.train, *change.test)]
    return [population.x, population.y, *population.train, *population.test, population.public, *changes]


def test_the_pool_is_the_train_samples_then_the_test_samples():
    data = dataset()
    built = build_population(data, IID(4), 0)
    assert torch.equal(built.x[:200], torch.from_numpy(data.x_train)) and built.y[200:].tolist() == data.y_test.tolist()
    assert all(samples.max() < 200 for samples in built.train) and all(samples.min() >= 200 for samples in built.test)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    def make(seed):
        roles, change = RoleSettings(0.2, 0.2, 0.2, 3), ChangeSettings(2, 0.5)
        return build_population(
            dataset(), DisjointClasses(10), seed, public_fraction=0.1, shift=Augment(1), roles=roles, change=change
        )

    first, again, other = make(1), make(1), make(2)
    assert all(torch.equal(a, b) for a, b in zip(everything(first), everything(again), strict=True))
    assert first.roles == again.roles and not torch.equal(first.public, other.public)


def test_public_samples_are_a_stratified_share_that_no_client_has():
    built = build_population(dataset(), IID(4), 0, public_fraction=0.25)
    assert built.y[built.public].bincount().tolist() == [5] * 10
    assert sorted(torch.cat([*built.train, built.public]).tolist()) == list(range(200))
    assert sum(len(samples) for samples in built.test) == 100


def test_public_samples_can_be_taken_from_the_test_samples_too():
    built = build_population(dataset(), IID(4), 0, public_fraction=0.25, public_test=True)
    assert sorted([*built.held_out.tolist(), *built.public[built.public >= 200].tolist()]) == list(range(200, 300))
    assert (built.public >= 200).sum() == 25 and (built.public < 200).sum() == 50
    assert sorted(torch.cat([*built.train, *built.test, built.public]).tolist()) == list(range(300))


def test_public_samples_can_be_test_samples_alone():
    built = build_population(dataset(), IID(4), 0, public_fraction=0.25, public_test=True, public_train=False)
    assert len(built.public) == 25 and built.public.min() >= 200
    assert sorted(torch.cat(built.train).tolist()) == list(range(200))
    with pytest.raises(ConfigError, match="set public_test to true"):
        DataSettings(public=0.2, public_train=False)


def test_writers_follow_their_samples_when_public_ones_leave():
    writers = {"writer_train": np.repeat(np.arange(4), 50), "writer_test": np.repeat(np.arange(4), 25)}
    built = build_population(dataset(**writers), Writers(), 0, public_fraction=0.5)
    for writer, samples in enumerate(built.train):
        assert set((samples // 50).tolist()) == {writer}


def test_test_samples_are_capped_where_asked():
    built = build_population(dataset(), DisjointClasses(10), 0, test_samples=7)
    assert {len(samples) for samples in built.test} == {7}


def test_label_swapped_clusters_hold_swapped_labels():
    data = dataset()
    built = build_population(data, LabelSwapped(4), 0)
    assert built.true_clusters.tolist() == [0, 1, 2, 3]
    truth = np.concatenate([data.y_train, data.y_test])
    for cluster, samples in enumerate(zip(built.train, built.test, strict=True)):
        for part in samples:
            number = built.x[part].long().view(-1, 2) @ torch.tensor([1, 256])  # which image this is
            swapped = {2 * cluster: 2 * cluster + 1, 2 * cluster + 1: 2 * cluster}
            assert built.y[part].tolist() == [swapped.get(int(y), int(y)) for y in truth[number]]


def test_roles_are_spread_evenly_over_the_planted_clusters():
    built = build_population(dataset(), DisjointClasses(20), 3, roles=RoleSettings(0.25, 0.25, 0.25, 4))
    for cluster in range(5):
        mine = [built.role(client) for client in range(20) if built.true_clusters[client] == cluster]
        assert sorted((r.holdout, r.labelled, r.joins) for r in mine) == [
            (False, False, 0),
            (False, True, 0),
            (False, True, 4),
            (True, True, 0),
        ]


def test_unlabelled_clients_train_on_the_same_images_without_labels():
    plain = build_population(dataset(), IID(4), 0)
    built = build_population(dataset(), IID(4), 0, roles=RoleSettings(unlabelled=0.5))
    hidden = [client for client in range(4) if not built.role(client).labelled]
    assert len(hidden) == 2
    for client in range(4):
        assert torch.equal(built.x[built.train[client]], plain.x[plain.train[client]])
        assert (built.y[built.train[client]] == -1).all().item() == (client in hidden)
        assert torch.equal(built.test[client], plain.test[client])
    assert label_counts(built)[hidden].sum() == 0


def test_unlabelled_twins_have_the_test_samples_of_training_clients_without_their_labels():
    plain = build_population(dataset(), IID(4), 0, roles=RoleSettings(holdout=0.25))
    built = build_population(dataset(), IID(4), 0, roles=RoleSettings(holdout=0.25, unlabelled_twins=True))
    training = [client for client in range(4) if plain.role(client).trains]
    assert plain.clients == 4 and built.clients == 4 + 3
    for twin, client in enumerate(training, 4):
        assert torch.equal(built.x[built.train[twin]], plain.x[plain.test[client]])
        assert (built.y[built.train[twin]] == -1).all()
        assert torch.equal(built.test[twin], plain.test[client])
        assert built.role(twin).joins == LATER and not built.role(twin).trains
    with pytest.raises(ConfigError, match="samples stay the same"):
        build_population(dataset(), IID(4), 0, roles=RoleSettings(unlabelled_twins=True), change=ChangeSettings(2))


def test_pooled_clients_get_the_test_samples_too_and_part_what_they_get():
    data = dataset()
    built = build_population(data.pool(), IID(4), 0, validation=0.25)
    pool = len(data.y_train) + len(data.y_test)
    held = torch.cat([*built.train, *built.test])
    assert len(held) == len(held.unique()) == pool
    assert sorted(len(test) for test in built.test) == [round(0.25 * len(p)) for p in np.array_split(range(pool), 4)]
    assert torch.equal(built.y[len(data.y_train) : pool], torch.from_numpy(data.y_test).long())


@pytest.mark.parametrize(
    "words", [["data.pooled=true"], ["data.pooled=true", "data.validation=0.2", "roles.look_alikes=1"]]
)
def test_pooled_samples_leave_no_test_samples_of_the_dataset_s_own(words):
    with pytest.raises(ConfigError, match=r"pooled leaves no"):
        load_config(None, words)


def test_late_clients_join_after_training_by_default():
    built = build_population(dataset(), IID(4), 0, roles=RoleSettings(late=0.25))
    assert sorted(role.joins for role in built.roles) == [0, 0, 0, LATER] and all(role.trains for role in built.roles)


def test_roles_that_leave_nobody_to_train_are_refused():
    with pytest.raises(ConfigError, match=r"at most 1, got 1\.2"):
        RoleSettings(0.4, 0.4, 0.4)
    with pytest.raises(ConfigError, match="leave at least one"):
        build_population(dataset(), IID(4), 0, roles=RoleSettings(holdout=1.0))


def test_a_change_gives_some_clients_the_samples_of_another_draw():
    built = build_population(dataset(), DisjointClasses(10), 0, change=ChangeSettings(round=5, fraction=0.4))
    (change,) = built.changes
    assert change.round == 5 and len(change.clients) == 4
    before = {frozenset(built.y[built.train[c]].tolist()): int(built.true_clusters[c]) for c in range(10)}
    for samples, test, cluster in zip(change.train, change.test, change.true_clusters.tolist(), strict=True):
        labels = frozenset(built.y[test].tolist())
        assert frozenset(built.y[samples].tolist()) == labels and 10 <= len(samples) <= 20
        assert before.get(labels, cluster) == cluster  # the same labels are the same cluster ...
        assert (cluster in before.values()) == (labels in before)  # ... and new ones a new cluster


CHANGED = {
    "iid": (IID(4), {}),
    "dirichlet": (Dirichlet(8, 0.5), {}),
    "disjoint classes": (DisjointClasses(10), {}),
    "capped": (DisjointClasses(10), {"train_samples": 10}),
    "writers": (Writers(random_writers=True), {}),
    "few writers": (Writers(random_writers=True, max_writers=6), {}),
    "own tests": (IID(4), {"validation": 0.2}),
}


@pytest.mark.parametrize(("partition", "settings"), CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_clients_that_change_get_no_training_sample_that_another_keeps(partition, settings, seed):
    writers = {"writer_train": np.arange(200) // 20, "writer_test": np.arange(100) // 10}
    built = build_population(dataset(**writers), partition, seed, change=ChangeSettings(5, 0.5), **settings)
    (change,) = built.changes
    staying = [own for client, own in enumerate(built.train) if client not in change.clients]
    later = torch.cat([*staying, *change.train])
    assert len(later.unique()) == len(later) and all(map(len, (*staying, *change.train)))
    if isinstance(partition, Writers):  # they are whole, and tested on their own samples
        assert all(len(own) == 20 and len((own // 20).unique()) == 1 for own in change.train)
        pairs = zip(change.train, change.test, strict=True)
        assert all(train[0] // 20 == (test[0] - 200) // 10 for train, test in pairs)


def test_samples_that_others_keep_are_replaced_by_free_ones_of_their_label_and_else_dealt_in_turn():
    labels = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    before = Split([[0, 1, 2], [3, 6], [7, 8, 9]], [[], [], []])
    after = Split([[], [], [0, 1, 7, 6]], [[], [], []])  # the third client changes; 4, 5, 8, 9 are free
    rng = np.random.default_rng(0)
    first, second = Redraw(before, after, np.array([2])).part(labels, np.arange(10), rng)
    assert [own.tolist() for own in first.train] == [[0, 1, 2], [3, 6], [7, 8, 9]]
    assert labels[second.train[2]].tolist() == [0, 0, 1, 1] and {4, 5, 7} < {*second.train[2].tolist()}
    without = np.array([0, 1, 2, 3, 6, 7])  # of the pool: none is free
    first, second = Redraw(before, after, np.array([2])).part(labels, without, rng)
    assert sorted([*first.train[0], *second.train[2]]) == [0, 1, 2, 7] and len(first.train[0]) == 2
    assert first.train[1].tolist() == [3, 6]  # who keeps any keeps one at least
    with pytest.raises(DataError, match="client 2 gets no training sample by the change that no other client keeps"):
        Redraw(before, Split([[], [], [6]], [[], [], []]), np.array([2])).part(labels, without[:5], rng)


@pytest.mark.parametrize(
    ("later", "changed", "wanted"),
    [
        ((2, 3, 0, 1, 4), [0, 1], (1, 0)),  # both were to get writers that others keep: they exchange their own
        ((3, 4, 0, 1, 2), [0, 1, 2], (1, 2, 0)),  # the third has the first's: the two get what is left, not their own
        ((1, 2, 0, 3, 4), [0, 1], (1, 0)),
        ((1, 0, 2, 3, 4), [0], (0,)),  # nothing else is left
    ],
)
def test_a_client_whose_new_writer_is_kept_gets_another_one_than_before(later, changed, wanted):
    def split(writers) -> Split:
        return Split([[writer] for writer in writers], [[writer] for writer in writers], writers=tuple(writers))

    labels, numbers = np.zeros(5, np.int64), np.arange(5)
    _, after = Redraw(split(range(5)), split(later), np.array(changed)).part(labels, numbers, np.random.default_rng(0))
    assert tuple(after.writers[client] for client in changed) == wanted
    assert [own.tolist() for own in after.train] == [[writer] for writer in after.writers]


def test_a_change_of_swapped_or_natural_clusters_keeps_their_numbers():
    for partition in (LabelSwapped(8), Structured(8, 2)):
        built = build_population(dataset(), partition, 0, change=ChangeSettings())
        assert torch.equal(built.changes[0].true_clusters, built.true_clusters)


def test_unlabelled_clients_stay_so_after_a_change():
    roles = RoleSettings(unlabelled=0.5)
    built = build_population(dataset(), IID(4), 0, roles=roles, change=ChangeSettings())
    change = built.changes[0]
    for client, samples in zip(change.clients.tolist(), change.train, strict=True):
        assert (built.y[samples] >= 0).all().item() == built.role(client).labelled


def test_digits_make_a_population_out_of_the_box():
    built = build_population(
        load("digits"), Dirichlet(10, 0.5), 0, public_fraction=0.1, shift=Augment(), test_samples=30
    )
    assert built.clients == 10 and label_counts(built).sum() == 1438 - len(built.public)


def test_flt_scenario_4_builds_quickly(real_root):
    if not (real_root / "emnist47.npz").exists():
        pytest.skip(f"no emnist47.npz in {real_root}")
    built = build_population(load("emnist47", real_root), Structured(2400), 0)
    assert built.clients == 2400 and sum(len(samples) for samples in built.train) == 91_233


def test_validation_samples_are_a_share_of_the_clients_own_samples():
    plain, built = (build_population(dataset(), IID(4), 0, validation=share) for share in (0.0, 0.2))
    for before, train, test in zip(plain.train, built.train, built.test, strict=True):
        assert len(test) == 10 and torch.equal(torch.cat([train, test]).sort().values, before)
    capped = build_population(dataset(), IID(4), 0, validation=0.2, test_samples=3)
    assert [len(samples) for samples in capped.train + capped.test] == [40] * 4 + [3] * 4
    with pytest.raises(ConfigError, match=r"validation must be a share .* got 1\.0"):
        build_population(dataset(), IID(4), 0, validation=1.0)


def list_stages(population):
    """The training and the test samples of all clients, at first and after each change, as the dataset has them."""
    parts = [(population.train, population.test), *((c.train, c.test) for c in population.changes)]
    return [population.origins[torch.cat([own for stage in parts for own in stage[part]])] for part in (0, 1)]


SHARED = {
    "blocks": (SharedClass(10, 5, 3), {}),
    "random": (SharedClass(10, 5, 3, "random", 12), {}),
    "change": (IID(4), {"change": ChangeSettings(2, 0.5)}),
    "copies": (SharedClass(10, 5, 3), {"shift": Rotation((0, 90, 180, 270, 0), per="client")}),
    "drift": (IID(4), {"drift": RotationDrift(change_rounds=(2, 4))}),
    "new classes": (IID(4), {"drift": NewClasses(change_rounds=(3,))}),
}


@pytest.mark.parametrize(("partition", "settings"), SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("by", ["selection", "validation"])
def test_nobody_ever_trains_on_a_sample_that_somebody_is_scored_on(partition, settings, by):
    data = dataset(per_class=40)
    if by == "selection":
        built = score_on_training(build_population(data, partition, 0, **settings), 0.25, 0)
    else:
        built = build_population(data, partition, 0, validation=0.25, **settings)
    train, test = list_stages(built)
    assert len(test) and not torch.isin(test, train).any()
    assert len(test) / (len(train) + len(test)) == pytest.approx(0.25, abs=0.05)
    assert all(map(len, built.train))


def test_held_out_samples_are_drawn_once_for_all_owners():
    owned = [np.array(own) for own in ([0, 1, 2, 3], [2, 3, 4, 5], [6, 7], [3], [9, 8])]
    drawn = []

    def take_last(owner, samples, count):
        drawn.append((owner, samples.tolist(), count))
        return samples[len(samples) - count :]

    held = hold_out_once(owned, 0.5, take_last, np.array([0, 1, 2, 3, 4, 5, 6, 7, 0, 9]))  # 8 is a copy of 0
    assert drawn == [(0, [0, 1, 2, 3], 2), (1, [4, 5], 0), (2, [6, 7], 1), (3, [], 0), (4, [9], 1)]
    assert np.flatnonzero(held).tolist() == [2, 7, 9], "2 and 3, and 3 no more, for the fourth has nothing else"


def test_copies_of_one_owner_are_drawn_as_one_and_held_out_together():
    """Seven samples of four rows: half of four is two."""
    owned, drawn = [np.array([0, 1, 2, 3, 4, 5, 6])], []

    def take_last(owner, samples, count):
        drawn.append((samples.tolist(), count))
        return samples[len(samples) - count :]

    held = hold_out_once(owned, 0.5, take_last, np.array([0, 0, 2, 3, 2, 0, 6]))
    assert drawn == [([0, 2, 3, 6], 2)] and np.flatnonzero(held).tolist() == [3, 6]


@pytest.mark.parametrize("by", ["selection", "validation"])
def test_nobody_trains_on_a_copy_of_a_sample_that_it_is_scored_on(by):
    x, y = np.random.default_rng(0).integers(0, 256, (80, 1, 4, 4), dtype=np.uint8), np.arange(80) % 10
    data = Dataset("copied", np.concatenate([x] * 5), np.concatenate([y] * 5), x[:10], y[:10], 10)
    given = {} if by == "selection" else {"validation": 0.25}
    built = build_population(data, IID(2), 0, **given)
    built = score_on_training(built, 0.25, 0) if by == "selection" else built
    for train, test in zip(built.train, built.test, strict=True):
        seen, scored = (len(torch.unique(built.x[own].flatten(1), dim=0)) for own in (train, test))
        both = torch.unique(built.x[torch.cat([train, test])].flatten(1), dim=0)
        assert seen + scored == len(both) and scored / len(both) == pytest.approx(0.25, abs=0.05)


def test_training_samples_of_a_client_can_be_capped():
    built = build_population(dataset(), DisjointClasses(10), 0, train_samples=3)
    assert [len(samples) for samples in built.train] == [3] * 10
    whole = build_population(dataset(), DisjointClasses(10), 0)
    assert all(torch.isin(few, samples).all() for few, samples in zip(built.train, whole.train, strict=True))


def test_clients_can_be_tested_on_all_test_samples():
    built = build_population(dataset(), DisjointClasses(10), 0, global_test=True, public_fraction=0.1, public_test=True)
    assert all(torch.equal(samples, built.held_out) for samples in built.test)
    with pytest.raises(ConfigError, match="not on both"):
        build_population(dataset(), DisjointClasses(10), 0, global_test=True, validation=0.2)
