"""Test samples that several clients have: one evaluation of each, and the scores of each client."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch.testing import assert_close

from kinfed.client_tasks import count_predictions, evaluate, evaluate_all
from kinfed.data import Population
from kinfed.data.population import Change, Role
from kinfed.engines import Sequential, Vectorised, shared_outputs
from kinfed.experiment import Experiment
from kinfed.federation import Offer
from kinfed.methods import CFL, FLSC, IFCA, Auto, Ditto, FedAvg, Local, PerFedAvg, PFedMe
from kinfed.models import Model, make_model
from kinfed.params import stack
from kinfed.training import LocalTraining

TASKS = (evaluate, evaluate_all, count_predictions)
MODEL = make_model("mlp_200", (6,), 3)
TRAINING = LocalTraining(1, 4, 0.1)
SHARED = (range(40, 52), range(44, 56), range(40, 56, 2), (), (55, 40, 48), range(42, 54), range(50, 39, -1))


def people(tests=SHARED, **more) -> Population:
    """Clients with training samples of their own, and these test samples of a common pool."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 6, generator=draw), torch.randint(3, (60,), generator=draw)
    train = torch.arange(5 * len(tests)).split(5)
    return Population(x, y, train, tuple(torch.tensor(list(own), dtype=torch.long) for own in tests), 3, **more)


@pytest.fixture
def evaluated(monkeypatch):
    """The pairs of a model and a sample that were evaluated for all clients together."""
    pairs, real = [], shared_outputs.evaluate_pairs

    def note(model, used, samples, *rest):
        known = real(model, used, samples, *rest)
        pairs.append(0 if known is None else sum(map(len, samples)))
        return known

    monkeypatch.setattr(shared_outputs, "evaluate_pairs", note)
    return pairs


def ask(method, offer, population=None, task=evaluate, cohort=None, engine=Vectorised, **settings):
    fed = engine(method, population or people(), **settings)
    return fed.run(task, fed.clients if cohort is None else cohort, offer).send


def one_model() -> Offer:
    return Offer(shared={"params": MODEL.init()})


def cluster_models(*pick: int) -> Offer:
    return Offer(each={"params": stack([MODEL.init(seed) for seed in range(3)])}, pick=torch.tensor(pick))


def offer_all() -> Offer:
    return Offer(shared={"models": stack([MODEL.init(seed) for seed in range(2)]), "body": {}})


