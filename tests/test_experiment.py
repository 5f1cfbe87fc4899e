from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kinfed.client import Reply, client_task
from kinfed.config import DEMO, assemble, load_config
from kinfed.data import LATER, Population, Role
from kinfed.engines import EngineSettings, Sequential, Vectorised
from kinfed.errors import ConfigError, ModelError
from kinfed.experiment import Evaluation, Experiment, doubts
from kinfed.experiment.doubts import count_moved, warn_if_partial, warn_if_unsettled
from kinfed.learning_tasks import Regression
from kinfed.methods import FLHC, FedAvg, Local
from kinfed.models import Model
from kinfed.params import Params
from kinfed.quality import Metric
from kinfed.training import LocalTraining
from tests.problems import small_net, tiny_population


@dataclass
class Notes:
    results: list = field(default_factory=list)
    said: list = field(default_factory=list)

    def on_start(self, rounds, done):
        self.said.append(("began", rounds, done))

    def on_round(self, result):
        self.results.append(result)

    def on_end(self, summary):
        self.said.append(("ended", summary["accuracy"]))


def watched(method, population=None, rounds=3, **settings):
    notes = Notes()
    fed = Vectorised(method, population or tiny_population())
    experiment = Experiment.over(fed, rounds=rounds, observers=[notes], **settings)
    return notes, experiment.run(), experiment


def test_observers_hear_of_every_round():
    notes, summary, _ = watched(FedAvg(small_net()))
    assert notes.said == [("began", 3, 0), ("ended", summary["accuracy"])]
    assert [r.round for r in notes.results] == [1, 2, 3]


def test_the_last_round_is_always_evaluated():
    notes, _, _ = watched(FedAvg(small_net()), rounds=5, evaluation=Evaluation(every=2))
    assert [r.round for r in notes.results if r.metrics] == [2, 4, 5]


def test_the_scores_of_the_last_evaluation_stay_at_hand():
    notes, summary, experiment = watched(FedAvg(small_net()))
    assert experiment.scores is notes.results[-1].scores
    assert float(experiment.scores.main.mean()) == pytest.approx(summary["accuracy"])


def test_an_extra_evaluation_changes_no_training():
    often = watched(FedAvg(small_net()), rounds=4)[2]
    seldom = watched(FedAvg(small_net()), rounds=4, evaluation=Evaluation(every=4, adapt=True))[2]
    assert torch.equal(often.state.params["1.weight"], seldom.state.params["1.weight"])


def test_adaptation_helps_and_leaves_the_served_model_alone():
    method = FedAvg(small_net(), LocalTraining(2, 5, 0.1))
    _, summary, _ = watched(method, rounds=2, evaluation=Evaluation(adapt=True))
    assert summary["accuracy_adapted"] > summary["accuracy"]


def test_adaptation_may_be_evaluated_more_seldom_than_what_is_served():
    evaluation = Evaluation(adapt=True, adapt_every=2)
    notes, summary, _ = watched(FedAvg(small_net()), rounds=5, evaluation=evaluation)
    assert all("accuracy" in r.metrics for r in notes.results)
    assert [r.round for r in notes.results if "accuracy_adapted" in r.metrics] == [2, 4, 5]
    assert summary["accuracy_adapted"] == notes.results[-1].metrics["accuracy_adapted"]
    with pytest.raises(ConfigError, match="a multiple of every"):
        Evaluation(every=2, adapt_every=3)


def test_holdout_and_unlabelled_clients_are_served_and_scored_apart():
    roles = (Role(), Role(), Role(holdout=True), Role(), Role(), Role(joins=LATER))
    notes, summary, _ = watched(FedAvg(small_net()), tiny_population(roles=roles))
    scores = notes.results[-1].scores
    assert scores.trains.tolist() == [True, True, False, True, True, False]
    assert [r.scores.main.isnan().tolist() for r in notes.results] == [[False] * 5 + [True]] * 2 + [[False] * 6]
    assert summary["accuracy_unseen"] == pytest.approx(float(scores.main[[2, 5]].mean()))


def test_late_clients_take_part_from_their_round_on():
    roles = (Role(), Role(), Role(), Role(), Role(), Role(joins=2))
    notes, _, experiment = watched(FedAvg(small_net()), tiny_population(roles=roles), rounds=4)
    assert [int(experiment.fed.ledger.up["train"][5] > 0)] == [1]
    assert experiment.fed.ledger.up["train"][5] * 2 == experiment.fed.ledger.up["train"][0]
    assert notes.results[1].scores.main[5].isnan() and not notes.results[2].scores.main[5].isnan()


