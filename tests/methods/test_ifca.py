from dataclasses import replace

import pytest
import torch

from kinfed.data import LATER, Role
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError
from kinfed.experiment import Experiment
from kinfed.methods import IFCA
from kinfed.metrics import method_bytes
from kinfed.params import select
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, fit, same_clusters, small_net

BODY, HEAD = 64 * 8 + 8, 8 * 3 + 3  # weights of small_net


@pytest.mark.parametrize("warm_rounds", [0, 2])
def test_it_finds_clusters_that_swap_labels(warm_rounds):
    ifca = IFCA(net(), LOCAL, least_share=0.35, warm_rounds=warm_rounds)
    state, fed = fit(ifca, population=renamed(), rounds=8)
    assert same_clusters(state.choices, fed.true_clusters)


def test_it_finds_clusters_of_different_images():
    state, fed = fit(make("ifca", least_share=0.35), population=population(), rounds=8)
    assert same_clusters(state.choices, fed.true_clusters)


def test_first_models_are_drawn_until_each_attracts_its_share(monkeypatch):
    once, often = make("ifca"), make("ifca", least_share=0.35)
    fed = Vectorised(often, population())
    state = often.init(fed)
    choices = fed.run(often.choose, fed.clients, often.offer(state, fed.clients, fed))["choice"]
    assert fed.calls["choose"] > 2 and torch.bincount(choices).min() >= 0.35 * 12
    lopsided = once.init(fed)
    choices = fed.run(often.choose, fed.clients, often.offer(lopsided, fed.clients, fed))["choice"]
    assert torch.bincount(choices, minlength=2).min() < 0.35 * 12
    monkeypatch.setattr("kinfed.methods.cluster_models.ATTEMPTS", 2)
    with pytest.raises(ConfigError, match="in 2 draws of first models"):
        hopeless = make("ifca", clusters=12, least_share=1 / 12)
        hopeless.init(Vectorised(hopeless, population()))


def test_one_cluster_is_fedavg():
    ifca, _ = fit(make("ifca", clusters=1), population=population(), fraction=0.5)
    fedavg, _ = fit(make("fedavg"), population=population(), fraction=0.5)
    assert_close(select(ifca.models, 0), fedavg.params)


def test_first_models_differ_and_a_model_that_nobody_chooses_stays():
    ifca = make("ifca", clusters=8)
    fed = Vectorised(ifca, population())
    before = ifca.init(fed)
    after = ifca.round(before, 0, fed)
    assert len(before.models["1.weight"].flatten(1).unique(dim=0)) == 8
    idle = [c for c in range(8) if c not in after.choices]
    assert idle
    assert_same_bits(select(after.models, torch.tensor(idle)), select(before.models, torch.tensor(idle)))


def test_a_cluster_is_the_mean_of_those_who_chose_it_by_rows():
    ifca = make("ifca")
    fed, twin = (Vectorised(ifca, population()) for _ in range(2))
    before = ifca.init(fed)
    after = ifca.round(before, 0, fed)
    replies = twin.run(ifca.train, twin.clients, ifca.offer(before, twin.clients, twin))
    for c in after.choices.unique().tolist():
        chose = (after.choices == c).nonzero()[:, 0]
        share = (fed.sizes[chose] / fed.sizes[chose].sum())[:, None, None]
        wanted = (share * replies.stack("params")["1.weight"][chose]).sum(0)
        torch.testing.assert_close(after.models["1.weight"][c], wanted)


def test_test_rows_do_not_choose():
    people = population()
    y = people.y.clone()
    y[torch.cat(people.test)] = 0
    (a, _), (b, _) = (fit(make("ifca"), population=p, rounds=2) for p in (people, replace(people, y=y)))
    assert torch.equal(a.choices, b.choices)
    assert_same_bits(a.models, b.models)


@pytest.mark.parametrize("clusters", [1, 3])
def test_the_ledger_equals_the_formula(clusters):
    _, fed = fit(make("ifca", clusters=clusters), population=population(), rounds=4, fraction=0.5)
    participants, choice = 6 * 4, 8  # bytes of a cluster's number
    wanted = 4 * (clusters + 1) * participants * small_net().parameters() + choice * participants
    assert method_bytes(fed.ledger) == wanted


@pytest.mark.filterwarnings("ignore:.* looks for clusters after")
def test_weight_sharing_starts_as_fedavg_and_then_trains_last_layers_only():
    shared = make("ifca", warm_rounds=2)
    warm, _ = fit(shared, population=population(), rounds=2, fraction=0.5)
    fedavg, _ = fit(make("fedavg"), population=population(), rounds=2, fraction=0.5)
    assert_close(select(warm.models, 0), fedavg.params)
    state, fed = fit(shared, population=population(), rounds=5, fraction=0.5)
    assert set(state.models) == {"3.weight", "3.bias"} and len(state.models["3.bias"]) == 2
    assert_close(state.body, {name: fedavg.params[name] for name in ("1.weight", "1.bias")})
    calls = [line for line in fed.ledger.rounds if line[1] == "train"]
    assert [down for *_, down, _ in calls] == [6 * 4 * (BODY + HEAD)] * 2 + [6 * 4 * (BODY + 2 * HEAD)] * 3
    assert [up for *_, up in calls] == [6 * (4 * (BODY + HEAD) + 8)] * 2 + [6 * (4 * HEAD + 8)] * 3


def test_late_and_holdout_clients_choose_their_kins_model():
    roles = tuple(Role(holdout=i in (2, 3), joins=5 if i in (4, 5) else 0) for i in range(12))
    ifca = IFCA(net(), LOCAL, least_share=0.35)
    experiment = Experiment(ifca, renamed(roles=roles), rounds=12)
    summary = experiment.run()
    assert summary["accuracy"] == summary["accuracy_unseen"] == 1
    assert experiment.state.choices[[2, 3]].tolist() == [-1, -1] and summary["ari"] == 1


def test_those_who_come_after_training_are_placed_by_their_choice():
    roles = tuple(Role(joins=LATER if i in (2, 3) else 0) for i in range(12))
    ifca = IFCA(net(), LOCAL, least_share=0.35)
    experiment = Experiment(ifca, renamed(roles=roles), rounds=12)
    summary = experiment.run()
    assert summary["ari"] == 1 and (experiment.state.choices >= 0).all()
    assert int(experiment.fed.ledger.down["choose"][2]) == 2 * 4 * net().parameters()


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="got 0"):
        make("ifca", clusters=0)
    with pytest.raises(ConfigError, match="least_share"):
        make("ifca", clusters=3, least_share=0.4)


def test_more_clusters_than_clients_are_refused():
    with pytest.raises(ConfigError, match=r"clusters must be 1\.\.6, the clients that train, got 7"):
        fit(make("ifca", clusters=7))
