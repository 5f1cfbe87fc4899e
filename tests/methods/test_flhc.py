from dataclasses import replace

import pytest
import torch

from kinfed.clustering.hierarchy import Hierarchy
from kinfed.data import LATER, Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.federation import Replies
from kinfed.methods import FLHC
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.params import select
from tests.methods.by_hand import QUADRATIC
from tests.methods.planted import FOUR, LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, fit, same_clusters, small_net

INFINITE = 1e30  # nothing is farther
WAYS = [(m, way) for m in ("l1", "l2", "cosine") for way in ("single", "complete", "average")] + [("l2", "ward")]


def flhc(**more):
    return FLHC(net(), LOCAL, rounds_before=3, hierarchy=Hierarchy(**more))


@pytest.mark.parametrize(("metric", "linkage"), WAYS)
def test_it_finds_clusters_that_swap_labels(metric, linkage):
    state, fed = fit(flhc(metric=metric, linkage=linkage), population=renamed(FOUR, clients=16), rounds=4)
    assert same_clusters(state.served.assignment, fed.true_clusters)


def test_it_finds_clusters_of_different_images_by_a_given_threshold():
    state, fed = fit(make("flhc", hierarchy=Hierarchy(threshold=0.7)), population=population(), rounds=2)
    assert same_clusters(state.served.assignment, fed.true_clusters)


def test_an_infinite_threshold_is_fedavg_continued():
    flhc, _ = fit(
        make("flhc", hierarchy=Hierarchy(threshold=INFINITE)), population=population(), rounds=4, fraction=0.5
    )
    fedavg, _ = fit(make("fedavg"), population=population(), rounds=4, fraction=0.5)
    assert_close(select(flhc.served.models, 0), fedavg.params)
    assert flhc.served.assignment.unique().tolist() == [0]


def test_threshold_zero_gives_singletons():
    state, _ = fit(make("flhc", hierarchy=Hierarchy(threshold=0.0)), population=population(), rounds=2)
    assert len(state.served.assignment.unique()) == 12


def test_clusters_restart_from_the_model_that_was_clustered():
    method = make("flhc")
    fed = Vectorised(method, population())
    state = method.round(method.init(fed), 0, fed)
    clustered = method.cluster(state, fed)
    assert len(clustered.served.models["1.weight"]) > 1
    for cluster in range(len(clustered.served.contributors)):
        assert_same_bits(select(clustered.served.models, cluster), select(state.served.models, 0))


def test_the_ledger_equals_the_formula():
    _, fed = fit(flhc(), population=renamed(FOUR, clients=16), rounds=5, fraction=0.3)
    weights = net().parameters()
    per_cluster = 4 * max(int(0.3 * 4), 1)
    wanted = fedavg_parameters(4, weights, 3) + 2 * 16 * weights + fedavg_parameters(per_cluster, weights, 2)
    assert method_bytes(fed.ledger) == 4 * wanted
    assert small_net(classes=4).parameters() == weights


def test_late_and_holdout_clients_join_the_cluster_they_would_merge_with():
    joins = {4: 5, 5: 2, 6: LATER, 7: LATER}
    roles = tuple(Role(holdout=i in (2, 3), joins=joins.get(i, 0)) for i in range(20))
    for metric, linkage in WAYS:
        method = flhc(metric=metric, linkage=linkage)
        state, fed = fit(method, population=renamed(FOUR, clients=20, roles=roles), rounds=7)
        assert same_clusters(state.served.assignment, fed.true_clusters), (metric, linkage)
        assert (
            not state.served.contributors[:, [2, 3, 6, 7]].any() and state.served.contributors[:, [4, 5]].any(0).all()
        )


def test_the_server_holds_updates_only_while_somebody_may_still_come():
    closed, _ = fit(make("flhc"), population=population(), rounds=2)
    roles = tuple(Role(joins=LATER if i == 5 else 0) for i in range(12))
    open_, _ = fit(make("flhc"), population=population(roles=roles), rounds=2)
    assert len(closed.updates) == 0 and len(open_.updates) == 11


def test_a_client_that_is_sick_at_the_clustering_stays_by_itself():
    people = population()
    x = people.x.float() / 255
    x[people.train[3]] = torch.nan
    state, _ = fit(make("flhc"), population=type(people)(**(vars(people) | {"x": x})), rounds=2)
    assert (state.served.assignment == state.served.assignment[3]).sum() == 1


def test_ward_needs_euclidean_distances():
    with pytest.raises(ConfigError, match="ward"):
        Hierarchy(metric="l1", linkage="ward")


def test_weights_are_compared_as_well_as_updates():
    by = {compare: replace(flhc(), compare=compare) for compare in ("updates", "weights")}
    found = {compare: fit(method, population=renamed(FOUR), rounds=4)[0] for compare, method in by.items()}
    assert same_clusters(found["updates"].served.assignment, found["weights"].served.assignment)  # L2: the same
    root = {"w": torch.tensor([3.0, 0.0])}
    replies = Replies(torch.arange(2), {"update": {"w": torch.tensor([[0.0, 1.0], [0.0, -1.0]])}})
    by = {compare: replace(method, model=QUADRATIC) for compare, method in by.items()}
    assert by["weights"].points(root, replies).tolist() == [[3.0, 1.0], [3.0, -1.0]]  # nearly parallel
    assert by["updates"].points(root, replies).tolist() == [[0.0, 1.0], [0.0, -1.0]]  # opposite
