"""FLUX: FedAvg first, then clusters; who joins which, with labels and without."""

from dataclasses import replace

import pytest
import torch

from kinfed.data import LATER, Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.methods import FLT, FLUX
from kinfed.params import select
from kinfed.signatures import PartMeans
from tests.methods.registry import LOCAL, MORE, make, population
from tests.problems import assert_close, fit, same_clusters, small_net

WIDE = {"radius": 1.5}


def test_clusters_go_on_from_the_model_that_fedavg_trained():
    method = make("flux", rounds_before=2, **WIDE)
    fed = Vectorised(method, population(MORE))
    state = method.init(fed)
    for t in range(2):
        fed.begin(t)
        state = method.round(state, t, fed)
    assert not state.root and len(state.served.contributors) == 1
    fed.begin(2)
    formed = method.form_clusters(state, fed)
    assert same_clusters(formed.served.assignment, fed.true_clusters)
    for cluster in range(2):
        assert_close(select(formed.served.models, cluster), select(state.served.models, 0))
    common, _ = fit(make("fedavg"), population=population(MORE), rounds=2)
    assert_close(formed.root, common.params)


def test_centroids_are_the_means_of_their_members():
    method = make("flux", rounds_before=0, **WIDE)
    fed = Vectorised(method, population())
    state = method.form_clusters(method.init(fed), fed)
    own = (fed.clients[state.served.assignment == 0],)
    _, apart = method.compare(state, fed.clients, fed)
    assert torch.equal(apart.argmin(1), state.served.assignment)
    _, moments = method.collect(state.root, own[0], fed)
    scaled = (moments - state.limits[0]) / (state.limits[1] - state.limits[0]).where(
        state.limits[1] > state.limits[0], 1
    )
    torch.testing.assert_close(state.centroids[0], scaled.mean(0), atol=1e-5, rtol=1e-4)


def test_clients_without_labels_join_by_the_overall_moments_alone():
    people = population(MORE, roles=tuple(Role(holdout=i in (2, 5), labelled=i not in (2, 5)) for i in range(12)))
    y = people.y.clone()
    for client in (2, 5):
        y[people.train[client]] = -1
    method = make("flux", **WIDE)
    state, fed = fit(method, population=replace(people, y=y), rounds=2)
    assert same_clusters(state.served.assignment, fed.true_clusters)
    blind = replace(state, centroids=state.centroids.clone())
    blind.centroids[:, 1:] = 1e6  # what labels say is not looked at
    torch.testing.assert_close(
        method.compare(blind, torch.tensor([2]), fed)[1], method.compare(state, torch.tensor([2]), fed)[1]
    )


def test_flt_takes_the_common_model_as_its_embedding():
    method = FLT(small_net(), LOCAL, PartMeans(embedding="model", model_rounds=2))
    fed = Vectorised(method, population())
    state = method.init(fed)
    common, _ = fit(make("fedavg"), population=population(), rounds=2)
    assert_close(state.encoder, common.params)
    assert state.known.centroids.shape == (12, 4, 8)
    assert same_clusters(state.clusters, fed.true_clusters)


def test_the_common_model_embeds_nothing_where_there_is_none_yet():
    with pytest.raises(ConfigError, match=r"signature\.embedding = 'model' is for flt"):
        make("auto", signature=PartMeans(embedding="model", labels=True)).init(Vectorised(make("auto"), population()))


def test_settings_out_of_range_are_refused():
    for setting in ({"rounds_before": -1}, {"dimensions": 0}, {"radius": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            make("flux", **setting)


def test_nobody_joins_a_cluster_of_which_no_descriptor_is_known():
    roles = tuple(Role(joins=LATER if i == 5 else 0) for i in range(12))
    method = make("flux", rounds_before=0, **WIDE)
    fed = Vectorised(method, population(roles=roles))
    collect = FLUX.collect

    def leave_out(self, root, clients, fed):  # client 0 is silent
        return collect(self, root, clients[clients != 0], fed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FLUX, "collect", leave_out)
        state = method.form_clusters(method.init(fed), fed)
    alone = state.served.assignment[0]
    assert (state.served.assignment == alone).sum() == 1
    unknown = replace(state, centroids=state.centroids.clone())
    unknown.centroids[alone] = 0  # were it compared, it would be the nearest
    unknown.limits[:] = torch.tensor([-1e6, 1e6])[:, None, None, None]
    _, apart = method.compare(unknown, torch.arange(12), fed)
    assert apart[:, alone].isinf().all() and apart[:, torch.arange(apart.shape[1]) != alone].isfinite().all()
