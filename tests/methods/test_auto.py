"""Auto: what is found, what clients report of held-out samples, and what follows from it."""

from dataclasses import replace

import pytest
import torch

from kinfed.aggregation import DEPLOYED
from kinfed.client import Samples
from kinfed.data import OwnSettings, build_population, from_arrays, load
from kinfed.data.partitions import IID, Dirichlet
from kinfed.data.population import Role
from kinfed.data.shifts import LabelPermutation, Rotation
from kinfed.engines import Vectorised
from kinfed.errors import ConfigError, NetworkError
from kinfed.experiment import Evaluation, Experiment
from kinfed.learning_tasks import Classification, LearningTask, MultiLabel, Regression
from kinfed.methods import Auto, FedAvg
from kinfed.methods.cluster_merging import pair_nearest, share_models
from kinfed.methods.cluster_models import ClusterModels
from kinfed.methods.held_out import HITS, LIKELY, Evidence, count_members, explain_doubts, explain_own, explain_personal
from kinfed.methods.signature_tasks import find_nearest_served
from kinfed.models import make_model
from kinfed.params import interpolate, one_hot, repeat, select
from kinfed.ranges import Facts
from kinfed.signatures import PartMeans
from kinfed.training import LocalTraining
from tests.methods.registry import LOCAL
from tests.problems import small_net

LAST = Evaluation(every=99, metrics="main", signatures="none")  # after the last round alone


def evidence_of(*hits: tuple[float, float], clients: int = 3) -> Evidence:
    """Of one model: what five candidates classified rightly, in replies of equal clients."""
    reply = torch.tensor([*hits, (20, 4)], dtype=torch.float)[None].expand(clients, -1, -1)
    return Evidence.none(1, torch.device("cpu")).add(reply, torch.zeros(clients, dtype=torch.long))


def test_every_third_sample_is_held_out_and_the_one_before_stands_in_for_it():
    samples = Samples(torch.zeros(9, 1), torch.zeros(9), torch.arange(8), torch.tensor(7))
    rest, held = samples.hold_out(3)
    assert rest.index.tolist() == [0, 1, 1, 3, 4, 4, 6, 7] and int(rest.size) == 7, "7 is padding"
    assert held.index.tolist() == [2, 5] and int(held.size) == 2


def test_a_candidate_must_gain_both_ways():
    five = evidence_of((5, 1), (6, 1), (7, 2), (7, 0.5), (6, 2), clients=5)
    assert five.choose().tolist() == [2], "10 and 5 are more than 2 · √20 = 8.9 and 2 · √5 = 4.5"
    assert evidence_of((5, 1), (9, 0.9), (9, 1), (4, 2), (5, 3), clients=5).choose().tolist() == [0]
    three = evidence_of((5, 1), (6, 1), (7, 2), (7, 0.5), (6, 2))
    assert three.choose().tolist() == [0] and three.choose(LIKELY).tolist() == [2], "6 of √12 = 3.5"


def test_the_candidate_is_taken_that_gains_most_in_the_worse_way():
    hits = ((5, 1), (8, 1.4), (9, 1.3), (11, 1.2), (5, 1))  # of 20 and 4: 15 and 10 %, 20 and 7.5 %, 30 and 5 %
    assert evidence_of(*hits, clients=5).choose().tolist() == [1]


def test_a_gain_within_chance_is_none():
    hits = torch.tensor([[[5.0, 1.0], [9.0, 2.0]], [[5.0, 1.0], [2.0, 0.5]]])
    hits = torch.cat([hits, hits[:, :1].expand(-1, 3, -1), torch.full((2, 1, 2), 20.0)], 1)
    found = Evidence.none(1, torch.device("cpu")).add(hits, torch.zeros(2, dtype=torch.long))
    assert found.gain[0, 1].tolist() == [1.0, 0.5] and found.square[0, 1].tolist() == [25.0, 1.25]
    assert found.choose().tolist() == [0] and found.loses(1).tolist() == [False]


def test_a_model_loses_beyond_two_standard_errors():
    assert evidence_of((5, 1), (1, 1), (5, 1), (5, 1), (5, 1)).loses(1).tolist() == [False], "12 of √48 = 6.93"
    gain, square = torch.tensor([[[0.0, 0.0], [-20.0, 0.0]]]), torch.tensor([[[0.0, 0.0], [80.0, 0.0]]])
    many = Evidence(gain, square, torch.ones(1, 2), torch.ones(1))
    assert many.loses(1).tolist() == [True], "20 is more than 2 · √80 = 17.9"


