"""FedGroup's decomposition by hand, and who joins which cluster."""

import pytest
import torch

from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import FedGroup
from kinfed.methods.fedgroup import decompose
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import fit, same_clusters


def test_updates_are_compared_with_their_main_directions_by_hand():
    # singular vectors are the axes x (of length √(9 + 9) = 4.24) and y (2); the third number is in neither
    updates = torch.tensor([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.1]])
    cosines = decompose(updates, 2)
    torch.testing.assert_close(cosines.abs(), torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 0]]).double())
    assert float(cosines[0, 0] * cosines[1, 0]) == pytest.approx(-1), "opposite updates are apart"


def test_planted_clusters_are_found_and_directions_are_their_mean_updates():
    fedgroup = FedGroup(net(), LOCAL, clusters=2)
    fed = Vectorised(fedgroup, renamed())
    state = fedgroup.init(fed)
    assert same_clusters(state.served.assignment, fed.true_clusters)
    twin = Vectorised(fedgroup, renamed())
    _, updates = fedgroup.collect(twin.clients, twin)
    mean = updates[state.served.assignment == 1].mean(0)
    torch.testing.assert_close(state.directions[1], mean)


def test_an_unseen_client_joins_the_direction_nearest_to_its_update():
    people = renamed(roles=tuple(Role(holdout=i in (2, 5)) for i in range(12)))
    state, fed = fit(FedGroup(net(), LOCAL, clusters=2), population=people, rounds=1)
    assert same_clusters(state.served.assignment, fed.true_clusters)
    assert not state.served.contributors[:, [2, 5]].any()


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="clusters must be at least 1"):
        make("fedgroup", clusters=0)
    with pytest.raises(ConfigError, match=r"clusters must be 1\.\.12"):
        fit(make("fedgroup", clusters=13), population=population(), rounds=1)
