"""Centralised training is SGD on pooled samples: a plain loop gives the same, and no deployment can run it."""

import pytest
import torch

from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.methods.centralised import pool_samples
from kinfed.training import LocalTraining
from tests.methods.registry import make, population
from tests.problems import assert_close, fit

PLAIN = LocalTraining(epochs=2, batch_size=7, lr=0.05, momentum=0.0)


def test_a_round_is_a_plain_loop_over_the_pooled_samples():
    method, people = make("centralised", local=PLAIN), population(roles=tuple(Role(holdout=i == 3) for i in range(12)))
    state, fed = fit(method, population=people, rounds=1)
    params, steps = method.model.init(), 0
    for batch in pool_samples(fed.clients, fed).batches(2, 7):
        gradient = method.model.gradient(params, batch).weights
        params, steps = {name: w - 0.05 * gradient[name] for name, w in params.items()}, steps + 1
    samples = sum(len(own) for i, own in enumerate(people.train) if i != 3)
    assert steps == 2 * -(-samples // 7)
    assert_close(state.params, params)


def test_each_round_has_an_order_of_its_own_and_samples_that_changed():
    fed = Vectorised(make("centralised"), population())
    pools = []
    for t in (0, 1):
        fed.begin(t)
        pools.append(pool_samples(fed.clients, fed))
    assert torch.equal(pools[0].train.index, pools[1].train.index) and int(pools[0].key) != int(pools[1].key)
    fed.train[0] = fed.train[0][:2]
    assert len(pool_samples(fed.clients[:1], fed).train) == 2


def test_a_deployment_is_refused_in_a_line():
    fed = Vectorised(make("centralised"), population())
    fed.sees_samples = False
    with pytest.raises(ConfigError, match="a deployment's are not"):
        make("centralised").init(fed)