class Explodes(FedAvg):
    @client_task
    def train(self, client, params: Params) -> Reply:
        reply = super().train(client, params)
        sick = client.train.size == 23
        return Reply({"params": {k: torch.where(sick, torch.inf, v) for k, v in reply.send["params"].items()}})


def test_an_infinite_update_is_left_out_and_counted():
    _, summary, experiment = watched(Explodes(small_net()))
    assert summary["rejected_replies"] == 3
    assert experiment.fed.rejected == [(t, "train", 1, "not finite") for t in range(3)]
    assert all(torch.isfinite(w).all() for w in experiment.state.params.values())


class Poisoned(FedAvg):
    @client_task
    def train(self, client, params: Params) -> Reply:
        return Reply({"params": {k: v * torch.nan for k, v in params.items()}})


def test_weights_that_diverge_are_noticed_once():
    class Diverging(FedAvg):
        @client_task
        def train(self, client, params: Params) -> Reply:
            reply = super().train(client, params)
            gone = torch.where(client.round >= 6, 1e6, 0.0)
            return Reply({"params": {name: w + gone * (name == "1.bias") for name, w in reply.send["params"].items()}})

    lively, one_kind = LocalTraining(epochs=3, batch_size=5, lr=0.1), tiny_population(clusters=1)
    with pytest.warns(UserWarning, match=r"^round 9: accuracy fell from 100.0 to \d+.\d % and does not move") as told:
        _, summary, _ = watched(Diverging(small_net(), lively), one_kind, rounds=10)
    assert len(told) == 1 and summary["accuracy"] < 0.5


def test_a_run_that_ends_before_its_method_looks_for_clusters_is_noticed():
    with pytest.warns(
        UserWarning, match=r"^FLHC looks for clusters after 3 rounds \(rounds_before\), .+ only 3"
    ) as told:
        watched(FLHC(small_net(), rounds_before=3), rounds=3)
    assert len(told) == 1
    watched(FLHC(small_net(), rounds_before=2), rounds=3)


def test_a_round_in_which_nobody_answers_well_keeps_the_model():
    model = small_net()
    _, summary, experiment = watched(Poisoned(model))
    assert summary["rejected_replies"] == 18
    assert torch.equal(experiment.state.params["1.weight"], model.init()["1.weight"])


def test_bytes_grow_by_what_a_round_moves():
    notes, summary, _ = watched(FedAvg(small_net()))
    per_round = 6 * 4 * small_net().parameters()
    assert [(r.down, r.up) for r in notes.results] == [(per_round * t, per_round * t) for t in (1, 2, 3)]
    assert summary["bytes_down"] == summary["bytes_up"] == 3 * per_round


def test_bytes_to_the_target_are_those_of_the_rounds_until_it_is_reached():
    method = FedAvg(small_net(), LocalTraining(2, 5, 0.1))
    best = max(r.metrics["accuracy"] for r in watched(method, rounds=4)[0].results)
    notes, summary, _ = watched(method, rounds=4, evaluation=Evaluation(target=best))
    reached = next(r for r in notes.results if r.metrics["accuracy"] >= best)
    assert reached.round > 1, "the test wants a target that is not reached at once"
    assert summary["rounds_to_target"] == reached.round
    assert summary["bytes_to_target"] == reached.down + reached.up
    never = watched(method, rounds=1, evaluation=Evaluation(target=1.0))[1]
    assert never["rounds_to_target"] is None and never["bytes_to_target"] is None


def test_it_is_said_where_evaluation_goes_through_the_same_samples_again_and_again(caplog, monkeypatch):
    monkeypatch.setattr(doubts, "MANY", 50)
    caplog.set_level("INFO", logger="kinfed")
    shared = torch.arange(20)
    few = (torch.tensor([90]), torch.tensor([91]))  # to train on

    def say(*test, evaluates_once=False):
        caplog.clear()
        population = Population(torch.zeros(100, 1), torch.zeros(100, dtype=torch.long), few * 2, test, 1)
        doubts.say_if_tests_are_many(SimpleNamespace(population=population, evaluates_once=evaluates_once))
        return [record.getMessage() for record in caplog.records]

    overlapping = [torch.cat([shared[:at], shared[at + 1 :]]) for at in range(4)]
    assert say(*overlapping) == []  # 76 of 20 different ones: fewer than four times as many
    longer = [torch.cat([shared[:20], torch.tensor([20 + at])]) for at in range(4)]
    monkeypatch.setattr(doubts, "OFTEN", 3)
    (said,) = say(*longer)
    assert said.startswith("each evaluation goes through 84 test samples of all clients, 24 of them different")
    assert say(*longer, evaluates_once=True) == [], "each is evaluated once for all"
    assert say(*[shared] * 4) == [], "equal test samples are gone through once"


