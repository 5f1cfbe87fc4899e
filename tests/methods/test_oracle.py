"""The oracle trains one model for each true cluster, follows changes, and serves nobody after the run."""

from dataclasses import replace

import pytest
import torch

from kinfed.data import Role
from kinfed.data.population import Change
from kinfed.errors import RoleError
from tests.methods.registry import make, population
from tests.problems import assert_close, fit


def test_each_true_cluster_is_fedavg_of_its_clients():
    people = population()
    state, fed = fit(make("oracle"), population=people, rounds=2)
    assert torch.equal(state.served.assignment, fed.true_clusters)
    roles = tuple(Role(holdout=bool(cluster)) for cluster in people.true_clusters)
    alone, _ = fit(make("fedavg"), population=replace(people, roles=roles), rounds=2)
    assert_close({name: w[0] for name, w in state.served.models.items()}, alone.params)


def test_unseen_clients_are_in_their_true_cluster_and_train_none():
    roles = tuple(Role(holdout=i == 3, joins=1 if i == 4 else 0) for i in range(12))
    state, fed = fit(make("oracle"), population=population(roles=roles), rounds=2)
    assert torch.equal(state.served.assignment, fed.true_clusters)
    assert not state.served.contributors[:, 3].any() and state.served.contributors[:, 4].any()


def test_it_follows_a_change_of_the_true_clusters_at_once():
    people = population()
    who = torch.tensor([0, 1])
    own = tuple(people.train[i] for i in who), tuple(people.test[i] for i in who)
    change = Change(1, who, *own, true_clusters=torch.tensor([2, 0]))
    state, _ = fit(make("oracle"), population=replace(people, changes=(change,)), rounds=2)
    assert state.served.assignment[:4].tolist() == [2, 0, 0, 1] and len(state.served.contributors) == 3


def test_where_no_clusters_are_planted_all_are_in_one():
    state, _ = fit(make("oracle"), population=replace(population(), true_clusters=None), rounds=1)
    assert state.served.assignment.unique().tolist() == [0]


def test_nothing_is_exported():
    state, fed = fit(make("oracle"), population=population(), rounds=1)
    with pytest.raises(RoleError, match="nobody knows their true clusters"):
        make("oracle").export_state(state, fed.clients, fed.sizes)
