from dataclasses import replace

import pytest
import torch

from kinfed.aggregation import MEAN, NormClipping
from kinfed.data import Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.experiment import Experiment
from kinfed.federation import Replies
from kinfed.methods import PerFedAvg, PFedMe, Scaffold
from kinfed.methods.scaffold import ScaffoldState
from kinfed.metrics import fedavg_parameters, method_bytes
from kinfed.training import LocalTraining
from tests.methods.by_hand import QUADRATIC, client_with, weight
from tests.methods.registry import make, population
from tests.problems import assert_close, fit, small_net, tiny_population


@pytest.mark.parametrize(
    ("momentum", "step", "control"),
    [
        (0.0, 0.665, -2.825),  # steps along -3 - 0.5 and 0.35 - 3 - 0.5; c⁺ is the mean of -3 and -2.65
        (0.5, 0.84, -2.86),  # c⁺ is their mean with weights 1.5 and 1
    ],
)
@pytest.mark.parametrize("padded", [0, 3])
def test_a_clients_step_and_control_by_hand(momentum, step, control, padded):
    scaffold = Scaffold(QUADRATIC, LocalTraining(2, 2, 0.1, momentum=momentum))
    client = client_with(2, 4, padded=padded, control=weight(1.0))
    reply = scaffold.train(client, params=weight(0.0), control=weight(0.5))
    assert float(reply.send["step"]["w"]) == pytest.approx(step, rel=1e-5)
    assert float(reply.keep["control"]["w"]) == pytest.approx(control, rel=1e-5)
    assert float(reply.send["change"]["w"]) == pytest.approx(control - 1, rel=1e-5)


def means(fed):
    """The mean control of the clients that train."""
    return {name.removeprefix("control/"): t[fed.clients].mean(0) for name, t in fed.memory.items()}


@pytest.mark.parametrize("rule", [MEAN, NormClipping(bound=1e9)], ids=["mean", "a rule that clips nobody"])
@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_the_servers_control_is_the_mean_of_all_clients(fraction, rule):
    fed = Vectorised(make("scaffold"), population(), fraction=fraction)
    fed.aggregation = rule
    experiment = Experiment.over(fed, rounds=4)
    experiment.run()
    state = experiment.state
    assert bool(state.controls) == rule.is_robust
    assert_close(state.control, means(fed))
    assert state.control["1.weight"].abs().max() > 0.01


def test_a_liar_moves_a_robust_control_once_and_no_farther():
    fed = Vectorised(make("scaffold"), tiny_population((5,) * 5))
    fed.aggregation = NormClipping(bound=1.0)
    scaffold, state = Scaffold(QUADRATIC), ScaffoldState(weight(0.0), weight(0.0))
    for changes in ([0.5, 0.5, 0.5, 8.0], [0.0, 0.0, 0.0, 8.0], [0.0, 0.0, 0.0, 8.0]):  # client 4 is never drawn
        replies = Replies(torch.arange(4), {"change": {"w": torch.tensor(changes)}})
        control, controls = scaffold.update_controls(state, replies, fed)
        state = replace(state, control=control, controls=controls)
        assert float(control["w"]) == pytest.approx((0.5 + 0.5 + 0.5 + 1.0 + 0) / 5)
    assert controls["w"].tolist() == [0.5, 0.5, 0.5, 24.0, 0.0]


def test_it_stays_the_mean_when_clients_join():
    roles = tuple(Role(holdout=i == 2, joins=2 if i > 7 else 0) for i in range(12))
    scaffold = make("scaffold")
    fed = Vectorised(scaffold, population(roles=roles), fraction=0.5)
    experiment = Experiment.over(fed, rounds=4)
    experiment.run()
    assert len(fed.clients) == 11
    assert_close(experiment.state.control, means(fed))


@pytest.mark.parametrize("rule", [MEAN, NormClipping(bound=1e9)], ids=["mean", "a rule that clips nobody"])
def test_it_is_the_mean_of_those_who_are_left_when_clients_leave(rule):
    roles = tuple(Role(leaves=2) if i < 4 else Role(joins=3 if i == 11 else 0) for i in range(12))
    fed = Vectorised(make("scaffold"), population(roles=roles), fraction=0.5)
    fed.aggregation = rule
    experiment = Experiment.over(fed, rounds=5)
    experiment.run()
    assert len(fed.clients) == 8
    assert_close(experiment.state.control, means(fed))


def test_the_server_steps_as_far_as_it_is_told():
    far, _ = fit(make("scaffold", server_lr=0.5), population=population(), rounds=1)
    full, _ = fit(make("scaffold"), population=population(), rounds=1)
    first = small_net().init()
    assert_close(far.params, {name: (w + first[name]) / 2 for name, w in full.params.items()})


def test_clients_that_drift_apart_are_corrected():
    # two clients that pull to 0 and to 10, the second one in three steps a round
    local = LocalTraining(1, 1, 0.2, momentum=0)
    scaffold = Scaffold(QUADRATIC, local)
    w, c = weight(0.0), weight(0.0)
    own = [weight(0.0), weight(0.0)]
    for _ in range(300):
        replies = [
            scaffold.train(client_with(*rows, control=mine), params=w, control=c)
            for rows, mine in zip(((0.0,), (10.0, 10.0, 10.0)), own, strict=True)
        ]
        own = [reply.keep["control"] for reply in replies]
        w = weight(float(w["w"] + sum(reply.send["step"]["w"] for reply in replies) / 2))
        c = weight(float(c["w"] + sum(reply.send["change"]["w"] for reply in replies) / 2))
    assert float(w["w"]) == pytest.approx(
        5, abs=0.01
    )  # the minimum of the mean loss; FedAvg goes to 4.88 / 0.688 = 7.1


def test_it_moves_model_and_control_both_ways():
    _, fed = fit(make("scaffold"), population=population(), rounds=3, every=1, fraction=0.5)
    assert method_bytes(fed.ledger) == 4 * 2 * fedavg_parameters(6, small_net().parameters(), 3)
    assert fed.ledger.down["evaluate"].max() == 3 * 4 * small_net().parameters(), "who only uses it needs no control"


def test_a_server_that_stands_still_is_refused():
    with pytest.raises(ConfigError, match="server_lr must be a number above 0, got 0"):
        make("scaffold", server_lr=0)


def test_controls_start_at_zero():
    scaffold = make("scaffold")
    assert all(not w.any() for w in scaffold.init(Vectorised(scaffold, population())).control.values())
    assert all(not torch.any(w) for w in scaffold.initial_memory()["control"].values())


@pytest.mark.parametrize("kind", [Scaffold, PFedMe, PerFedAvg])
def test_a_method_of_plain_sgd_says_so_where_training_is_by_adam(kind):
    adam = LocalTraining(1, 5, 0.01, optimiser="adam")
    with pytest.warns(UserWarning, match=r"training.optimiser is adam, but .*SGD"):
        Experiment(kind(small_net(), adam), tiny_population(), rounds=1).run()