def test_impossible_experiments_are_refused():
    everyone_late = (Role(joins=1),) * 6
    with pytest.raises(ConfigError, match="no client trains"):
        watched(Local(small_net()), tiny_population(roles=everyone_late))
    with pytest.raises(ConfigError, match="rounds"):
        watched(Local(small_net()), rounds=0)
    with pytest.raises(ConfigError, match="every"):
        Evaluation(every=0)


def checkpoints(rounds, tmp_path, monkeypatch, seconds):
    """The rounds after which a checkpoint is written, if each takes so long and a round a second."""
    written, clock = [], [0.0]

    def save(path, state, fed, about, longer):
        written.append(about["round"])
        clock[0] += seconds

    class Second(Notes):
        def on_round(self, result):
            clock[0] += 1

    monkeypatch.setattr("kinfed.experiment.loop.checkpoints.save", save)
    monkeypatch.setattr("kinfed.experiment.loop.time.perf_counter", lambda: clock[0])
    fed = Vectorised(Local(small_net()), tiny_population())
    Experiment.over(fed, rounds=rounds, observers=[Second()], checkpoint=tmp_path / "c", checkpoint_every=5).run()
    return written


def test_checkpoints_take_at_most_a_tenth_of_the_time(tmp_path, monkeypatch):
    assert checkpoints(21, tmp_path, monkeypatch, 0.9) == [5, 10, 15, 20, 21]
    assert checkpoints(64, tmp_path, monkeypatch, 2.1) == [5, 30, 55, 64]  # 21 rounds at least between two


def test_a_federation_that_has_been_through_a_run_is_not_taken_for_a_new_one():
    _, _, experiment = watched(FedAvg(small_net()))
    with pytest.raises(ConfigError, match="has been through a run"):
        experiment.run()
    with pytest.raises(ConfigError, match="has been through a run"):
        Experiment.over(experiment.fed, rounds=2).run()


def test_a_model_that_does_not_fit_is_refused_before_the_first_round():
    people = tiny_population(classes=3)
    narrow, mistaken = small_net(classes=2), replace(small_net(classes=3), classes=4)
    for model, told in ((narrow, "2 classes, wanted the 3 of the data"), (mistaken, r"wanted \(2, 4\)")):
        method = FedAvg(model)
        with pytest.raises(ModelError, match=told):
            Experiment(method, people)


def test_a_method_and_an_engine_of_another_method_cannot_be_paired():
    people, other = tiny_population(), Local(small_net())
    with pytest.raises(ConfigError, match=r"wanted a Population, got a Vectorised; .+ Experiment.over\(federation\)"):
        Experiment(FedAvg(small_net()), Vectorised(other, people))
    assert Experiment.over(Vectorised(other, people), rounds=1).method is other


@pytest.mark.parametrize(("engine", "kind"), [("vectorised", Vectorised), (EngineSettings("sequential"), Sequential)])
def test_an_engine_is_given_by_name_or_by_settings(engine, kind):
    method = FedAvg(small_net())
    experiment = Experiment(method, tiny_population(), engine, rounds=1, fraction=0.5, seed=3)
    assert type(experiment.fed) is kind and experiment.fed.method is method
    assert (experiment.fed.fraction, experiment.fed.seed) == (0.5, 3)
    with pytest.raises(ConfigError, match=r"engine 'vectorized'.+vectorised"):
        Experiment(method, tiny_population(), "vectorized")


def test_an_engine_s_own_settings_reach_it_and_the_device_goes_over_them():
    settings = EngineSettings(block=2, workers=1, device="cuda")
    experiment = Experiment(FedAvg(small_net()), tiny_population(), settings, device="cpu")
    assert (experiment.fed.block, experiment.fed.plan.workers, experiment.fed.device.type) == (2, 1, "cpu")


