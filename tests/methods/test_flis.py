from dataclasses import replace

import pytest
import torch

from kinfed.data import LATER, Role
from kinfed.data.population import NO_SAMPLES
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ConfigError, RoleError
from kinfed.experiment import Experiment
from kinfed.federation import Offer
from kinfed.learning_tasks import MultiLabel, NextToken, Regression
from kinfed.methods import FLISDC, FLISHC
from kinfed.methods.flis import (
    AT_ONCE,
    as_predictions,
    compare_predictions,
    inference_similarity,
    search_beta,
    server_samples,
)
from kinfed.metrics import method_bytes
from kinfed.metrics.scores import score_clients
from kinfed.params import count, select, stack
from tests.methods.planted import LOCAL, net, renamed
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, fit, same_clusters, small_net
from tests.test_learning_tasks import model_of, samples_of

W = 4 * small_net().parameters()  # bytes of a model
LONG = replace(LOCAL, epochs=20)  # predictions tell groups apart only once models have learnt something
BOTH = ("flis_dc", "flis_hc")


def swapped(**more):
    """Planted groups that swap labels, and a server that owns the last client's rows."""
    whole = renamed(clients=13, **more)
    public = torch.cat([whole.train[12], whole.test[12]])
    return replace(
        whole, train=whole.train[:12], test=whole.test[:12], true_clusters=whole.true_clusters[:12], public=public,
        roles=whole.roles[:12],
    )  # fmt: skip


def served(method, **settings):
    """A federation, the state after a round with everybody, and what they trained, by a twin of the federation."""
    fed, twin = (Vectorised(method, population(), **settings) for _ in range(2))
    before = method.init(fed)
    return fed, before, method.round(before, 0, fed), twin


def dc_offer(state):
    return Offer(shared={"models": state.models})


def test_similarity_is_the_agreement_rate_of_named_classes():
    named = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 0, 1], [0, 1, 1, 2, 1], [1, 2, 0, 1, 0]]), 3).bool()
    wanted = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.double)
    assert torch.equal(compare_predictions(named, named), wanted)


def test_similarity_of_probabilities_is_the_cosine_of_whole_matrices():
    some = torch.tensor([[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5]]])
    between = (0.5 + 0.5) / 1.5  # dot product 1, both of squared length 1.5
    wanted = torch.tensor([[1.0, between], [between, 1.0]], dtype=torch.double)
    torch.testing.assert_close(compare_predictions(some, some), wanted)