CASES = {
    "one model": (FedAvg(MODEL), one_model(), 16),
    "a model of each cluster": (FedAvg(MODEL), cluster_models(0, 0, 2, 2, 0, 2, 0), 16 + 14),
    "a selected model": (IFCA(MODEL, TRAINING), offer_all(), 2 * 16),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", CASES)
def test_clients_have_the_scores_that_they_have_alone(name, task, evaluated, monkeypatch):
    method, offer, pairs = CASES[name]
    monkeypatch.setattr(shared_outputs, "OFTEN", 1)
    monkeypatch.setattr(shared_outputs, "AT_ONCE", 5)
    together = ask(method, offer, task=task)
    assert evaluated == [pairs]
    assert_close(together, ask(method, offer, task=task, engine=Sequential), rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(shared_outputs, "OFTEN", 100)
    alone = ask(method, offer, task=task)
    assert len(evaluated) == 1
    assert_close(together, alone, rtol=1e-5, atol=1e-6)
    exact = {"metric", "samples", "known", "counts"} & together.keys()
    assert all(torch.equal(together[field], alone[field]) for field in exact)
    assert all(together[field].dtype == alone[field].dtype for field in together)


@pytest.mark.parametrize("name", CASES)
def test_clients_whose_test_samples_change_have_the_scores_of_the_new_ones(name, evaluated, monkeypatch):
    method, offer, _ = CASES[name]
    monkeypatch.setattr(shared_outputs, "OFTEN", 1)
    who = torch.arange(len(SHARED))
    before = people()
    change = Change(1, who, before.train, tuple(torch.arange(46 + i, 60) for i in range(len(SHARED))))
    ends = []
    for engine in (Vectorised, Sequential):
        fed = engine(method, replace(before, changes=(change,)))
        for t in range(2):
            fed.begin(t)
            ends.append(fed.run(evaluate, fed.clients, offer).send)
    assert len(evaluated) == 2 and all(evaluated)
    assert_close(ends[0], ends[2], rtol=1e-5, atol=1e-6)
    assert_close(ends[1], ends[3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", CASES)
def test_no_bit_depends_on_blocks_and_workers(name, task, evaluated, monkeypatch):
    method, offer, _ = CASES[name]
    monkeypatch.setattr(shared_outputs, "OFTEN", 1)
    whole = ask(method, offer, task=task)
    for settings in ({"block": 1}, {"block": 2, "workers": 2}, {"block": 3}):
        parts = ask(method, offer, task=task, **settings)
        assert all(torch.equal(parts[field], whole[field]) for field in whole), settings
    assert all(evaluated)


def test_the_first_evaluation_and_those_after_it_have_the_same_bits(evaluated):
    fed = Vectorised(FedAvg(MODEL), people())
    first, second = (fed.run(evaluate, fed.clients, one_model())["loss"] for _ in range(2))
    assert torch.equal(first, second)
    assert evaluated == [16, 16]
    assert fed.outputs is None, "outputs are held no longer than a task runs"


def test_clients_evaluate_their_own_where_few_samples_are_shared(evaluated):
    apart = people(tests=(range(40, 44), range(43, 48), range(48, 52)))
    ask(FedAvg(MODEL), one_model(), apart)
    each = stack([MODEL.init(seed) for seed in range(7)])
    ask(FedAvg(MODEL), Offer(each={"params": each}))  # a model of each client
    ask(FedAvg(MODEL), cluster_models(0, 1, 2, 0, 0, 1, 2))  # 59 samples of 16 + 13 + 16 pairs
    assert evaluated == []


def test_clients_evaluate_their_own_where_outputs_take_too_much_memory(evaluated, monkeypatch):
    alone = ask(FedAvg(MODEL), one_model(), engine=Sequential)
    monkeypatch.setattr(shared_outputs, "LARGEST", 16 * 3 * 4 - 1)
    assert_close(ask(FedAvg(MODEL), one_model()), alone)
    monkeypatch.setattr(shared_outputs, "LARGEST", 16 * 3 * 4)
    assert_close(ask(FedAvg(MODEL), one_model()), alone)
    assert evaluated == [0, 16]


class Noisy(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x + torch.rand_like(x))


def test_a_network_that_draws_when_it_is_evaluated_is_not_shared(evaluated):
    model = Model(lambda: Noisy(6, 3), classes=3)
    with pytest.warns(UserWarning, match="sequentially"):
        ask(FedAvg(model), Offer(shared={"params": model.init()}))
    assert evaluated == [0]


def test_clients_without_test_samples_alone_have_no_scores(evaluated):
    scores = ask(FedAvg(MODEL), one_model(), cohort=torch.tensor([3]))
    assert scores["samples"].tolist() == scores["metric"].tolist() == scores["loss"].tolist() == [0]
    assert evaluated == []


def test_a_sample_that_no_client_of_a_model_has_is_not_evaluated():
    population = people(tests=(range(40, 44), range(40, 44), (), range(50, 54), range(50, 54)))
    population.x[0] = population.x[40] = torch.nan
    scores = ask(FedAvg(MODEL), cluster_models(0, 0, 1, 1, 1), population)
    assert scores["loss"][2:].isfinite().all()
    assert scores["loss"][2] == 0


@dataclass(frozen=True)
class Halved(FedAvg):
    def personalise(self, client, offer):
        return {name: w / 2 for name, w in super().personalise(client, offer).items()}


@dataclass(frozen=True)
class HalvedInPlace(FedAvg):
    def personalise(self, client, offer):
        return {name: w.mul_(0.5) for name, w in super().personalise(client, offer).items()}


def test_a_method_that_writes_into_what_it_is_served_changes_no_model_of_the_server(evaluated):
    method, offer = HalvedInPlace(MODEL), one_model()
    before = {name: w.clone() for name, w in offer.shared["params"].items()}
    assert not shared_outputs.may_share(method)
    with pytest.raises(RuntimeError, match="written-to tensor"):
        ask(method, offer)
    assert all(torch.equal(w, before[name]) for name, w in offer.shared["params"].items())
    assert evaluated == []


@dataclass(frozen=True)
class HalvedSelected(IFCA):
    def personalise(self, client, offer):
        return {name: w / 2 for name, w in super().personalise(client, offer).items()}


@dataclass(frozen=True)
class SelectsFirst(IFCA):
    def select_offered(self, client, offer):
        return torch.zeros((), dtype=torch.long)


def test_models_that_are_not_used_as_served_are_told_from_others():
    own = (
        Local(MODEL),
        Ditto(MODEL),
        PerFedAvg(MODEL, adapt_epochs=1),
        FLSC(MODEL),
        Halved(MODEL),
        HalvedSelected(MODEL),
    )
    as_served = FedAvg(MODEL), CFL(MODEL), IFCA(MODEL), SelectsFirst(MODEL), PFedMe(MODEL, adapt_epochs=0), Auto(MODEL)
    assert [shared_outputs.may_share(method) for method in own] == [False] * len(own)
    assert [shared_outputs.may_share(method) for method in as_served] == [True] * len(as_served)


def test_clients_that_change_the_model_they_select_evaluate_their_own(evaluated):
    method = HalvedSelected(MODEL, TRAINING)
    assert_close(ask(method, offer_all()), ask(method, offer_all(), engine=Sequential), rtol=1e-5, atol=1e-6)
    assert evaluated == []


@pytest.mark.parametrize("method", [Local(MODEL, TRAINING), Ditto(MODEL, TRAINING), FLSC(MODEL, TRAINING)])
def test_clients_with_models_of_their_own_evaluate_them(method, evaluated):
    Experiment(method, people(), rounds=2).run()
    assert evaluated == []


@pytest.mark.parametrize("method", [FedAvg(MODEL, TRAINING), IFCA(MODEL, TRAINING), CFL(MODEL, TRAINING, after=1)])
def test_late_clients_have_the_scores_that_they_have_alone(method, evaluated, monkeypatch):
    monkeypatch.setattr(shared_outputs, "OFTEN", 1)
    roles = (Role(),) * 5 + (Role(joins=1), Role(holdout=True))
    runs = [Experiment(method, people(roles=roles), rounds=3, engine=engine) for engine in ("vectorised", "sequential")]
    for run in runs:
        run.run()
    ours, theirs = (run.scores for run in runs)
    assert any(evaluated)
    assert_close(ours.main, theirs.main, equal_nan=True)
    assert_close(ours.loss, theirs.loss, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert ours.samples.tolist() == [12, 12, 8, 0, 3, 12, 12 - 1]


class Killed:
    """An observer in whose second round the run is killed."""

    def on_start(self, rounds, done): ...

    def on_round(self, result):
        if result.round == 2:
            raise KeyboardInterrupt

    def on_end(self, summary): ...


@pytest.mark.parametrize("method", [FedAvg(MODEL, TRAINING), CFL(MODEL, TRAINING, after=1)])
def test_a_killed_run_goes_on_with_the_same_bits(method, evaluated, tmp_path):
    def experiment(name, **more):
        return Experiment(method, people(), rounds=4, checkpoint=tmp_path / name, checkpoint_every=1, **more)

    whole = experiment("whole")
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        experiment("killed", observers=[Killed()]).run()
    rest = experiment("killed")
    rest.run(resume=True)
    assert any(evaluated)
    assert torch.equal(rest.scores.loss[:3], whole.scores.loss[:3])
    assert rest.history[-1] == whole.history[-1]


def test_ifca_with_shared_layers_completes_each_last_layer(evaluated, monkeypatch):
    monkeypatch.setattr(shared_outputs, "OFTEN", 1)
    models = [MODEL.init(seed) for seed in range(2)]
    last = list(models[0])[-2:]
    body = {name: w for name, w in models[0].items() if name not in last}
    heads = stack([{name: own[name] for name in last} for own in models])
    offer = Offer(shared={"models": heads, "body": body})
    assert_close(ask(IFCA(MODEL), offer), ask(IFCA(MODEL), offer, engine=Sequential), rtol=1e-5, atol=1e-6)
    assert evaluated == [32]


def test_the_order_of_samples_is_each_clients_own():
    population = people(tests=[torch.randperm(20).add(40).tolist() for _ in range(4)])
    odd = replace(population, y=torch.arange(60) % 3)
    counts = ask(FedAvg(MODEL), one_model(), odd, count_predictions)["counts"]
    assert all(torch.equal(counts[0], other) for other in counts[1:]), "the same samples, whatever their order"
