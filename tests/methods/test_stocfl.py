"""StoCFL's merges, starts and training by hand, and clients that join."""

from dataclasses import replace

import pytest
import torch

from kinfed.aggregation import NormClipping
from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import StoCFL
from kinfed.params import each_leaf, select
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import assert_close, fit, same_clusters


def with_updates(updates, labels, threshold=0.5, **more):
    """A state in which these clients sent these updates, are in these clusters, and cluster c's model is all c."""
    method = make("stocfl", threshold=threshold)
    fed = Vectorised(method, population(**more))
    state = method.init(fed)
    whole = torch.zeros(12, state.updates.shape[1])
    whole[: len(updates), :2] = torch.tensor(updates)
    names = torch.tensor(labels + [-1] * (12 - len(labels)))
    models = {
        name: torch.arange(float(max(labels) + 1)).view(-1, *[1] * w.dim()).expand(-1, *w.shape).clone()
        for name, w in state.common.items()
    }
    return method, fed, method.serve(replace(state, updates=whole), names, models, fed)


def test_sampled_clusters_with_similar_mean_updates_become_one_by_hand():
    # cosines: clusters 0 and 1: 0.8; 1 and 2: 0.6; 0 and 2: 0: linked through 1; cluster 3 is opposite to 0
    updates = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.0, 2.0], [-1.0, 0.0]]
    method, fed, state = with_updates(updates, [0, 1, 2, 2, 3])
    after = method.unite(state, torch.tensor([0, 1, 2, 4]), fed).served
    assert after.assignment[:6].tolist() == [0, 0, 0, 0, 1, -1]
    assert float(after.models["1.weight"][0, 0, 0]) == 2, "the model of the largest of them"
    assert float(after.models["1.weight"][1, 0, 0]) == 3


def test_one_client_between_two_clusters_joins_them_unless_aggregation_is_robust():
    # the last client's cosine with either cluster is 0.7; the mean distance of one cluster and it to the other is 0.77
    updates = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    method, fed, state = with_updates(updates, list(range(7)))
    everybody = torch.arange(7)
    assert len(method.unite(state, everybody, fed).served.assignment[:7].unique()) == 1
    fed.aggregation = NormClipping()
    for _ in range(2):  # the second time clusters of several clients are compared
        state = method.unite(state, everybody, fed)
        assert same_clusters(state.served.assignment[:6], torch.tensor([0, 0, 0, 1, 1, 1]))


@pytest.mark.parametrize(("second", "threshold"), [([0.6, 0.8], 0.5), ([0.0, 1.0], 0.0)])  # within it, and at it
def test_with_robust_aggregation_similar_clusters_become_one_as_well(second, threshold):
    method, fed, state = with_updates([[1.0, 0.0], second, [-1.0, 0.0]], [0, 1, 2], threshold)
    fed.aggregation = NormClipping()
    after = method.unite(state, torch.arange(3), fed).served
    assert same_clusters(after.assignment[:3], torch.tensor([0, 0, 1]))


def test_with_robust_aggregation_no_update_that_clusters_are_compared_by_is_longer_than_its_bound():
    method = make("stocfl")
    fed = Vectorised(method, population())
    longest = [float(method.meet(method.init(fed), fed.clients, fed)[0].updates.norm(dim=1).max())]
    fed.aggregation = NormClipping(bound=longest[0] / 2)
    longest += [float(method.meet(method.init(fed), fed.clients, fed)[0].updates.norm(dim=1).max())]
    assert longest[1] == pytest.approx(longest[0] / 2)


def test_clusters_of_which_nobody_was_sampled_stay_as_they_are():
    method, fed, state = with_updates([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [0, 1, 2])
    after = method.unite(state, torch.tensor([0, 2]), fed).served
    assert same_clusters(after.assignment[:3], torch.tensor([0, 1, 0]))


def test_a_cluster_is_compared_by_the_mean_of_its_members():
    # cluster 0: mean (1, 0) of (1, 1) and (1, -1); its cosine with (1, 0.1) is 0.995, either member's at most 0.78
    method, fed, state = with_updates([[1.0, 1.0], [1.0, -1.0], [1.0, 0.1]], [0, 0, 1], threshold=0.9)
    after = method.unite(state, torch.tensor([0, 2]), fed).served
    assert after.assignment[:3].tolist() == [0, 0, 0]


def test_the_pull_is_the_distance_to_the_common_model_by_hand():
    # one step goes by lr · (∇f(θ) + μ(θ - ω)); so with another μ it differs by lr · μ(θ - ω), 0.5 · 2 · 0.25 each
    local = replace(LOCAL, epochs=1, batch_size=64, lr=0.5, momentum=0.0)
    free, held = StoCFL(net(), local, pull=0.0), StoCFL(net(), local, pull=2.0)
    fed = Vectorised(free, renamed())
    theta = net().init()
    omega = each_leaf(lambda w: w - 0.25, theta)
    offer = free.offer(free.init(fed), torch.tensor([0]), fed)._replace(
        each={"params": each_leaf(lambda w: w[None], theta)}, pick=torch.tensor([0]), shared={"common": omega}
    )
    trained = []
    for method in (free, held):
        fed = Vectorised(method, renamed())
        trained.append(select(fed.run(method.train, torch.tensor([0]), offer).stack("params"), 0))
    assert_close(trained[1], each_leaf(lambda w: w - 0.5 * 2.0 * 0.25, trained[0]), atol=1e-5)


def test_a_client_is_met_once_and_served_the_common_model_until_then():
    method = StoCFL(net(), LOCAL, threshold=0.5)
    state, fed = fit(method, population=renamed(), rounds=6, fraction=0.25)
    met = fed.ledger.up["observe"] > 0
    assert 3 < int(met.sum()) < 12
    assert len(fed.ledger.up["observe"][met].unique()) == 1
    assert torch.equal(state.served.assignment >= 0, met)
    stranger = (~met).nonzero()[0]
    offer = method.offer(state, stranger, fed)
    assert_close(select(offer.each["params"], int(offer.pick)), state.common)


def test_unseen_clients_join_the_cluster_of_similar_updates_and_change_no_model():
    people = renamed(roles=tuple(Role(holdout=i in (2, 5)) for i in range(12)))
    state, fed = fit(StoCFL(net(), LOCAL, threshold=0.5), population=people, rounds=2)
    assert same_clusters(state.served.assignment, fed.true_clusters)
    assert not state.served.contributors[:, [2, 5]].any()


def test_an_unseen_client_that_is_like_nobody_is_served_the_common_model():
    people = renamed(roles=tuple(Role(holdout=i == 2) for i in range(12)))
    state, _ = fit(StoCFL(net(), LOCAL, threshold=1.0), population=people, rounds=2)
    assert int(state.served.assignment[2]) == -1
    assert len(state.served.assignment.unique()) == 12, "the others are clusters of one"


def test_settings_out_of_range_are_refused():
    for setting in ({"threshold": -2.0}, {"threshold": 1.5}, {"pull": -1.0}, {"anchor_epochs": 0}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            make("stocfl", **setting)
