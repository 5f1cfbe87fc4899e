from dataclasses import replace

import pytest
import torch

from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.experiment import Experiment
from kinfed.methods import CFL
from kinfed.methods.split_tree import SplitRule, find_shortest_mean
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.params import select
from tests.methods.planted import LOCAL, NESTED, TWO, net, renamed
from tests.methods.registry import EAGER, make, population
from tests.problems import assert_close, fit, same_clusters, small_net, tiny_population


def cfl(after=8, **more):
    return CFL(net(), LOCAL, SplitRule(**({"mean_below": 0.5, "some_above": 0.5} | more)), after)


def test_two_nested_splits_find_four_clusters_and_ids_are_right():
    method = cfl()
    experiment = Experiment(method, renamed(NESTED, clients=16), rounds=30)
    summary = experiment.run()
    state = experiment.state
    assert summary["ari"] == 1 and summary["clusters"] == 4 and summary["accuracy"] == 1
    assert state.tree.parents[0] == 0 and sorted(state.tree.parents[1:].tolist()) == [0, 1], "each half was split once"


def test_clusters_are_split_in_the_first_round_that_may_and_not_before():
    method = cfl(mean_below=9.0, some_above=0.1, after=3)
    fed = Vectorised(method, renamed(TWO))
    state = method.init(fed)
    for t in range(3):
        state = method.round(state, t, fed)
        assert len(state.tree.parents) == 0
    state = method.round(state, 3, fed)
    assert len(state.tree.parents) == 1 and same_clusters(state.assignment, fed.true_clusters)


def test_updates_are_averaged_without_weights_in_the_new_clusters():
    method = make("cfl", after=0)
    fed, twin = (Vectorised(method, population()) for _ in range(2))
    before = method.init(fed)
    after = method.round(before, 0, fed)
    updates = twin.run(method.train, twin.clients, method.offer(before, twin.clients, twin)).stack("update")
    assert len(after.tree.parents) == 1
    for c in (0, 1):
        wanted = before.models["1.weight"][0] + updates["1.weight"][after.assignment == c].mean(0)
        torch.testing.assert_close(after.models["1.weight"][c], wanted)


@pytest.mark.filterwarnings("ignore:.* looks for clusters after")
def test_without_a_split_and_with_equal_clients_it_is_fedavg():
    people = tiny_population((20,) * 12)
    alone, fed = fit(make("cfl", after=99), population=people, fraction=0.5)
    fedavg, _ = fit(make("fedavg"), population=people, fraction=0.5)
    assert_close(select(alone.models, 0), fedavg.params)
    assert method_bytes(fed.ledger) == 4 * fedavg_parameters(6, small_net().parameters(), 3)


def test_long_means_and_short_updates_and_a_narrow_gap_forbid_splits():
    for more in ({"mean_below": 0.0}, {"some_above": 99.0}, {"gap": 1.0}):
        state, _ = fit(make("cfl", after=0, rule=replace(EAGER, **more)), population=population())
        assert len(state.tree.parents) == 0, more


def test_with_partial_participation_those_who_were_not_asked_are_asked_at_the_split():
    method = cfl(mean_below=9.0, some_above=0.1, after=3)
    fed = Vectorised(method, renamed(TWO), fraction=0.5)
    state = method.init(fed)
    for t in range(4):
        state = method.round(state, t, fed)
    assert len(state.tree.parents) == 1 and same_clusters(state.assignment, fed.true_clusters)
    cohort = next(n for round, task, n, *_ in fed.ledger.rounds if task == "differ")
    assert cohort == 6 and fed.calls == {"sample": 4, "train": 4, "differ": 1}


def test_late_and_holdout_clients_go_down_the_tree_to_their_kin():
    roles = tuple(Role(holdout=i in (2, 3), joins=25 if i in (4, 5) else 0) for i in range(20))
    state, fed = fit(cfl(), population=renamed(NESTED, clients=20, roles=roles), rounds=28)
    assert len(state.tree.parents) == 3 and same_clusters(state.assignment, fed.true_clusters)
    assert fed.ledger.up["differ"][4] == 2 * 4 * net().parameters(), "one update at each of two nodes"


def test_relative_thresholds_do_not_hang_on_how_long_updates_are():
    updates = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]])  # their mean is 0
    rule, longest = SplitRule(0.1, 0.5, relative=True), updates.norm(dim=1).max()
    for scale in (1e-3, 1.0, 1e3):
        right = rule(scale * updates, scale * longest)
        assert right is not None and right.tolist() in ([False, False, True, True], [True, True, False, False])
    assert rule(updates, 3 * longest) is None  # all are short by now
    assert SplitRule(0.1, 0.5)(1e-3 * updates, 1e-3 * longest) is None  # absolute ones do
    with pytest.raises(ConfigError, match="below 1 where it is relative"):
        SplitRule(relative=True)


def test_the_longest_update_so_far_is_remembered():
    method = CFL(net(), LOCAL, SplitRule(0.2, 0.3, relative=True), after=2)
    state, fed = fit(method, population=renamed(TWO), rounds=12)
    assert float(state.tree.longest) > 0 and same_clusters(state.assignment, fed.true_clusters)


def test_one_that_pushes_the_model_somewhere_keeps_no_cluster_whole_where_it_may_lie():
    honest = torch.tensor([[1.0, 0.5], [1.0, -0.5], [1.0, 0.4], [-1.0, 0.5], [-1.0, -0.5], [-1.0, -0.4]])
    updates, rule = torch.cat([honest, torch.tensor([[0.0, 4.0]])]), SplitRule(0.4, 0.9)
    assert rule(updates, torch.zeros(())) is None
    right = rule(updates, torch.zeros(()), doubted=1)
    assert right is not None and same_clusters(right[:6].long(), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert find_shortest_mean(updates, 0).item() == pytest.approx(4 / 7)
    assert find_shortest_mean(updates, 1).item() < 1e-6
    assert find_shortest_mean(honest, 1).item() < 1e-6, "the mean of all is the shortest"


def test_one_long_update_splits_no_clients_that_agree_where_it_may_lie():
    updates = torch.tensor([[0.3, 0.1], [0.3, -0.1], [0.3, 0.0], [0.2, 0.1], [-1.0, 0.0]])
    assert SplitRule(0.4, 0.9)(updates, torch.zeros(())) is not None
    assert SplitRule(0.4, 0.9)(updates, torch.zeros(()), doubted=1) is None