def test_a_cluster_of_few_must_win_and_one_of_many_must_not_lose():
    rest = [(0, 0)] * 3
    mixed, wins = evidence_of((5, 1), (6, 0.5), *rest), evidence_of((5, 1), (9, 2), *rest, clients=9)
    loses = evidence_of((9, 2), (5, 1), *rest, clients=9)
    few, many = torch.tensor([7]), torch.tensor([8])
    assert [bool(each.keeps_own(few)) for each in (mixed, wins, loses)] == [False, True, False]
    frequent = evidence_of((5, 1), (15, 1.9), *rest, clients=9)  # half of all samples, a quarter by labels
    assert not frequent.keeps_own(few) and evidence_of((5, 1), (15, 2), *rest, clients=9).keeps_own(few)
    assert [bool(each.keeps_own(many)) for each in (mixed, wins, loses)] == [True, True, False]
    assert count_members(torch.tensor([1, -1, 0, 1]), 3).tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(("gained", "keeps"), [(0.0, [False, False]), (1.0, [False, True])])
def test_a_cluster_that_does_not_gain_stays_where_all_together_lose(gained, keeps):
    """The common model is as good as it is because all train it; alone, one more cluster would train its own."""
    common, own = torch.tensor([9.0, 5.0]), torch.tensor([5.0, 5.0 + gained])
    reply = torch.stack([common, own, common, common, common, common + 9], 1)[..., None].repeat(9, 1, 2)
    found = Evidence.none(3, torch.device("cpu")).add(reply, torch.tensor([1, 2]).repeat(9))
    assert found.keeps_own(torch.tensor([0, 9, 9])).tolist()[1:] == keeps, "36 less than 9, of 2 · √(9 · 16 + 9)"


def test_few_clients_are_never_taken_for_alike():
    five = build_population(load("digits"), IID(5), 0)
    method = Auto(make_model("mlp_200", (1, 8, 8), 10), LocalTraining(epochs=1))
    run = Experiment(method, five, rounds=4)
    run.run()
    assert run.state.plan.tolist() == [0, 0, 2], "samples are held out, and judge personalised models"
    assert "One cluster: 5 clients are too few for signatures to decide" in method.diagnosis(run.state)


def test_models_are_interpolated():
    half = interpolate({"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}, 0.25)
    assert half["w"].tolist() == [1.5]


@pytest.mark.parametrize(
    "rounds, clusters, plan",
    [
        (50, 5, [10, 13, 25]),
        (50, 2, [10, 10, 25]),
        (50, 1, [0, 0, 25]),
        (50, 0, [0, 0, 0]),
        (4, 3, [2, 2, 2]),
    ],
)
def test_rounds_are_planned(rounds, clusters, plan):
    assert Auto(small_net(), LOCAL).make_plan(rounds, clusters).tolist() == plan


def test_planted_clusters_get_models_of_their_own_and_the_run_says_so():
    turned, model = build_population(load("digits"), IID(24), 0, shift=Rotation()), make_model("mlp_200", (1, 8, 8), 10)
    experiment = Experiment(Auto(model, LOCAL), turned, rounds=20)
    summary = experiment.run()
    assert summary["ari"] == 1 and summary["clusters"] == 4
    assert experiment.method.diagnosis(experiment.state).startswith("4 clusters, well separated, 4 with a model")


def test_one_reply_counts_for_no_more_than_others_where_clients_may_lie():
    """Four honest clients lose by α = 1; the fifth says that it gains all of a thousand samples."""
    honest, liar = [(5, 1)] * 4 + [(4, 0.5), (20, 4)], [(0, 0)] * 4 + [(1000, 1000)] * 2
    hits = torch.tensor([honest] * 4 + [liar], dtype=torch.float)
    models, none = torch.zeros(5, dtype=torch.long), Evidence.none(2, torch.device("cpu"))
    believed, limited = none.add(hits, models), none.add(hits, models, DEPLOYED)
    assert believed.gain[0, 4].tolist() == [996, 998] and limited.gain[0, 4].tolist() == [-3, -1.5]
    assert believed.total[0].tolist() == [1080, 1016] and limited.total[0].tolist() == [100, 20]
    small = torch.tensor([1, 1, 1, 0, 0])  # of three clients none is an outlier: all five are the measure
    assert none.add(hits.flip(0), small, DEPLOYED).gain[1, 4].tolist() == [-1, -0.5]


@pytest.mark.parametrize(("liars", "clients"), [(1, 4), (2, 6), (2, 8), (2, 16)])
def test_two_liars_in_a_small_cluster_decide_for_no_other(liars, clients):
    """They say that the common model is always right; honest clients of their cluster and of the other gain."""
    honest, liar = [(5, 1), (9, 3), *[(5, 1)] * 3, (20, 4)], [(20, 20), *[(0, 0)] * 4, (20, 20)]
    hits = torch.tensor([liar] * liars + [honest] * (clients - liars), dtype=torch.float)
    models = 1 + (torch.arange(clients) > liars).long()  # one honest client is in the liars' cluster
    found = Evidence.none(3, torch.device("cpu")).add(hits, models, DEPLOYED)
    assert found.gain[:, 1].sum() > 0 and found.gain[2, 1, 0] == 4 * (clients - liars - 1)
    assert found.gain[1, 1, 0] == 4 - 4 * liars, "they outvote it there, with no more than its own gain each"


def test_no_client_has_more_held_out_samples_right_than_it_holds_out():
    method = Auto(small_net(), LOCAL, hold_out=10)
    facts = Facts(method, torch.tensor([49, 50, 50]), torch.tensor([0, 0, 0]))
    assert HITS["hits"].contains(torch.tensor([5.0, 5.0, 6.0])[:, None], facts).tolist() == [False, True, False]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.on_demand) for seed in (1, 2))])
