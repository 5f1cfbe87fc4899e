"""Batch-norm statistics: no part of what is compared of updates, and averaged as they are."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from kinfed.client_tasks import flatten_updates
from kinfed.federation import Replies
from kinfed.methods import CFL, FLHC, WD, FedGroup, FeSEM, Scaffold, StoCFL
from kinfed.methods.split_tree import SplitRule
from kinfed.models import Model
from kinfed.training import LocalTraining
from tests.methods.planted import renamed
from tests.problems import assert_close, fit, same_clusters

LOCAL = LocalTraining(epochs=4, batch_size=8, lr=0.1)


def norm_first():
    layers = lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 4))  # noqa: E731
    return Model(layers, classes=4)


def test_updates_are_compared_without_statistics():
    model = norm_first()
    update = {name: torch.full((2, *w.shape), 2.0 if "running" in name else 1.0) for name, w in model.init().items()}
    flat = flatten_updates(model, Replies(torch.arange(2), {"update": update}))
    assert flat.shape == (2, 2 * 64 + 4 * 64 + 4) and bool((flat == 1).all())


@pytest.mark.parametrize(
    "method",
    [
        FLHC(norm_first(), LOCAL, rounds_before=1),
        FedGroup(norm_first(), LOCAL, clusters=2),
        WD(norm_first(), LOCAL, rounds_before=1, clusters=2),
        StoCFL(norm_first(), LOCAL, threshold=0.5),
        FeSEM(norm_first(), LOCAL, clusters=2),
        CFL(norm_first(), LOCAL, SplitRule(0.5, 0.5), after=1),
    ],
    ids=lambda method: type(method).__name__,
)
def test_planted_groups_are_found_by_networks_with_batch_norm(method):
    state, fed = fit(method, population=renamed(rows=40), rounds=2)
    assert same_clusters(method.cluster_assignment(state), fed.true_clusters)


def test_statistics_become_their_means_whatever_the_servers_rate():
    plain = Scaffold(norm_first(), LOCAL)
    states = [fit(replace(plain, server_lr=rate), population=renamed(), rounds=1)[0] for rate in (1.0, 2.0)]
    statistics = [{name: state.params[name] for name in plain.model.buffers} for state in states]
    assert_close(*statistics)
    assert all(bool((w >= 0).all()) for name, w in states[1].params.items() if "var" in name)
