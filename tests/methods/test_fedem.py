"""FedEM's steps by hand, the mixture that a client uses, and shares that find planted clusters."""

import pytest
import torch
from torch.testing import assert_close

from kinfed.client import Client
from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.engines.sequential import make_client
from kinfed.errors import ConfigError
from kinfed.methods import FedEM
from kinfed.methods.cluster_models import draw_models
from kinfed.methods.mixtures import expect
from kinfed.params import select
from kinfed.training import LocalTraining
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import fit

ONE_STEP = LocalTraining(epochs=1, batch_size=10**6, lr=0.1, momentum=0.0)


def one_client(method: FedEM, people, number: int = 0) -> Client:
    return make_client(Vectorised(method, people), number, torch.tensor(3), {"shares": torch.tensor([0.25, 0.75])})


def test_the_e_step_weighs_components_by_share_and_likelihood():
    method, people = make("fedem"), population()
    client, models = one_client(method, people), draw_models(make("fedem").model, 2, torch.device("cpu"))
    weights, shares, _ = expect(client, method.model, models)
    x, y = people.x[people.train[0]], people.y[people.train[0]]
    likely = torch.stack([method.model.logits(select(models, m), x).softmax(1)[range(len(y)), y] for m in (0, 1)])
    joint = torch.tensor([[0.25], [0.75]]) * likely
    assert_close(weights, joint / joint.sum(0))
    assert_close(shares, weights.mean(1))


def test_the_m_step_follows_the_weighted_gradient():
    method, people = make("fedem", local=ONE_STEP), population()
    client, models = one_client(method, people), draw_models(make("fedem").model, 2, torch.device("cpu"))
    weights, shares, _ = expect(client, method.model, models)
    reply = method.train(client, models)
    assert_close(reply.keep["shares"], shares)
    x, y = people.x[people.train[0]], people.y[people.train[0]]
    for m in (0, 1):
        leaves = {name: w.clone().requires_grad_() for name, w in select(models, m).items()}
        losses = torch.nn.functional.cross_entropy(method.model.logits(leaves, x), y, reduction="none")
        gradients = torch.autograd.grad((weights[m] * losses).sum() / len(y), list(leaves.values()))
        for (name, w), g in zip(leaves.items(), gradients, strict=True):
            assert_close(reply.send["models"][name][m], w.detach() - 0.1 * g)


def test_a_client_predicts_by_mixed_probabilities():
    method, people = make("fedem"), population()
    client, models = one_client(method, people), draw_models(make("fedem").model, 2, torch.device("cpu"))
    used, x = method.personalise(client, {"models": models}), people.x[:5]
    shares = expect(client, method.model, models).shares
    wanted = sum(shares[m] * method.model.logits(select(models, m), x).softmax(1) for m in (0, 1))
    assert_close(method.client_model().logits(used, x).softmax(1), wanted)


def test_shares_tell_planted_clusters_apart_and_an_unseen_client_finds_its_own():
    people = renamed(roles=tuple(Role(holdout=i in (4, 5)) for i in range(12)))
    state, fed = fit(FedEM(net(), LOCAL, components=2), population=people, rounds=8)
    method, found = fed.method, []
    for i in range(12):
        client = make_client(fed, i, torch.tensor(0), select(fed.memory, i))
        found.append(int(method.personalise(client, {"models": state.models})["shares"].argmax()))
    planted = people.true_clusters.tolist()
    assert len(set(found)) == 2 and len(set(zip(found, planted, strict=True))) == 2


def test_without_labels_all_components_count_alike():
    roles = tuple(Role(labelled=i != 7) for i in range(12))
    method = make("fedem")
    state, fed = fit(method, population=population(roles=roles), rounds=1)
    fed.y[fed.train[7]] = -1
    client = make_client(fed, 7, torch.tensor(0), select(fed.memory_of(torch.tensor([7])), 0))
    assert method.personalise(client, {"models": state.models})["shares"].tolist() == [0.5, 0.5]


def test_shares_stay_with_clients_and_components_are_what_is_sent():
    _, fed = fit(make("fedem"), population=population(), rounds=1)
    weights = 4 * sum(w.numel() for w in make("fedem").model.init().values())
    assert fed.ledger.up["train"].tolist() == [2 * weights] * 12
    assert fed.memory["shares"].shape == (12, 2) and torch.allclose(fed.memory["shares"].sum(1), torch.ones(12))


def test_no_components_are_refused():
    with pytest.raises(ConfigError, match="components must be at least 1"):
        make("fedem", components=0)