def test_one_client_that_lies_about_its_gains_costs_little(seed, monkeypatch):
    """It says that its own training is always right and the model it is served never."""
    honest = Vectorised._run

    def lie(self, name, cohort, keys, offer):
        send, keep = honest(self, name, cohort, keys, offer)
        for field in {"hits", "alone"} & send.keys():
            forged = torch.zeros_like(send[field][:1])
            forged[:, -2:] = len(self.train[0]) // 10  # all that it holds out
            send[field] = torch.where((cohort == 0)[:, None, None], forged, send[field])
        return send, keep

    population, found = build_population(load("digits"), Dirichlet(16, 0.5), seed), []
    for run in (honest, lie):
        monkeypatch.setattr(Vectorised, "_run", run)
        method = Auto(make_model("mlp_200", (1, 8, 8), 10), LocalTraining(epochs=2, lr=0.05))
        settings = {"rounds": 10, "seed": seed, "aggregation": DEPLOYED, "evaluation": LAST}
        found.append(Experiment(method, population, **settings).run()["accuracy"])
    assert found[1] > found[0] - 0.01, "without the limit it costs 6 to 10 points"


def test_clients_that_have_nothing_in_common_train_alone():
    """Each has names of its own for all labels; without the trial they share a model, which each trains further."""
    own = build_population(load("digits"), IID(10), 0, train_samples=60, shift=LabelPermutation(10))
    model, found = make_model("mlp_200", (1, 8, 8), 10), {}
    for alone in (0, 4):
        run = Experiment(Auto(model, LocalTraining(epochs=2, lr=0.05), alone=alone), own, rounds=12, evaluation=LAST)
        found[alone] = run.run()["accuracy"], len(run.state.served.assignment.unique()), run.method.diagnosis(run.state)
    assert found[4][0] > found[0][0] + 0.05
    assert (found[0][1], found[4][1]) == (1, 10)
    assert "personalised: 1 of 1 models" in found[0][2] and found[4][2].endswith("one model; 10 clients train alone.")


def test_clients_of_some_models_go_on_with_copies_of_their_own():
    stacked, labels = {"w": torch.tensor([[1.0], [2.0], [3.0]])}, torch.tensor([1, 2, -1, 1])
    first = ClusterModels(stacked, labels, one_hot(labels, 3).bool(), {})
    after = first.part(torch.tensor([False, True, True]))
    assert after.assignment.tolist() == [3, 4, -1, 5] and after.models["w"].flatten().tolist() == [1, 2, 3, 2, 3, 2]
    assert after.contributors.nonzero().tolist() == [[3, 0], [4, 1], [5, 3]]
    same = first.part(torch.tensor([True, False, False]))
    assert same.assignment.tolist() == labels.tolist() and torch.equal(same.contributors, first.contributors)


