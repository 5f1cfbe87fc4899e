"""WD: what REPA is compared with."""

import pytest
import torch
from torch.nn.functional import normalize

from kinfed.data import LATER, Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.federation import Offer
from kinfed.methods import WD
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.params import average, flatten, repeat
from tests.methods.planted import FOUR, LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import assert_same_bits, fit, same_clusters


def wd(**more):
    return WD(net(), LOCAL, **({"rounds_before": 3, "clusters": 4} | more))


def test_it_finds_clusters_that_swap_labels():
    state, fed = fit(wd(), population=renamed(FOUR, clients=16), rounds=1)
    assert same_clusters(state.served.assignment, fed.true_clusters)


def test_the_common_model_is_fedavgs_after_as_many_rounds():
    method = make("wd", rounds_before=2)
    fed, twin = (Vectorised(method, population(), fraction=0.5) for _ in range(2))
    wanted = method.model.init()
    for _ in range(2):
        replies = twin.run(method.prepare, twin.sample(), Offer(shared={"params": wanted}))
        wanted = average(replies.stack("params"), twin.sizes[replies.cohort])
    assert_same_bits(method.init(fed).root, wanted)


def test_clusters_start_from_the_first_model_not_from_the_common_one():
    method = make("wd")
    state = method.init(Vectorised(method, population()))
    assert_same_bits(state.served.models, repeat(method.model.init(), 2))


def test_a_client_is_seen_as_the_direction_in_which_tuning_moves_the_common_model():
    method = make("wd", tuning_epochs=3)
    fed, twin = Vectorised(method, population()), Vectorised(method, population())
    root = method.init(fed).root
    method.init(twin)
    _, seen = method.collect(root, fed.clients, fed)
    updates = twin.run(method.tune, twin.clients, Offer(shared={"params": root}))
    assert torch.equal(seen, normalize(flatten(updates.stack("update"))))
    assert torch.allclose(seen.norm(dim=1), torch.ones(12))


def test_the_ledger_equals_the_formula():
    _, fed = fit(wd(rounds_before=3), population=renamed(FOUR, clients=16), rounds=2, fraction=0.25)
    weights = net().parameters()
    assert method_bytes(fed.ledger) == 4 * (fedavg_parameters(4, weights, 3 + 2) + 2 * 16 * weights)


def test_late_and_holdout_clients_join_the_cluster_that_moves_as_they_do():
    roles = tuple(Role(holdout=i in (2, 3), joins=LATER if i in (6, 7) else 0) for i in range(20))
    state, fed = fit(wd(), population=renamed(FOUR, clients=20, roles=roles), rounds=2)
    assert same_clusters(state.served.assignment, fed.true_clusters) or same_clusters(
        fed.true_clusters, state.served.assignment
    )
    assert not state.served.contributors[:, [2, 3]].any()


@pytest.mark.parametrize("wrong", [{"rounds_before": -1}, {"tuning_epochs": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be at least"):
        wd(**wrong)
