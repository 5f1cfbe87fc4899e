"""CLoVE's matching by hand, its freezing, and who is assigned how."""

from dataclasses import replace

import pytest
import torch

from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import CLoVE
from kinfed.methods.clove import match_models
from kinfed.ranges import LARGEST
from tests.methods.by_hand import client_with
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import fit, same_clusters, small_net


def test_each_cluster_gets_a_model_of_its_own_by_hand():
    # both clusters have the least loss under model 0; totals are [2, 4] and [3, 9]: 2 + 9 is more than 4 + 3
    losses = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 9.0]])
    assert match_models(losses, torch.tensor([0, 0, 1])).tolist() == [1, 0]
    assert match_models(losses, torch.tensor([0, 0, 0])).tolist() == [0], "one cluster takes the better model"


def test_a_client_replies_its_mean_loss_under_each_model():
    model = small_net()
    clove, first = CLoVE(model), model.init()
    models = {name: torch.stack([w, 0 * w]) for name, w in first.items()}
    image = torch.zeros(1, 1, 8, 8)
    client = client_with(0.0, 0.0)
    client = client.with_train(type(client.train)(image, torch.tensor([1]), torch.tensor([0, 0]), torch.tensor(2)))
    losses = clove.compute_losses(client, models=models).send["losses"]
    assert float(losses[1]) == pytest.approx(1.0986123), "log 3: all classes are alike to a model of zeros"


def test_a_model_that_diverged_has_the_largest_loss_and_excludes_nobody():
    clove = make("clove", clusters=2)
    fed = Vectorised(clove, population())
    state = clove.init(fed)
    models = {name: w.clone() for name, w in state.served.models.items()}
    for w in models.values():
        w[1] = torch.nan
    state = replace(state, served=replace(state.served, models=models))
    for _ in range(3):
        replies, losses = clove.collect(state, fed.clients, fed)
        assert replies.cohort.tolist() == list(range(12)) and not fed.rejected
        assert bool((losses[:, 1] == LARGEST).all()) and bool((losses[:, 0] < 10).all())


def test_planted_clusters_are_found_and_then_frozen():
    clove = CLoVE(net(), LOCAL, seed=1)
    state, fed = fit(clove, population=renamed(), rounds=6)
    assert same_clusters(state.served.assignment, fed.true_clusters) and (state.stable == 3).all()
    asked = [t for t, task, *_ in fed.ledger.rounds if task == "compute_losses"]
    assert len(asked) < 1 + 6, "no losses are asked for any more"


def test_a_client_that_was_never_sampled_has_a_model_and_one_that_is_unseen_the_least_loss():
    roles = tuple(Role(holdout=i == 2) for i in range(12))
    clove = make("clove")
    fed = Vectorised(clove, population(roles=roles), fraction=0.2)
    state = clove.init(fed)
    assert state.served.assignment.lt(0).nonzero().flatten().tolist() == [2]
    _, losses = clove.collect(state, torch.tensor([2]), fed)
    admitted = clove.admit(state, torch.tensor([2]), fed)
    assert int(admitted.served.assignment[2]) == int(losses.argmin())
    assert not admitted.served.contributors[:, 2].any(), "it trains no model"


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="clusters must be at least 1"):
        make("clove", clusters=0)
    with pytest.raises(ConfigError, match=r"clusters must be 1\.\.12"):
        fit(make("clove", clusters=13), population=population(), rounds=1)


def test_a_round_asks_for_losses_as_long_as_one_of_its_clients_changed_its_model_in_its_last_rounds():
    clove = CLoVE(net(), LOCAL, seed=1)
    fed = Vectorised(clove, renamed(), fraction=0.5)
    state, (some, others) = clove.init(fed), torch.arange(12).chunk(2)
    for clients, asks in ((some, True), (some, True), (some, True), (some, False), (others, True), (some, False)):
        fed.sample, before = (lambda clients=clients: clients), len(fed.ledger.rounds)
        state = clove.round(state, 0, fed)
        assert any(task == "compute_losses" for _, task, *_ in fed.ledger.rounds[before:]) is asks
    assert state.stable.tolist() == [3] * 6 + [1] * 6
