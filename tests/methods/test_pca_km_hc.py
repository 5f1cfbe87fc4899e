from dataclasses import replace

import pytest
import torch

from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import PCAKMeansHC
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.params import select
from tests.methods.registry import make, population
from tests.problems import assert_close, fit, same_clusters, small_net


def started(method, people=None):
    fed = Vectorised(method, people or population())
    return method.init(fed), fed


def dimmed():
    """Two groups that a PCA of one's own can tell apart: the images of one are four times as bright."""
    people = population()
    x = people.x.clone()
    for client in range(1, 12, 2):
        x[torch.cat([people.train[client], people.test[client]])] //= 4
    return replace(people, x=x)


@pytest.mark.parametrize("clusters", [0, 2])
def test_it_finds_bright_and_dim_clients(clusters):
    method = make("pca_km_hc", threshold=0.8, clusters=clusters)
    state, fed = started(method, dimmed())
    assert same_clusters(state.served.assignment, fed.true_clusters) and same_clusters(
        method.cluster_assignment(state), fed.true_clusters
    )


def test_clusters_of_a_graph_of_more_unconnected_parts_are_doubtful():
    with pytest.warns(UserWarning, match=r"2 clusters are wanted of 12 groups .* larger threshold, or clusters = 0"):
        started(make("pca_km_hc", threshold=0.0, clusters=2))


def test_it_cannot_find_clusters_of_different_images_for_each_client_has_axes_of_its_own():
    method = make("pca_km_hc", threshold=0.4, clusters=2)
    state, fed = started(method)
    assert not same_clusters(state.served.assignment, fed.true_clusters)


def test_with_everybody_related_it_is_fedavg_and_with_nobody_local_training():
    settings = {"population": population(), "fraction": 0.5}
    whole, _ = fit(make("pca_km_hc", threshold=1e9, stale="exclude"), **settings)
    fedavg, _ = fit(make("fedavg"), **settings)
    assert_close(select(whole.served.models, 0), fedavg.params)
    apart, _ = fit(make("pca_km_hc", threshold=0.0), **settings)
    _, alone = fit(make("local"), **settings)
    assert_close(
        {f"params/{name}": w[apart.served.assignment] for name, w in apart.served.models.items()}, alone.memory
    )


def test_a_client_sends_k_centres_in_as_many_components_as_there_can_be():
    state, fed = started(make("pca_km_hc", components=128, k=3))
    assert state.known.centroids.shape == (12, 3, 64)  # 8 × 8 pixels
    assert (
        fed.ledger.up["compute_signature"].tolist() == [4 * 3 * 64] * 12
        and fed.ledger.down["compute_signature"].sum() == 0
    )
    beyond = state.known.centroids[0, :, int(fed.sizes[0]) :]
    assert beyond.abs().max() < 1e-5, "rows span no more directions than there are rows"


def test_the_ledger_equals_the_formula():
    _, fed = fit(make("pca_km_hc", components=16, k=3), population=population(), rounds=4, fraction=0.5)
    assert method_bytes(fed.ledger) == 4 * (12 * 3 * 16 + fedavg_parameters(6, small_net().parameters(), 4))


def test_newcomers_are_served_as_the_client_nearest_to_them():
    roles = tuple(Role(holdout=i == 3, labelled=i != 4, joins=2 if i == 5 else 0) for i in range(12))
    method = make("pca_km_hc", components=2, threshold=0.4, clusters=2)
    state, _ = fit(method, population=population(roles=roles), rounds=4)
    members = [i for i in range(12) if i not in (3, 4, 5)]
    for newcomer in (3, 4, 5):
        apart = method.distances(state.known, torch.tensor([newcomer]), torch.tensor(members))[0]
        assert state.served.assignment[newcomer] == state.served.assignment[members[int(apart.argmin())]]
    assert not state.served.contributors[:, [3, 4]].any() and state.served.contributors[:, 5].sum() == 1


def test_clusters_are_the_components_of_the_graph():
    method = make("pca_km_hc")
    state, _ = started(method)
    graph = method.neighbours(state).matrix()
    assert torch.equal(graph, graph.T) and graph.diagonal().all()
    clusters = method.cluster_assignment(state)
    assert (clusters[:, None] == clusters)[graph].all()


def test_defaults_are_those_of_flts_code():
    method = PCAKMeansHC(small_net())
    assert (method.components, method.k, method.threshold, method.clusters) == (128, 5, 1.2, 0)


def test_more_centres_than_matching_can_match_are_refused():
    with pytest.raises(ConfigError, match="k in"):
        make("pca_km_hc", k=7)
