"""What the methods that serve several models share."""

import copy
from dataclasses import replace

import pytest
import torch

from kinfed.capabilities import reason_for_labels
from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import RoleError
from kinfed.experiment import Experiment
from kinfed.methods import METHODS
from kinfed.methods.cluster_models import Clustered, ClusterModels, draw_models
from kinfed.models import Model
from kinfed.params import select
from tests.methods.registry import make, population
from tests.problems import assert_close, small_net

PARTIAL = [name for name, kind in METHODS.items() if issubclass(kind, Clustered) and name not in ("auto", "flt")]
SEVERAL = [*PARTIAL, "cfl"]


@pytest.mark.parametrize("name", SEVERAL)
def test_a_newcomer_that_is_sick_is_served_all_the_same(name):
    people = population(roles=tuple(Role(holdout=i == 3, joins=2 if i == 4 else 0) for i in range(12)))
    x = people.x.float() / 255
    x[torch.cat([people.train[3], people.train[4]])] = torch.nan
    method = make(name)
    fed = Vectorised(method, replace(people, x=x))
    experiment = Experiment.over(fed, rounds=4)
    experiment.run()
    asked = {4} if name in ("oracle", "feddrift") else {3, 4}  # a true cluster is looked up; an accuracy is a number
    assert {reply.client for reply in fed.rejected} == asked
    assert (method.cluster_assignment(experiment.state)[[3, 4]] >= 0).all()


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if reason_for_labels(kind)])
def test_a_newcomer_without_rows_is_refused_too_and_told_why(name):
    people = population(roles=tuple(Role(holdout=i == 3) for i in range(12)))
    train = tuple(part[:0] if i == 3 else part for i, part in enumerate(people.train))
    method = make(name)
    fed = Vectorised(method, replace(people, train=train))
    with pytest.raises(RoleError, match=r"\[3\].*(loss|train)"):
        method.admit(method.init(fed), torch.tensor([3]), fed)


@pytest.mark.parametrize("stale", ["aggregated", "last_local", "exclude"])
@pytest.mark.parametrize("name", PARTIAL)
def test_what_those_contribute_who_were_not_asked_is_a_setting(name, stale):
    method = make(name, stale=stale)
    fed = Vectorised(method, population(), fraction=0.25)
    state = method.round(method.init(fed), 0, fed)
    assert bool(state.served.last_trained) == (stale == "last_local")


def test_first_models_are_independent_and_the_first_is_everybodys():
    model = small_net()
    many, again, other = (
        draw_models(model, 3, "cpu"),
        draw_models(model, 2, "cpu"),
        draw_models(model, 2, "cpu", attempt=1),
    )
    assert_close(select(many, 0), model.init())
    assert_close(select(many, slice(2)), again)
    whole = torch.cat([many["1.weight"], other["1.weight"]]).flatten(1)
    assert len(whole.unique(dim=0)) == 5


@pytest.mark.parametrize("name", ["ifca", "fedem", "clove", "flsc", "fedrc"])
def test_first_models_that_are_all_equal_are_said_to_be_so_once(name, caplog):
    net = small_net().build()
    method = make(name)
    method.init(Vectorised(method, population()))
    assert not caplog.messages
    method = replace(method, model=Model(lambda: copy.deepcopy(net), classes=3))
    method.init(Vectorised(method, population()))
    (said,) = caplog.messages
    assert "first models are equal" in said and "whatever the seed" in said


def test_a_cluster_is_pooled_into_the_model_it_contributes_to_or_else_the_mean_of_its_clients():
    models = {"w": torch.tensor([1.0, 3.0, 10.0, 20.0])}
    contributors = torch.tensor(
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0]], dtype=torch.bool
    )  # just the second cluster contributes to model 3, and only an unseen client is served it
    served = ClusterModels(models, torch.tensor([0, 1, 2, 2, 3]), contributors[[0, 0, 2, 3]], {})
    after = served.pool(torch.tensor([4, 4, 7, 7, -1]), torch.tensor([1, 3, 5, 5, 5]))
    assert after.models["w"].tolist() == [(1 * 1 + 3 * 3) / 4, 20.0]
    assert after.assignment.tolist() == [0, 0, 1, 1, -1]
    assert after.contributors.int().tolist() == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0]]
