"""Clients whose samples change at known rounds: what they have before and after, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfed.config import load_config, make_population
from kinfed.data import LabelSwapDrift, NewClasses, Population, Role, RotationDrift, ScalingDrift
from kinfed.errors import ConfigError, DataError

STAGES = ((0, 0, 0, 0), (0, 0, 1, 1), (1, 0, 0, 1))


def people(**more) -> Population:
    """Four clients of three training samples and one test sample, labels 0, 1, 2 and 0."""
    x = torch.arange(16 * 4, dtype=torch.uint8).view(16, 1, 2, 2)
    train = tuple(torch.arange(4 * m, 4 * m + 3) for m in range(4))
    test = tuple(torch.tensor([4 * m + 3]) for m in range(4))
    return Population(x, torch.tensor([0, 1, 2, 0] * 4), train, test, 3, **more)


def drift(kind, population: Population | None = None, seed: int = 0, **settings) -> Population:
    return kind(**settings)(population or people(), np.random.default_rng(seed))


def labels_of(population: Population, samples: torch.Tensor) -> list[int]:
    return population.y[samples].tolist()


def test_clients_have_the_labels_of_their_concept_from_its_round_on():
    found = drift(LabelSwapDrift, change_rounds=(2, 5), concepts=STAGES, pairs=((0, 1),))
    assert all(labels_of(found, samples) == [0, 1, 2] for samples in found.train)
    first, second = found.changes
    assert (first.round, first.clients.tolist()) == (2, [2, 3])
    assert [labels_of(found, samples) for samples in first.train] == [[1, 0, 2]] * 2
    assert [labels_of(found, samples) for samples in first.test] == [[1]] * 2
    assert (second.round, second.clients.tolist()) == (5, [0, 2])
    assert [labels_of(found, samples) for samples in second.train] == [[1, 0, 2], [0, 1, 2]]
    assert torch.equal(second.train[1], people().train[2]), "a client that goes back has the samples it had"


def test_true_clusters_are_planted_clusters_by_concept():
    found = drift(LabelSwapDrift, change_rounds=(2, 5), concepts=STAGES, pairs=((0, 1),))
    assert found.true_clusters.tolist() == [0, 0, 0, 0]
    assert [change.true_clusters.tolist() for change in found.changes] == [[1, 1], [1, 0]]
    planted = people(true_clusters=torch.tensor([0, 1, 0, 1]))
    found = drift(LabelSwapDrift, planted, change_rounds=(2,), concepts=STAGES[:2], pairs=((0, 1),))
    assert found.true_clusters.tolist() == [0, 1, 0, 1] and found.changes[0].true_clusters.tolist() == [2, 3]


def test_images_are_turned_and_only_what_a_concept_needs_is_copied():
    found = drift(RotationDrift, change_rounds=(1,), concepts=((0, 1), (0, 0)), degrees=(0, 180))
    assert torch.equal(found.x[found.train[2]], people().x[people().train[2]].flip(2, 3))  # of the second half
    assert torch.equal(found.train[0], people().train[0]) and len(found.y) == 16 + 8
    assert found.changes[0].clients.tolist() == [2, 3] and torch.equal(found.changes[0].train[0], people().train[2])


@pytest.mark.parametrize("of", ["targets", "features"])
def test_numbers_are_scaled(of: str):
    numbers = replace(people(), x=torch.randn(16, 3), y=torch.randn(16), classes=1)
    found = drift(ScalingDrift, numbers, change_rounds=(1,), concepts=((0, 0), (0, 1)), factors=(1, -2.0), of=of)
    change = found.changes[0].train[0]
    x, y = numbers.x[numbers.train[2]], numbers.y[numbers.train[2]]
    assert torch.equal(found.x[change], -2 * x if of == "features" else x)
    assert torch.equal(found.y[change], -2 * y if of == "targets" else y)
    assert torch.equal(found.train[0], numbers.train[0])


def test_classes_come_and_go():
    found = drift(NewClasses, change_rounds=(3,), concepts=((0,), (1,)), labels=((0, 1), (0, 2)))
    assert labels_of(found, found.train[1]) == [0, 1] and labels_of(found, found.changes[0].train[1]) == [0, 2]
    assert len(found.y) == 16, "nothing is copied"


def test_without_a_plan_a_share_of_the_clients_moves_on_at_each_point():
    settings = {"change_rounds": (1, 2, 3), "fraction": 0.5, "pairs": ((0, 1), (1, 2))}
    plan = LabelSwapDrift(**settings).plan(people(), np.random.default_rng(0))
    steps = (plan[1:] - plan[:-1]) % 3
    assert plan.shape == (4, 4) and not plan[0].any() and (steps.sum(1) == 2).all() and steps.max() == 1
    again = LabelSwapDrift(**settings).plan(people(), np.random.default_rng(0))
    assert (again == plan).all()


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (LabelSwapDrift, {"change_rounds": ()}, "change_rounds must be at least 1"),
        (LabelSwapDrift, {"change_rounds": (0,)}, "change_rounds must be at least 1"),
        (LabelSwapDrift, {"change_rounds": (5, 3)}, "change_rounds must ascend"),
        (LabelSwapDrift, {"fraction": 1.5}, "fraction"),
        (LabelSwapDrift, {"pairs": ()}, "two concepts at least, pairs gives 1"),
        (LabelSwapDrift, {"pairs": ((1, 1),)}, "two different labels"),
        (RotationDrift, {"degrees": (90,)}, "two concepts at least, degrees gives 1"),
        (RotationDrift, {"degrees": (0, float("nan"))}, "degrees"),
        (NewClasses, {"labels": ((0,), ())}, "labels"),
        (ScalingDrift, {"factors": (1, float("nan"))}, "factors must be finite"),
        (ScalingDrift, {"of": "labels"}, "of must be"),
        (LabelSwapDrift, {"concepts": ((0, 0),)}, "must have 2 entries"),
        (LabelSwapDrift, {"concepts": ((0, 0), (1,))}, "equally long"),
        (LabelSwapDrift, {"concepts": ((0, 0), (0, 4))}, "must be 0..3, which pairs has"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, settings, says):
    with pytest.raises(ConfigError, match=says):
        kind(**settings)


@pytest.mark.parametrize(
    ("kind", "population", "settings", "says"),
    [
        (LabelSwapDrift, people(), {}, "drift.pairs names label 6, the data have labels 0..2"),
        (RotationDrift, replace(people(), x=torch.zeros(16, 2)), {}, "needs uint8 images"),
        (NewClasses, people(), {"labels": ((0, 1, 2), (2,)), "concepts": ((0,) * 5, (1,) * 5)}, "5 columns and there"),
        (NewClasses, replace(people(), y=torch.zeros(16), classes=1), {}, "no classes: use scaling"),
        (ScalingDrift, people(), {}, "targets that are numbers, got classes, .* use drift.of = 'features'"),
        (ScalingDrift, people(), {"of": "features"}, "features that are numbers, .* use rotation"),
        (ScalingDrift, replace(people(), y=torch.ones(16, 3)), {}, "targets that are numbers"),  # labels of 0 and 1
    ],
)
def test_data_that_cannot_drift_so_are_refused(kind, population, settings, says):
    with pytest.raises(DataError, match=says):
        drift(kind, population, **settings)


def test_a_client_without_samples_of_a_concept_is_named():
    few = replace(people(), train=(torch.tensor([0]), *people().train[1:]))
    with pytest.raises(DataError, match="client 0 has no training samples under concept 1"):
        drift(NewClasses, few, labels=((0, 1), (1, 2)), concepts=((0,), (1,)))


SETTINGS = ["data.name=digits", "partition.name=iid", "partition.clients=6", "drift.name=label_swap"]


def test_a_config_makes_drifting_clients_and_resolves_to_itself():
    config = load_config(None, [*SETTINGS, "drift.change_rounds=[2, 4]", "drift.pairs=[[0, 1]]"])
    population = make_population(config)
    assert [change.round for change in population.changes] == [2, 4]
    assert all(len(change.clients) == 3 for change in population.changes)
    assert config.resolve()["drift"]["name"] == "label_swap"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["change.round=2"], "change already"),
        (["roles.look_alikes=1"], "look-alikes resemble clients that stay"),
        (["drift.pair=1"], "did you mean|unknown"),
        (["drift.name=slow"], "drift"),
        (["roles.leaving=0.2"], "set leave_round"),
        (["roles.leaving=0.6", "roles.leave_round=3", "roles.late=0.6"], "at most 1"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(settings, says):
    with pytest.raises((ConfigError, DataError), match=says):
        make_population(load_config(None, [*SETTINGS, *settings]))


def test_a_client_cannot_leave_before_it_joins():
    with pytest.raises(DataError, match="must leave in a later round than it joins"):
        people(roles=(Role(joins=3, leaves=3), Role(), Role(), Role()))


def test_a_share_of_the_clients_leaves():
    found = make_population(load_config(None, [*SETTINGS[:3], "roles.leaving=0.5", "roles.leave_round=3"]))
    assert sorted(role.leaves for role in found.roles)[:3] == [3, 3, 3]
