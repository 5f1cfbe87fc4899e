"""Batch-norm statistics: no part of what is compared of updates, and averaged as they are."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from kinfed.aggregation import DEPLOYED
from kinfed.client_tasks import flatten_updates
from kinfed.engines import Vectorised
from kinfed.experiment import Evaluation, Experiment
from kinfed.federation import Offer, Replies
from kinfed.methods import CFL, FLHC, IFCA, WD, CLoVE, FedAvg, FedEM, FedGroup, FedNova, FeSEM, Scaffold, StoCFL
from kinfed.methods.split_tree import SplitRule
from kinfed.models import Model
from kinfed.replies import find_variances, keep_variances
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


class OneLies(Vectorised):
    """Client 3 sends one running variance far below 0, or says that its own fell by as much."""

    def _run(self, name, cohort, keys, offer):
        send, keep = super()._run(name, cohort, keys, offer)
        return {field: self.forge(value, cohort == 3) for field, value in send.items()}, keep

    def forge(self, value, at):
        if isinstance(value, torch.Tensor):
            return value
        sign = 1 if type(self.method) is FedNova else -1
        lies = {name: w.clone() for name, w in value.items() if name.endswith("running_var")}
        for w in lies.values():
            w[at, ..., 0] = sign * 1000.0
        return {**value, **lies}


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(norm_first(), LOCAL),
        FedNova(norm_first(), LOCAL),
        Scaffold(norm_first(), LOCAL),
        IFCA(norm_first(), LOCAL, clusters=2),
        CLoVE(norm_first(), LOCAL, clusters=2),
        FedEM(norm_first(), LOCAL, components=2),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_negative_variance_of_one_client_spoils_no_model(method):
    fed = OneLies(method, renamed())
    fed.aggregation = DEPLOYED
    experiment = Experiment.over(fed, rounds=3, evaluation=Evaluation(metrics="main", signatures="none"))
    experiment.run()
    served = getattr(experiment.state, "served", experiment.state)
    models = served.params if hasattr(served, "params") else served.models
    assert all(bool((w >= 0).all()) for name, w in models.items() if name.endswith("running_var"))
    sends_change = isinstance(method, FedNova | Scaffold)
    assert {(entry.client, entry.reason) for entry in fed.rejected if entry.reason != "long update"} == (
        set() if sends_change else {(3, "not finite")}
    )


def test_which_fields_of_replies_are_variances():
    norm = {"1.running_var": torch.ones(2), "1.running_mean": torch.ones(2), "1.weight": torch.ones(2)}
    several = {name: w[None] for name, w in norm.items()}
    assert find_variances(Offer(shared={"params": norm})) == {"params/1.running_var"}
    assert find_variances(Offer(each={"models": several})) == {"models/1.running_var", "params/1.running_var"}
    alone = {name: w for name, w in norm.items() if "mean" not in name}
    assert not find_variances(Offer(shared={"params": alone})), "a weight of that name, and no norm's"


def test_a_change_takes_no_variance_below_zero_and_others_are_as_they_were():
    start = {"0.running_var": torch.tensor([1.0, 0.3]), "0.weight": torch.tensor([1.0])}
    steps = {"0.running_var": torch.tensor([[-5.0, 0.1], [-0.5, -0.3]]), "0.weight": torch.tensor([[-9.0], [2.0]])}
    kept = keep_variances(start, steps)
    assert kept["0.running_var"].tolist() == torch.tensor([[-1.0, 0.1], [-0.5, -0.3]]).tolist()
    assert kept["0.weight"] is steps["0.weight"]
    backwards = keep_variances(start, {name: -w for name, w in steps.items()}, -1)
    assert_close({name: -w for name, w in backwards.items()}, kept)