@pytest.mark.parametrize("soft", [False, True])
def test_identical_models_have_similarity_one_and_others_less(soft):
    model = small_net()
    x = torch.randint(0, 255, (600, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    alike = inference_similarity(model, stack([model.init(0), model.init(0), model.init(1)]), x, soft)
    torch.testing.assert_close(alike[:2, :2], torch.ones(2, 2, dtype=torch.double))
    assert alike[0, 2] == alike[1, 2] < 1
    if not soft:
        said = [model.logits(model.init(seed), x).argmax(1) for seed in (0, 1)]
        assert alike[0, 2] == (said[0] == said[1]).double().mean()


def test_how_many_samples_are_compared_at_once_changes_no_similarity(monkeypatch):
    model, x = small_net(), torch.randint(0, 255, (600, 1, 8, 8), dtype=torch.uint8)
    models = stack([model.init(seed) for seed in range(4)])
    whole = inference_similarity(model, models, x, soft=True)
    monkeypatch.setitem(AT_ONCE, "cpu", 7)
    torch.testing.assert_close(inference_similarity(model, models, x, soft=True), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("task", [Regression(), MultiLabel(), NextToken()], ids=lambda task: type(task).__name__)
@pytest.mark.parametrize("kind", [FLISHC, FLISDC])
def test_every_task_is_compared_by_what_it_predicts(kind, task):
    whole = samples_of(task, (60,) * 5)  # clients 0, 2 and 4, and 1 and 3, have opposite targets
    public = torch.cat([whole.train[4], whole.test[4]])
    population = replace(whole, train=whole.train[:4], test=whole.test[:4], public=public)
    method = kind(model_of(task, whole.classes), replace(LOCAL, epochs=20, lr=0.1), beta=0.8)
    state, _ = fit(method, population=population, rounds=1, fraction=1.0)
    assert same_clusters(method.cluster_assignment(state), torch.tensor([0, 1, 0, 1]))


def test_labels_and_tokens_are_compared_one_by_one_and_numbers_by_their_cosine():
    labels = torch.tensor([[1.0, -1.0], [2.0, 3.0]])
    shown = as_predictions(MultiLabel(), labels, soft=False)
    assert shown.tolist() == [[True, False], [False, True], [True, False], [True, False]]
    other = as_predictions(MultiLabel(), -labels, soft=False)
    assert compare_predictions(torch.stack([shown]), torch.stack([shown, other])).tolist() == [[1.0, 0.0]]
    tokens = torch.zeros(2, 3, 4)
    assert as_predictions(NextToken(), tokens, soft=True).shape == (6, 4)
    numbers = torch.tensor([[3.0], [4.0]])
    alike = compare_predictions(numbers[None], torch.stack([2 * numbers, -numbers, torch.tensor([[4.0], [-3.0]])]))
    torch.testing.assert_close(alike, torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.double))


def test_beta_zero_gives_one_and_the_same_mean_of_the_participants():
    dc, _ = fit(make("flis_dc", beta=0.0), population=population(), rounds=1, fraction=0.5)
    fedavg, _ = fit(make("fedavg"), population=population(), rounds=1, fraction=0.5)
    assert count(dc.models) == 6
    for m in range(6):
        assert_close(select(dc.models, m), fedavg.params)


def test_beta_above_one_gives_singletons():
    dc = make("flis_dc", beta=1.1)
    _, before, after, twin = served(dc)
    trained = twin.run(dc.train, twin.clients, dc_offer(before)).stack("params")
    assert_close(after.models, trained, atol=1e-6)
    assert torch.equal(after.related, torch.eye(12, dtype=torch.bool))
    assert dc.cluster_assignment(after).unique().numel() == 12


def test_a_dynamic_cluster_is_the_mean_of_those_alike_by_rows():
    dc = make("flis_dc", beta=0.7)
    fed, before, after, twin = served(dc)
    trained = twin.run(dc.train, twin.clients, dc_offer(before)).stack("params")
    alike = inference_similarity(dc.model, trained, server_samples(fed)) >= 0.7
    assert not alike.all() and alike.sum() > 12
    assert torch.equal(after.related, alike)
    for i in range(12):
        share = (fed.sizes[alike[i]] / fed.sizes[alike[i]].sum())[:, None, None]
        wanted = (share * trained["1.weight"][alike[i]]).sum(0)
        torch.testing.assert_close(after.models["1.weight"][i], wanted)


@pytest.mark.parametrize("variant", ["paper", "code"])
@pytest.mark.parametrize("people", [population, swapped])
def test_planted_clusters_are_found(people, variant):
    hc = FLISHC(net() if people is swapped else small_net(), LONG, variant=variant)
    fed = Vectorised(hc, people())
    state = hc.init(fed)
    assert same_clusters(hc.cluster_assignment(state), fed.true_clusters)
    assert_same_bits(select(state.served.models, 0), hc.model.init())  # reset
    assert_same_bits(select(state.served.models, 1), hc.model.init())


def test_dynamic_clusters_find_planted_clusters():
    dc = make("flis_dc", local=LONG, beta=0.6)
    state, fed = fit(dc, population=population(), rounds=3)
    assert same_clusters(dc.cluster_assignment(state), fed.true_clusters)


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
def test_a_merge_at_one_minus_beta_is_made(linkage):
    alike = torch.tensor([[1.0, 0.6, 0.1], [0.6, 1.0, 0.3], [0.1, 0.3, 1.0]], dtype=torch.double)
    height = {"average": 0.2, "complete": 0.1, "single": 0.3}[linkage]  # similarity at which the third joins

    def clusters(beta):
        merged = make("flis_hc", beta=beta, linkage=linkage).cluster(torch.arange(len(alike)), alike)[1]
        return len(merged.clusters().unique())

    assert [clusters(0.61), clusters(0.6), clusters(height + 0.01), clusters(height - 1e-9)] == [3, 2, 2, 1]


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
def test_beta_is_searched_by_the_silhouette_of_the_similarities(linkage):
    alike = torch.full((6, 6), 0.05, dtype=torch.double)
    alike[:3, :3] = alike[3:, 3:] = 0.2  # two clusters, far below the default β
    alike.fill_diagonal_(1.0)
    beta = search_beta(alike, linkage)
    assert 0.05 < beta <= 0.2
    method = FLISHC(net(), LOCAL, beta_by="silhouette", linkage=linkage)
    related, _ = method.cluster(torch.arange(6), alike)
    assert related.matrix().tolist() == (alike >= 0.2).tolist()
    assert search_beta(torch.eye(6, dtype=torch.double), linkage) == 0.0  # no clusters: all together


def test_hierarchy_with_beta_zero_is_fedavg_and_above_one_is_local():
    fedavg, _ = fit(make("fedavg"), population=population(), fraction=0.5)
    one, _ = fit(make("flis_hc", beta=0.0), population=population(), fraction=0.5)
    assert count(one.served.models) == 1
    assert_close(select(one.served.models, 0), fedavg.params)
    many, fed = fit(make("flis_hc", beta=1.1), population=population(), rounds=2)
    assert count(many.served.models) == 12
    own = {name.removeprefix("params/"): w for name, w in fed.memory.items() if name != "owns"}
    assert_close(select(many.served.models, many.served.assignment), own)


def test_the_codes_variant_hears_stale_neighbours():
    hc = make("flis_hc", variant="code", beta=0.0)
    state, fed = fit(hc, population=population(), rounds=1, fraction=0.5)
    slots = state.served.last_trained["1.weight"]
    idle = (slots == hc.model.init()["1.weight"]).flatten(1).all(1)
    assert int(idle.sum()) == 6
    wanted = ((fed.sizes / fed.sizes.sum())[:, None, None] * slots).sum(0)
    torch.testing.assert_close(state.served.models["1.weight"][0], wanted)


def test_the_ledger_of_dynamic_clusters_equals_the_formula():
    _, fed = fit(make("flis_dc"), population=population(), rounds=4, fraction=0.5)
    n = 6
    assert method_bytes(fed.ledger) == 2 * n * W + 3 * n * (n + 1) * W  # the first round offers one model


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_the_ledger_of_the_hierarchy_equals_the_formula(variant):
    _, fed = fit(make("flis_hc", variant=variant), population=population(), rounds=4, fraction=0.5)
    assert method_bytes(fed.ledger) == 2 * 12 * W + 4 * 2 * 6 * W


@pytest.mark.parametrize("name", BOTH)
def test_a_client_is_scored_with_what_it_trained_last_or_with_the_first_model(name):
    method = make(name)
    experiment = Experiment(method, population(), fraction=0.25, rounds=2)
    experiment.run()
    fed, first = experiment.fed, method.model.init()
    asked = fed.ledger.up["train"] > 0
    own = {key.removeprefix("params/"): w for key, w in fed.memory.items() if key != "owns"}
    assert 3 <= int(asked.sum()) <= 6
    for client in range(12):
        same = all(torch.equal(own[key][client], first[key]) for key in first)
        assert same != bool(asked[client])
    accuracy = score_clients(method, experiment.state, fed, adapt=False).main
    for client in range(12):
        at = fed.test[client]
        said = method.model.logits(select(own, client), fed.x[at]).argmax(1)
        assert float(accuracy[client]) == pytest.approx(float((said == fed.y[at]).double().mean()))


@pytest.mark.parametrize("name", BOTH)
def test_test_rows_choose_only_when_asked_by_name(name):
    people = population(roles=tuple(Role(holdout=i == 2, joins=LATER if i == 3 else 0) for i in range(12)))
    y = people.y.clone()
    y[torch.cat(people.test)] = (y[torch.cat(people.test)] + 1) % 3
    other = replace(people, y=y)
    option = {"newcomers": "loss"} if name == "flis_hc" else {}

    def memory(select_on, people):
        method = make(name, select_on=select_on, beta=1.1, **option)
        state, fed = fit(method, population=people, rounds=3)
        return fed.memory | ({"assignment": state.served.assignment} if name == "flis_hc" else {})

    assert_same_bits(memory("train_loss", people), memory("train_loss", other))
    a, b = (memory("test_accuracy", p) for p in (people, other))
    assert any(not torch.equal(a[key], b[key]) for key in a)


def test_the_choice_is_the_least_loss_or_the_most_hits():
    people = population()
    for select_on, part in (("train_loss", "train"), ("test_accuracy", "test")):
        dc = make("flis_dc", select_on=select_on)
        state, fed = fit(dc, population=people, rounds=2)
        fed.run(dc.choose, fed.everyone, dc_offer(state))
        for client in range(12):
            at = getattr(fed, part)[client]
            logits = [dc.model.logits(select(state.models, m), fed.x[at]) for m in range(12)]
            hits = [int((said.argmax(1) == fed.y[at]).sum()) for said in logits]
            losses = [-float(torch.nn.functional.cross_entropy(said, fed.y[at])) for said in logits]
            wanted = int(torch.tensor(hits if part == "test" else losses).argmax())
            torch.testing.assert_close(fed.memory["params/1.weight"][client], state.models["1.weight"][wanted])


@pytest.mark.parametrize("settings", [{"variant": "paper"}, {"variant": "code"}, {"newcomers": "loss"}])
def test_late_and_holdout_clients_join_their_kin(settings):
    roles = tuple(Role(holdout=i in (2, 3), joins={4: 4, 5: 4, 6: LATER, 7: LATER}.get(i, 0)) for i in range(13))
    hc = FLISHC(net(), LONG, **settings)
    experiment = Experiment(hc, swapped(roles=roles), rounds=8)
    summary = experiment.run()
    assert summary["ari"] == 1
    assert summary["accuracy"] == summary["accuracy_unseen"] == 1


def test_strangers_of_dynamic_clusters_use_one_of_the_last_cluster_models():
    roles = tuple(Role(holdout=i == 2, joins=LATER if i == 3 else 0) for i in range(12))
    dc = make("flis_dc")
    experiment = Experiment(dc, population(roles=roles), fraction=0.5, rounds=4)
    summary = experiment.run()
    own, last = experiment.fed.memory["params/1.weight"], experiment.state.models["1.weight"]
    assert all((own[i] == last).flatten(1).all(1).any() for i in (2, 3))
    assert 0 <= summary["accuracy_unseen"] <= 1
    assert experiment.fed.ledger.down["choose"][3] == 5 * W  # once, all five models


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
def test_the_codes_variant_runs_on_both_engines_with_soft_predictions(engine):
    roles = tuple(Role(holdout=i == 2, joins={4: 2, 5: LATER}.get(i, 0)) for i in range(12))
    hc = make("flis_hc", variant="code", soft=True, beta=0.9)
    state, fed = fit(hc, engine, population(roles=roles), fraction=0.5)
    assert bool((state.served.assignment >= 0).all()) and not fed.rejected


@pytest.mark.parametrize("name", BOTH)
def test_without_server_rows_or_labels_it_says_what_to_do(name):
    with pytest.raises(ConfigError, match=r"set data\.public"):
        fit(make(name), population=replace(population(), public=NO_SAMPLES))
    with pytest.raises(ConfigError, match=r"got -0\.1"):
        make(name, beta=-0.1)
    with pytest.raises(RoleError, match="FLIS"):
        fit(make(name), population=population(roles=tuple(Role(labelled=i != 7) for i in range(12))))