@pytest.mark.parametrize(("first", "prefers"), [((8, 2), True), ((8, 0.9), False), ((5.2, 1.04), False)])
def test_the_first_candidate_is_preferred_if_it_is_clearly_ahead_in_both_ways(first, prefers):
    """Of 20 and 4; five replies that all agree are beyond chance, and 0.2 of 20 is less than 3 %."""
    found = evidence_of(first, (5, 1), (9, 3), (5, 1), (5, 1), clients=5)
    assert found.prefers_first(torch.tensor([1])).tolist() == [prefers]
    assert found.prefers_first(torch.tensor([2])).tolist() == [False]


def test_clients_that_are_alike_get_fedavg_to_the_bit():
    alike, model = build_population(load("digits"), IID(20), 0), make_model("mlp_200", (1, 8, 8), 10)
    auto, fedavg = (Experiment(kind(model), alike, rounds=2, fraction=0.2) for kind in (Auto, FedAvg))
    auto.run(), fedavg.run()
    assert auto.method.diagnosis(auto.state) == "One cluster: clients are alike, one model."
    for name, weight in fedavg.state.params.items():
        assert torch.equal(auto.state.served.models[name][0], weight)


def serve_rounds(rounds: int, more: int = 0, **settings: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What clients are served after each round of Auto on clients that are alike, and the models as trained.

    What is served is also what the state of a bundle has.
    """
    alike, model = build_population(load("digits"), IID(20), 0), make_model("mlp_200", (1, 8, 8), 10)
    method = Auto(model, LocalTraining(epochs=1), average=0.5)
    fed, served, trained = Vectorised(method, alike, **settings), [], []
    fed.rounds = rounds
    state = method.init(fed)
    for t in range(rounds + more):
        fed.rounds = rounds if t < rounds else rounds + more
        fed.begin(t)
        state = method.round(state, t, fed)
        name = next(iter(state.served.models))
        trained.append(state.served.models[name])
        served.append(method.offer(state, fed.clients, fed).each["params"][name])
        exported = method.export_state(state, fed.clients, fed.weights)
        assert torch.equal(exported.served.models[name], served[-1]) and not exported.averaged
    return served, trained


def test_clients_are_served_the_mean_of_the_last_rounds_models_and_train_the_last():
    served, trained = serve_rounds(4, fraction=0.2)
    for t in range(4):
        torch.testing.assert_close(served[t], trained[t] if t < 2 else torch.stack(trained[2 : t + 1]).mean(0))
    assert not torch.equal(served[-1], trained[-1])


def test_a_run_that_goes_on_for_more_rounds_averages_those_at_its_new_end():
    served, trained = serve_rounds(2, more=4, fraction=0.2)
    torch.testing.assert_close(served[2], trained[2])
    torch.testing.assert_close(served[5], torch.stack(trained[3:]).mean(0))


def test_models_are_not_averaged_where_all_clients_are_in_every_round():
    served, trained = serve_rounds(3)
    assert all(torch.equal(*each) for each in zip(served, trained, strict=True))


@pytest.mark.parametrize(
    "wrong", [{"hold_out": 1}, {"compare": 0.6}, {"judge": 1.5}, {"compare": -0.1}, {"average": 1.5}, {"alone": -1}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"hold_out|compare|average|alone"):
        Auto(small_net(), LOCAL, **wrong)


def test_models_are_paired_nearest_first_and_the_common_one_with_none():
    models = {"w": torch.tensor([[0.0], [1.0], [9.0], [2.0], [6.0]])}
    assert pair_nearest(models, torch.tensor([1, 2, 3, 4])).tolist() == [0, 3, 4, 1, 2]
    assert pair_nearest(models, torch.tensor([1, 2, 0, 4])).tolist() == [0, 1, 4, 3, 2], "model 3 is not in use"
    assert pair_nearest(models, torch.tensor([0, 0, 0, 0])).tolist() == [0, 1, 2, 3, 4]


def test_clusters_share_the_mean_of_their_models_only_where_both_do_better():
    stacked, labels = {"w": torch.tensor([[0.0], [2.0], [5.0]])}, torch.tensor([1, 1, 2, -1])
    first, sizes = ClusterModels(stacked, labels, one_hot(labels, 3).bool(), {}), torch.tensor([1.0, 1.0, 1.0, 1.0])
    pair, gain, total = torch.tensor([0, 2, 1]), torch.zeros(3, 5, 2), torch.full((3, 2), 100.0)
    replies = torch.tensor([0.0, 4.0, 5.0])
    gain[1, 1], gain[2, 1] = 30.0, 10.0
    after, names = share_models(first, pair, Evidence(gain, gain.square() / 4, total, replies), sizes)
    assert names.tolist() == [0, 1, 1] and after.assignment.tolist() == [1, 1, 1, -1]
    assert after.models["w"].tolist() == [[0.0], [3.0], [3.0]], "two clients with 2, one with 5"
    gain[2, 1] = -10.0  # of √(10²/5) = 4.5: the second cluster loses, the two together gain
    assert share_models(first, pair, Evidence(gain, gain.square() / 5, total, replies), sizes)[1].tolist() == [0, 1, 2]


def test_a_small_cluster_shares_no_model_that_it_likely_loses_by_or_does_not_know():
    labels = torch.tensor([1, 1, 1, 2])
    first = ClusterModels({"w": torch.zeros(3, 1)}, labels, one_hot(labels, 3).bool(), {})
    pair, gain, total = torch.tensor([0, 2, 1]), torch.zeros(3, 5, 2), torch.full((3, 2), 100.0)
    replies = torch.tensor([0.0, 9.0, 1.0])
    gain[1, 1], gain[2, 1] = 30.0, -3.0  # one reply of the small cluster: never beyond two errors
    square, sizes = gain.square().clamp(max=9), torch.ones(4)
    assert not Evidence(gain, square, total, replies).loses(1).any()
    assert share_models(first, pair, Evidence(gain, square, total, replies), sizes)[1].tolist() == [0, 1, 2]
    gain[2, 1] = 0.0
    assert share_models(first, pair, Evidence(gain, square, total, replies), sizes)[1].tolist() == [0, 1, 1]
    total[2] = 0.0  # none of its clients was asked
    assert share_models(first, pair, Evidence(gain, square, total, replies), sizes)[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("replies", "shared"), [(2, [0, 1, 2]), (5, [0, 1, 1]), (7, [0, 1, 2]), (8, [0, 1, 1])])
def test_clusters_share_a_model_by_what_few_replies_say_only_beyond_chance(replies, shared):
    labels = torch.tensor([1, 2])
    first = ClusterModels({"w": torch.zeros(3, 1)}, labels, one_hot(labels, 3).bool(), {})
    hits = torch.zeros(replies, 6, 2)
    hits[:, 1], hits[:, -1] = (1.0 if replies < 7 else torch.tensor([1.0, 0.0]).repeat(4)[:replies, None]), 10.0
    own = torch.arange(replies) % 2 + 1  # each reply gains one held-out sample; of seven and eight every second does
    evidence = Evidence.none(3, torch.device("cpu")).add(hits, own)
    assert share_models(first, torch.tensor([0, 2, 1]), evidence, torch.ones(2))[1].tolist() == shared


def test_a_cluster_that_signatures_split_in_two_is_made_one_again():
    turned = build_population(load("digits"), IID(40), 0, shift=Rotation())
    method = Auto(make_model("mlp_200", (1, 8, 8), 10), LOCAL, merge=0.25)
    fed = Vectorised(method, turned)
    state, half = method.init(fed), torch.arange(fed.count) % 2
    split, number = torch.where(turned.true_clusters == 0, 4 * half, turned.true_clusters), 5  # the first in two
    models = repeat(select(state.served.models, 0), 1 + number)
    state = replace(
        state, clusters=split, plan=method.make_plan(20, number), evidence=Evidence.none(1 + number, fed.device),
        chosen=torch.zeros(number, dtype=torch.long), partners=torch.arange(1 + number),
        served=state.served.serve(state.served.assignment, models), amounts=torch.zeros(1 + number),
    )  # fmt: skip
    for t in range(int(state.plan[1])):
        fed.begin(t)
        state = method.round(state, t, fed)
    assert state.chosen[0] == state.chosen[4] and len(state.chosen.unique()) == 4


def test_the_distances_of_an_unseen_client_are_those_to_the_models_that_clusters_are_served():
    turned = build_population(load("digits"), IID(40), 0, shift=Rotation())
    turned = replace(turned, roles=(*[Role()] * 32, *[Role(holdout=True)] * 8))
    method = Auto(make_model("mlp_200", (1, 8, 8), 10), LOCAL)
    state = method.init(fed := Vectorised(method, turned))
    assert len(state.chosen) == 4
    unseen = torch.arange(32, 40)
    state = method.admit(replace(state, chosen=torch.tensor([4, 2, 0, 2])), unseen, fed)  # model 3 serves no cluster
    one, two, three, four = method.judge_fit(state, unseen, fed).distances.T
    found = method.distances_to_clusters(state, unseen, fed)
    never = torch.full_like(one, torch.inf)
    torch.testing.assert_close(found.T, torch.stack([three, never, torch.minimum(two, four), never, one]))
    assert found.argmin(1).equal(method.cluster_assignment(state)[unseen]), "the nearest is the one that it is served"


def test_a_cluster_without_another_member_has_no_distance():
    apart = find_nearest_served(torch.tensor([[3.0, 2.0]]), torch.tensor([1, 0, 2]))
    assert apart.tolist() == [[2.0, 3.0]], "of the third cluster nothing is known"


def test_doubts_agree_in_number():
    assert explain_own(1) == "1 with a model of its own" and explain_own(3) == "3 with a model of their own"
    assert explain_doubts(0, 0) == []
    assert explain_personal(torch.zeros(2), 0) == [] and explain_personal(torch.zeros(0), 2) == [
        "2 clients train alone"
    ]
    assert explain_personal(torch.tensor([0, 0.5]), 1) == ["personalised: 1 of 2 models", "1 client trains alone"]
    one, its = explain_doubts(1, 1)
    assert one == "fragile: 1 cluster is not better off beyond chance"
    assert its == "1 client did worse by its cluster's model on held-out samples"
    assert explain_doubts(2, 3)[0].startswith("fragile: 2 clusters are ") and "3 clients did" in explain_doubts(2, 3)[1]


@pytest.mark.parametrize("task", [Regression(), MultiLabel()])
def test_clients_whose_targets_depend_on_samples_in_two_ways_are_two_clusters(task: LearningTask):
    """The same features for all; half of the clients have minus the number, or the other labels."""
    draw = torch.Generator().manual_seed(0)
    x, weights = torch.randn(640, 6, generator=draw), torch.randn(6, 2, generator=draw)
    client = torch.arange(640) % 16
    y = x @ weights if isinstance(task, Regression) else (x @ weights > 0).float()
    other = -y if isinstance(task, Regression) else 1 - y
    sizes = []
    for targets in (y, torch.where(client[:, None] % 2 == 1, other, y)):
        population = from_arrays(x.numpy(), targets.numpy(), client.numpy(), OwnSettings(task=task))
        model = make_model("linear", (6,), population.classes, task=task)
        state = Auto(model, LOCAL).init(Vectorised(Auto(model, LOCAL), population, fraction=0.5))
        sizes.append(state.clusters.unique().numel())
    assert sizes == [1, 2]
    assert len({(int(c), i % 2) for i, c in enumerate(state.clusters)}) == 2, "each has the clients of one kind"


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_clusters_by_numbers_do_not_hang_on_their_unit(unit):
    """A table of 30 columns: more than the directions that are looked at for so few clients."""
    draw = torch.Generator().manual_seed(1)
    x, weights = torch.randn(2400, 30, generator=draw), torch.randn(30, generator=draw) / 30**0.5
    client = torch.arange(2400) % 24
    sign = torch.where(client % 2 == 1, -1.0, 1.0)
    y = unit * (sign * (x @ weights) + 0.3 * torch.randn(2400, generator=draw) + 2)
    y = torch.where(client == 23, 10 * y, y)  # an unseen client's are in another unit
    population = from_arrays(x.numpy(), y.numpy(), client.numpy(), OwnSettings(task=Regression()))
    population = replace(population, roles=(*[Role()] * 22, Role(holdout=True), Role(holdout=True)))
    method = Auto(make_model("linear", (30,), 1, task=Regression()), LOCAL)
    state = method.init(fed := Vectorised(method, population, fraction=0.5))
    seen = state.clusters[:22]
    assert len({(int(c), i % 2) for i, c in enumerate(seen)}) == 2 == seen.unique().numel()
    state = method.admit(state, torch.tensor([22, 23]), fed)
    assert [bool(method.judge_fit(state, torch.tensor([one]), fed).fits) for one in (22, 23)] == [True, False]
    apart = replace(state, clusters=state.clusters.index_fill(0, torch.tensor([0]), -1))
    itself, unseen = (method.judge_fit(each, torch.tensor([0]), fed).p_values for each in (state, apart))
    torch.testing.assert_close(itself, unseen, msg="a member is judged by the others")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1.0, 1e3, 1e6])
def test_clusters_by_labels_do_not_hang_on_the_unit_of_samples(unit, seed):
    """Three labels by the direction of a sample; half of the clients have other names for them."""
    draw = torch.Generator().manual_seed(seed)
    x, client = torch.randn(2400, 20, generator=draw), torch.arange(2400) % 24
    y = ((x @ torch.randn(20, 3, generator=draw)).argmax(1) + client % 2) % 3
    population = from_arrays((unit * x).numpy(), y.numpy(), client.numpy(), OwnSettings())
    method = Auto(make_model("linear", (20,), 3), LOCAL)
    found = method.init(Vectorised(method, population, fraction=0.5)).clusters
    assert len({(int(c), i % 2) for i, c in enumerate(found)}) == 2 == found.unique().numel()


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("level", [100.0, 1e4])
def test_clusters_by_labels_do_not_hang_on_where_samples_have_their_zero(level, constant):
    """All columns are far from zero, or one is that has the same number in all samples."""
    draw = torch.Generator().manual_seed(0)
    x, client = torch.randn(2400, 20, generator=draw), torch.arange(2400) % 24
    y = ((x @ torch.randn(20, 3, generator=draw)).argmax(1) + client % 2) % 3
    far = torch.cat([x, torch.full((2400, 1), 10 * level)], 1) if constant else x + level
    population = from_arrays(far.numpy(), y.numpy(), client.numpy(), OwnSettings())
    method = Auto(make_model("linear", (far.shape[1],), 3), LOCAL)
    found = method.init(Vectorised(method, population, fraction=0.5)).clusters
    assert len({(int(c), i % 2) for i, c in enumerate(found)}) == 2 == found.unique().numel()


@pytest.mark.parametrize("unit", [1e15, 1e25])
def test_numbers_in_a_huge_unit_are_compared_in_that_of_the_task(unit):
    """A signature beyond 1e12 is not used; in the units that the network learns it is what it was."""
    x, client = torch.randn(640, 6, generator=torch.Generator().manual_seed(0)), torch.arange(640) % 16
    y, found = (x[:, 0] * torch.where(client % 2 == 1, -1, 1)).double(), []
    for scale in (1.0, unit):
        population = from_arrays(x.numpy(), (scale * y).numpy(), client.numpy(), OwnSettings(task=Regression()))
        method = Auto(make_model("linear", (6,), 1, task=Regression(std=scale)), LOCAL)
        found.append(method.init(Vectorised(method, population)).clusters.tolist())
    assert found[0] == found[1] and len(set(found[0])) == 2
    with pytest.raises(NetworkError, match=r"beyond 1e[+]12 in size .*task.mean and task.std"):
        method = Auto(make_model("linear", (6,), 1, task=Regression()), LOCAL)
        method.init(Vectorised(method, population))


@pytest.mark.parametrize("task", [Regression(), Classification()])
def test_clients_are_compared_by_samples_alone_where_signatures_have_no_labels(task):
    draw = torch.Generator().manual_seed(0)
    x, client = torch.randn(640, 6, generator=draw), torch.arange(640) % 16
    y = torch.where(client % 2 == 1, -x[:, 0], x[:, 0])
    y = y if isinstance(task, Regression) else (y > 0).long()
    signature = PartMeans(embedding="random", labels=False, latent=64)
    sizes = []
    for samples in (x, x + 3 * (client % 2)[:, None]):
        population = from_arrays(samples.numpy(), y.numpy(), client.numpy(), OwnSettings(task=task))
        method = Auto(make_model("linear", (6,), population.classes, task=task), LOCAL, signature)
        sizes.append(method.init(Vectorised(method, population)).clusters.unique().numel())
    assert sizes == [1, 2], "other targets are not seen, other samples are"
