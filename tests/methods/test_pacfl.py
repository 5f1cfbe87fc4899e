"""PACFL's clusters, by each angle, and clients that join."""

import pytest
import torch

from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import PACFL
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import fit, same_clusters


def test_a_client_sends_the_main_directions_of_each_of_its_labels():
    people, method = population(), make("pacfl", vectors=2)
    fed = Vectorised(method, people)
    _, bases = method.collect(torch.tensor([0]), fed)
    assert bases.shape == (1, 3, 64, 2)
    for label in range(3):
        own = people.train[0][people.y[people.train[0]] == label]
        if not len(own):
            assert not bases[0, label].any()
            continue
        vectors = torch.linalg.svd(method.model.inputs(people.x[own]).flatten(1).T.double(), full_matrices=False).U
        assert float((bases[0, label, :, 0] * vectors[:, 0]).sum().abs()) == pytest.approx(1, abs=1e-5)


def test_labels_that_mean_something_else_are_seen_label_by_label_alone():
    people = renamed(rows=40)
    blind, _ = fit(PACFL(net(), LOCAL), population=people, rounds=1)
    state, fed = fit(PACFL(net(), LOCAL, angle="by_label"), population=people, rounds=1)
    assert same_clusters(state.served.assignment, fed.true_clusters)
    assert not same_clusters(blind.served.assignment, fed.true_clusters)


def test_an_unseen_client_joins_the_cluster_with_the_least_mean_angle():
    people = population(roles=tuple(Role(holdout=i in (2, 5)) for i in range(12)))
    method = make("pacfl")
    state, fed = fit(method, population=people, rounds=1)
    assert same_clusters(state.served.assignment, fed.true_clusters)
    assert not state.served.contributors[:, [2, 5]].any()
    apart = method.distances_to_clusters(state, torch.tensor([2, 5]), fed)
    assert torch.equal(apart.argmin(1), state.served.assignment[[2, 5]])


def test_settings_out_of_range_are_refused():
    for setting in ({"vectors": 0}, {"threshold": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            make("pacfl", **setting)