@dataclass(frozen=True)
class Skill(Regression):
    """A metric in percent that may be below 0."""

    def metric(self):
        return Metric("skill", "skill", 100, "%")

    def scores(self, output, y):
        return -0.5 - y / 10

    def least(self):
        return -1.0

    def most(self):
        return 1.0

    def measured(self):
        return ()


def of_numbers(task, y):
    people = tiny_population((8, 8, 8))
    numbers = torch.zeros(len(people.y)).index_put((torch.cat(people.test),), y[: len(torch.cat(people.test))])
    return FedAvg(Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), classes=1, task=task)), replace(
        people, y=numbers, classes=1
    )


def test_a_metric_in_percent_that_is_no_share_has_its_error_over_clients():
    y = torch.tensor([1.0] * 5 + [2.0] * 6 + [3.0] * 7)  # scores of the clients: -0.6, -0.7 and -0.8
    method, people = of_numbers(Skill(), y)
    summary = Experiment(method, people, rounds=1).run()
    assert summary["skill"] == pytest.approx(-0.7) and summary["standard_error"] == pytest.approx(0.1 / 3**0.5)


def test_a_regression_that_had_ended_keeps_its_standard_error_when_it_is_resumed(tmp_path):
    method, people = of_numbers(Regression(), torch.arange(18.0))
    ended = Experiment(method, people, rounds=3, checkpoint=tmp_path / "c").run()
    assert ended["standard_error"] > 0
    assert Experiment(method, people, rounds=3, checkpoint=tmp_path / "c").run(resume=True) == ended


def test_a_run_without_any_mean_has_not_converged():
    people = tiny_population((8, 8), roles=(Role(), Role(holdout=True)))
    alone = replace(people, test=(people.test[0][:0], people.test[1]))
    assert watched(FedAvg(small_net()), alone, rounds=4)[1]["converged_at"] is None


def test_clusters_of_few_participants_are_said_to_be_of_these_alone(caplog: pytest.LogCaptureFixture):
    fed = Experiment(FedAvg(small_net()), tiny_population((8,) * 5)).fed
    warn_if_partial(fed, torch.tensor([0, 0, 1, -1, -1]))
    warn_if_partial(fed, torch.full((5,), -1))  # none are found yet
    assert not caplog.text
    warn_if_partial(fed, torch.tensor([0, -1, 0, -1, -1]))
    assert "the clusters are those of 2 of 5 clients, the participants of a round" in caplog.text


def test_clusters_that_still_change_at_the_end_are_said_to_be_unsettled(caplog: pytest.LogCaptureFixture):
    first, renamed = torch.arange(20) % 3, (torch.arange(20) + 1) % 3
    moved = renamed.clone()
    moved[:2] = renamed[1:3]  # two of twenty clients
    late = torch.where(torch.arange(20) < 10, renamed, -1)
    for now in (first, renamed, late):
        warn_if_unsettled((first, moved, moved, now))
    warn_if_unsettled((first, moved))  # too few rounds to tell
    warn_if_unsettled(())
    assert not caplog.text
    warn_if_unsettled((moved, first, first, first, moved))
    assert "2 of 20 clients changed their cluster in the last 3 rounds" in caplog.text
    assert count_moved(first, renamed) == 0 and count_moved(renamed, moved) == 2


@pytest.mark.parametrize(("fraction", "said"), [(0.2, True), (1.0, False)])
def test_a_run_says_whose_clusters_those_of_its_last_participants_are(fraction, said, caplog):
    people = ["partition.clients=15", "partition.clusters=3", "data.public=0.1", f"fraction={fraction}"]
    assemble(load_config(DEMO, ["method=flis_dc", *people, "model=linear", "rounds=2"])).run()
    assert ("the clusters are those of 3 of 15 clients" in caplog.text) is said


@pytest.mark.parametrize(("rounds", "settled"), [(4, False), (12, True)])
def test_a_run_of_clove_with_too_few_rounds_says_so(rounds: int, settled: bool, caplog: pytest.LogCaptureFixture):
    slow = ["method=clove", "methods.clove.clusters=3", "partition.clients=15", "partition.clusters=3"]
    config = load_config(DEMO, [*slow, "model=linear", "training.lr=0.003", f"rounds={rounds}"])
    summary = assemble(config).run()
    assert (summary["ari"] == 1) is settled and ("more rounds may find others" not in caplog.text) is settled
