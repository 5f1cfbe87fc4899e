"""FedClust clusters by the final layer, and sends nothing else for that."""

import torch

from kinfed.clustering.hierarchy import Hierarchy
from kinfed.data import Role
from kinfed.engines import Vectorised
from tests.methods.registry import make, population
from tests.problems import assert_close, fit, small_net

HEAD = 4 * (8 * 3 + 3)  # bytes of small_net's last layer


def test_the_final_layer_alone_is_sent_after_it_was_trained():
    fedclust = make("fedclust")
    fed = Vectorised(fedclust, population())
    replies = fed.run(fedclust.train_head, torch.tensor([4]), fedclust.first_offer(fed))
    assert int(fed.ledger.up["train_head"][4]) == HEAD
    assert int(fed.ledger.down["train_head"][4]) == 4 * small_net().parameters()
    first, head = small_net().init(), replies.stack("head")
    assert set(head) == {"3.weight", "3.bias"}
    assert all(0 < float((w[0] - first[name]).abs().max()) < 1 for name, w in head.items())


def test_clusters_are_those_of_the_layers_distances():
    fedclust = make("fedclust", hierarchy=Hierarchy(linkage="single", threshold=0.0))
    state, _ = fit(fedclust, population=population(), rounds=1)
    assert len(state.served.assignment.unique()) == 12, "a threshold of nothing merges nobody"


def test_an_unseen_client_joins_by_its_layer_and_nothing_is_kept_where_nobody_may_join():
    fedclust, roles = make("fedclust"), tuple(Role(holdout=i == 2) for i in range(12))
    state, fed = fit(fedclust, population=population(roles=roles), rounds=1)
    own = fed.run(fedclust.train_head, torch.tensor([2]), fedclust.first_offer(fed)).stack("head")
    assert state.heads.shape == (11, 27) and int(state.served.assignment[2]) >= 0 and own
    state, _ = fit(fedclust, population=population(), rounds=1)
    assert not len(state.heads) and not len(state.members)


def test_with_one_cluster_it_is_fedavg_from_the_first_model():
    one, _ = fit(make("fedclust", hierarchy=Hierarchy(threshold=1e9)), population=population(), rounds=1)
    other, _ = fit(make("fedavg"), population=population(), rounds=1)
    assert_close({name: w[0] for name, w in one.served.models.items()}, other.params)
