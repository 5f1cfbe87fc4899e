from dataclasses import dataclass, replace
from math import log

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from kinfed.client import Samples
from kinfed.client_tasks import evaluate, score
from kinfed.data import OwnSettings, Population, from_arrays
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ConfigError, DataError, ModelError
from kinfed.experiment import Evaluation, Experiment
from kinfed.federation import Offer
from kinfed.learning_tasks import MOST, Classification, MultiLabel, NextToken, Regression
from kinfed.methods import IFCA, Auto, CLoVE, FedAvg, FedDrift, FedPer
from kinfed.models import Model
from kinfed.quality import Metric, area_under_curve
from kinfed.training import LocalTraining
from tests.problems import assert_close, fit

SIZES = (7, 16, 9, 12)


def samples_of(task, sizes=SIZES) -> Population:
    """Vectors of 6 numbers, or 6 tokens of 4; half of the clients have the opposite targets."""
    draw = torch.Generator().manual_seed(0)
    rows = sum(sizes) + 5 * len(sizes)
    x = torch.randn(rows, 6, generator=draw)
    ends = torch.tensor([size + 5 for size in sizes]).cumsum(0).tolist()
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor([size + 5 for size in sizes]))
    total = x[:, :3].sum(1) * (1 - 2 * (owner % 2))
    match task:
        case Regression():
            y, classes = total, 1
        case MultiLabel():
            y, classes = torch.stack([total > 0, x[:, 0] > 0, x[:, 1] > 0], 1).float(), 3
        case NextToken():
            x = torch.randint(4, (rows, 6), generator=draw)
            y, classes = (x + 1 + owner[:, None] % 2) % 4, 4
        case _:
            y, classes = (total > 0).long() + (total > 1).long(), 3
    cut = [(end - size - 5, end - 5, end) for size, end in zip(sizes, ends, strict=True)]
    train, test = (tuple(torch.arange(c[i], c[i + 1]) for c in cut) for i in (0, 1))
    return Population(x, y, train, test, classes)


def model_of(task, classes: int) -> Model:
    if isinstance(task, NextToken):
        return Model(lambda: nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, classes)), classes=classes, task=task)
    return Model(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, classes)), classes=classes, task=task)


TASKS = (
    Classification(label_smoothing=0.1, class_weights=(1.0, 2.0, 0.5)),
    Regression(), Regression("huber", "rmse", mean=1.0, std=2.0), NextToken(), NextToken("perplexity"), MultiLabel(),
)  # fmt: skip
LOCAL = LocalTraining(2, 5, 0.1)


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_engines_agree_on_every_task(task):
    population = samples_of(task)
    method = FedAvg(model_of(task, population.classes), LOCAL)
    (slow, a), (fast, b) = (fit(method, engine, population, 2) for engine in (Sequential, Vectorised))
    assert_close(slow.params, fast.params)
    scores = [fed.run(method.train, fed.clients, method.offer(slow, fed.clients, fed)) for fed in (a, b)]
    assert_close(*(reply.stack("params") for reply in scores))


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_training_improves_the_main_metric_of_every_task(task):
    population, metric = samples_of(task, (60, 60)), task.metric()
    same = replace(population, train=population.train[:1], test=population.test[:1])
    method = FedAvg(model_of(task, population.classes), LocalTraining(5, 5, 0.1))
    experiment = Experiment(method, same, rounds=4)
    summary = experiment.run()
    first, last = (metric.gain(experiment.history[i][1][metric.name]) for i in (0, -1))
    assert last > first or last == metric.gain(1.0)
    assert set(task.measured()) >= summary.keys() & set(task.measured()) > set()


def test_metrics_of_a_classifier_by_hand():
    output = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [2.0, 0.0]])  # says 0 1 1 0
    found = Classification().measure(output, torch.tensor([0, 0, 1, 1]))
    assert found["accuracy"] == found["balanced_accuracy"] == found["macro_f1"] == found["auroc"] == 0.5
    confidence = float(torch.tensor(2.0).exp() / (torch.tensor(2.0).exp() + 1))
    assert found["calibration_error"] == pytest.approx(confidence - 0.5)


@pytest.mark.parametrize("classes", [2, 4])
def test_auroc_is_the_one_of_probabilities_as_scikit_learn_has_it(classes: int):
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(60) % classes
    shift = 10 * torch.randn(60, 1, generator=rng)  # softmax ignores it
    output = torch.eye(classes)[y] + torch.randn(60, classes, generator=rng) + shift
    said = output.double().softmax(1)
    expected = roc_auc_score(y, said[:, 1] if classes == 2 else said, multi_class="ovr")
    assert Classification().measure(output, y)["auroc"] == pytest.approx(expected)


def test_outputs_that_are_not_finite_are_of_no_class():
    output = torch.eye(2)[[0, 0, 1, 1]]
    output[[1, 3]] = torch.tensor([[float("nan")] * 2, [0.0, float("inf")]])
    found = Classification().measure(output, torch.tensor([0, 0, 1, 1]))
    assert found["accuracy"] == found["balanced_accuracy"] == 0.5
    assert found["macro_f1"] == pytest.approx(2 * 1 / (1 + 2))  # of each class one of two is found, none in vain
    nothing = Classification().measure(torch.full((4, 3), float("nan")), torch.tensor([0, 0, 0, 1]))
    assert nothing == {"accuracy": 0.0, "balanced_accuracy": 0.0, "macro_f1": 0.0}
    labels = MultiLabel().measure(torch.tensor([[float("nan"), -1.0]]), torch.tensor([[0.0, 0.0]]))
    assert labels["label_accuracy"] == 0.5 and labels["exact_match"] == 0.0


def test_macro_f1_and_balanced_accuracy_are_of_classes_that_occur():
    output = torch.eye(3)[[0, 0, 1, 0]]
    found = Classification().measure(output, torch.tensor([0, 0, 1, 1]))
    assert found["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert found["macro_f1"] == pytest.approx((2 * 2 / (3 + 2) + 2 * 1 / (1 + 2)) / 2)


def test_the_area_under_the_curve_counts_ties_half():
    assert area_under_curve(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([False, False, True, True])) == 3.5 / 4
    assert area_under_curve(torch.tensor([0.1, 0.4]), torch.tensor([True, True])) is None


def test_metrics_of_a_regression_by_hand():
    found = Regression(mean=1.0, std=2.0).measure(torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 3.0]))  # says 1, 3
    assert found["mae"] == 0.5 and found["rmse"] == pytest.approx(0.5**0.5)
    assert found["r2"] == pytest.approx(1 - 1 / 4.5)


def test_metrics_of_next_tokens_and_labels_by_hand():
    output = torch.zeros(2, 3, 4)
    output[0, :, 1] = 100.0
    found = NextToken().measure(output, torch.tensor([[1, 1, 2], [0, 0, 0]]))
    assert found["accuracy"] == pytest.approx((2 + 3) / 6)  # a tie goes to the first
    assert NextToken().measure(torch.zeros(1, 4), torch.tensor([2]))["perplexity"] == pytest.approx(4)
    worst, largest = torch.tensor(1e30), torch.finfo().max
    assert 1e29 < float(NextToken("perplexity").finish(worst)) < MOST  # e to the 1e30 is infinite
    assert NextToken().measure(torch.tensor([[0.0, largest]]), torch.tensor([0]))["perplexity"] < MOST
    found = MultiLabel().measure(torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert found["label_accuracy"] == 0.75 and found["exact_match"] == 0.5
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_classes_of_which_most_have_no_sample_are_doubted():
    task, few = Classification(), torch.tensor([0, 1000, 9000]).repeat(40)
    assert task.doubt_targets(few).startswith("8998 of 9001 classes (labels 0 to 9000) have no sample")
    assert "return_inverse=True" in task.doubt_targets(few)
    assert not task.doubt_targets(few // 1000) and not task.doubt_targets(few[:0])
    assert not task.doubt_targets(torch.arange(0, 60, 2).repeat(5)), "half of them have some"


@pytest.mark.parametrize("make", [lambda task: Model(nn.Flatten, task=task), lambda task: OwnSettings(task=task)])
def test_a_task_whose_metric_is_a_text_is_refused(make):
    class Named(Classification):
        def metric(self) -> Metric:
            return "accuracy"  # type: ignore[return-value]

    with pytest.raises(ConfigError, match=r"task 'Named': metric\(\) must return a Metric, as in .*, got a str"):
        make(Named())
    with pytest.raises(ConfigError, match=r"wanted a LearningTask, .* got a int"):
        make(3)


def test_label_smoothing_and_class_weights_are_in_the_loss_by_hand():
    task = Classification(label_smoothing=0.5, class_weights=(1.0, 3.0))
    loss = task.losses(torch.zeros(2, 2), torch.tensor([0, 1]))
    assert loss.tolist() == pytest.approx([log(2), 3 * log(2)])
    assert not task.is_plain() and Classification().is_plain()


@dataclass(frozen=True)
class Focal(Classification):
    """(1 - p)² · cross-entropy, where p is the probability of the true class."""

    def losses(self, output, y):
        each = super().losses(output, y)
        return (1 - (-each).exp()) ** 2 * each


@dataclass(frozen=True)
class Doubled(NextToken):
    def losses(self, output, y):
        return 2 * super().losses(output, y)


def test_a_loss_of_ones_own_over_that_of_a_known_task_is_trained_by():
    net = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))  # noqa: E731
    ends = {
        (task, engine): fit(FedAvg(Model(net, classes=3, task=task), LOCAL), engine, rounds=1)[0].params
        for task in (Classification(), Focal(), Doubled())
        for engine in (Sequential, Vectorised)
    }
    for task in (Focal(), Doubled()):
        assert_close(ends[task, Vectorised], ends[task, Sequential])
        assert not torch.equal(ends[task, Vectorised]["1.weight"], ends[Classification(), Vectorised]["1.weight"])


def test_a_client_takes_the_model_with_the_lower_error():
    task = Regression()
    population = samples_of(task, (20, 20, 20, 20))
    experiment = Experiment(IFCA(model_of(task, 1), LocalTraining(3, 5, 0.1), clusters=2), population, rounds=8, seed=1)
    experiment.run()
    chosen = experiment.method.cluster_assignment(experiment.state).tolist()
    assert chosen[0] == chosen[2] != chosen[1] == chosen[3]


def test_held_out_samples_judge_a_regression():
    task = Regression()
    experiment = Experiment(Auto(model_of(task, 1), LOCAL), samples_of(task, (20, 20, 20, 20)), rounds=4)
    assert 0 < experiment.run()["mae"] < 3


def test_a_diverged_regression_has_a_finite_score():
    task, population = Regression(), samples_of(Regression())
    experiment = Experiment(FedAvg(model_of(task, 1), LocalTraining(3, 5, 1e6)), population, rounds=2)
    assert np.isfinite(experiment.run()["mae"])


@dataclass(frozen=True)
class Skill(Regression):
    """One less the squared error: the higher, the better."""

    def metric(self) -> Metric:
        return Metric("skill", "skill")

    def scores(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (1 - (output[:, 0] - y).square()).clamp(min=-9.0)

    def least(self) -> float:
        return -9.0

    def most(self) -> float:
        return 1.0


@pytest.mark.parametrize(("task", "worst"), [(Skill(), -9.0 * 5), (Regression(), MOST)])
def test_a_score_that_is_not_a_number_is_the_worst(task, worst: float):
    population = samples_of(Regression())
    method = FedAvg(model_of(task, 1), LOCAL)
    fed = Sequential(method, population)
    broken = {name: torch.full_like(weight, torch.nan) for name, weight in method.init(fed).params.items()}
    replies = fed.run(evaluate, fed.clients, Offer(shared={"params": broken}))
    assert replies["metric"].tolist() == pytest.approx([worst] * 4)


@pytest.mark.parametrize("main", ["mae", "rmse"])
@pytest.mark.parametrize("unit", [1e5, 1e9, 1e13])
def test_errors_in_a_large_unit_are_what_they_are(main, unit):
    task, x = Regression(main=main), np.ones((4000, 6), dtype=np.float32)
    population = from_arrays(x, np.full(4000, 3 * unit), np.arange(4000) % 2, OwnSettings(task="regression"))
    experiment = Experiment(FedAvg(model_of(task, 1), LocalTraining(1, 4000, 1e-30)), population, rounds=1)
    summary = experiment.run()
    assert summary["mae"] == pytest.approx(3 * unit, rel=1e-4), "the network's output is about 1"
    assert summary["rmse"] == pytest.approx(3 * unit, rel=1e-4)


def test_a_target_may_be_an_error():
    task, population = Regression(), samples_of(Regression())
    local = LocalTraining(1, 5, 0.01)
    experiment = Experiment(FedAvg(model_of(task, 1), local), population, rounds=1, evaluation=Evaluation(target=100.0))
    summary = experiment.run()
    assert summary["at_target"] == 1 and summary["rounds_to_target"] == 1
    assert summary["worst_decile"] >= summary["mae"]


def test_targets_must_be_those_of_the_task():
    population = samples_of(Regression())
    with pytest.raises(ConfigError, match="the targets are numbers, and the task is Classification"):
        Experiment(FedPer(model_of(Classification(), 3), LOCAL), replace(population, classes=1), rounds=1)
    with pytest.raises(DataError, match=r"wanted integers .*task\.name = 'regression'"):
        Classification().targets(np.zeros(3))
    with pytest.raises(DataError, match="1 of 2 targets are a NaN"):
        Regression().targets(np.array([0.0, np.nan]))
    with pytest.raises(DataError, match="wanted 0 or 1 for each label"):
        MultiLabel().targets(np.array([[0, 2]]))


@pytest.mark.parametrize("task", [Classification(), Regression(), MultiLabel(), NextToken()])
@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_clients_without_test_samples_are_not_scored_and_stop_no_other(task, engine):
    """Clients whose numbers of samples differ much are in other blocks: one has but those without test samples."""
    population = samples_of(task, sizes=(60, 60, 6, 5))
    tests = [
        population.test[i] if i > 1 else torch.cat([population.test[i], population.train[i][:40]]) for i in range(4)
    ]
    trains = [population.train[i] if i > 1 else population.train[i][40:] for i in range(4)]
    population = replace(population, train=tuple(trains), test=(*tests[:2], tests[2][:0], tests[3][:0]))
    run = Experiment(FedAvg(model_of(task, population.classes), LOCAL), population, engine, rounds=1)
    run.run()
    assert run.scores is not None and run.scores.main.isnan().tolist() == [False, False, True, True]


def test_targets_far_from_one_are_warned_of_with_the_settings_that_help(caplog):
    task, population = Regression(), samples_of(Regression())
    far = replace(population, y=60 + 5 * (population.y - population.y.mean()) / population.y.std(correction=0))
    Experiment(FedAvg(model_of(task, 1), LOCAL), population, rounds=1)
    assert not caplog.records
    Experiment(FedAvg(model_of(task, 1), LOCAL), far, rounds=1)
    assert "set task.mean = 60 and task.std = 5 " in caplog.text
    scaled = Regression(mean=60, std=5)
    assert (
        not scaled.doubt_targets(far.y) and not task.doubt_targets(torch.zeros(3)) and not task.doubt_targets(far.y[:0])
    )
    assert "task.std = 1 " in task.doubt_targets(torch.full((3,), 1e-3))


def test_samples_far_from_one_are_warned_of_with_their_column(caplog):
    """scikit-learn's wine as it is: one column is in the hundreds, and a network guesses."""
    task, population = Regression(), samples_of(Regression())
    x, model = population.x, model_of(task, 1)
    assert not model.doubt_samples(x) and not model.doubt_samples(x[:0]) and not model.doubt_samples(0 * x)
    x = torch.cat([x, torch.full((len(x), 1), 750.0)], 1)
    names = [f"c{i}" for i in range(x.shape[1] - 1)] + ["proline"]
    assert model.doubt_samples(x).startswith("samples are 7.5e+02 in size (column 6), and a network")
    assert "(column 'proline')" in model.doubt_samples(x, names)
    assert "in size, and" in model.doubt_samples(torch.full((3, 1, 4, 4), 200.0))
    assert not model.doubt_samples(torch.tensor([[1.0, torch.nan, torch.nan], [torch.nan, 1.0, torch.nan]]))  # gaps
    assert model.doubt_samples(torch.tensor([[1.0, 750.0], [1.0, torch.nan]])).startswith(
        "samples are 7.5e+02 in size (c"
    )
    assert model.doubt_samples(x[:, :-1] / 1e3) and not model.doubt_samples(torch.full((3, 4), 200, dtype=torch.uint8))
    normalised = Model(lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 1)), classes=1, task=task)
    assert not normalised.doubt_samples(torch.full((3, 4), 200.0)), "it scales samples itself"
    Experiment(FedAvg(model, LOCAL), replace(population, x=1e3 * population.x), rounds=1)
    assert "scale columns to mean 0 and deviation 1" in caplog.text


def test_numbers_that_are_taken_for_classes_are_warned_of():
    doubt = Classification().doubt_targets
    assert doubt(torch.arange(30)) == (
        "30 classes in 30 samples: where targets are numbers, such as ages or prices, set task.name = regression"
    )
    assert not doubt(torch.arange(30).repeat(5)) and not doubt(torch.arange(20)) and not doubt(torch.arange(0))
    assert not doubt(torch.tensor([-1]).repeat(40))  # without labels


def test_a_metric_is_shown_in_its_unit():
    assert Metric("accuracy", "accuracy", 100, "%").show(0.5) == "50.00 %"
    assert Metric("mae", "MAE").show(0.5) == "0.5" and Metric("mae", "MAE").show(None) == "–"


class GaussianLikelihood(Regression):
    """A loss that is below 0 where the fit is good."""

    def losses(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().losses(output, y) - 2


def test_candidates_are_compared_from_0_to_1_by_a_loss_that_may_be_negative():
    y, outputs = torch.zeros(3), torch.tensor([0.0, 1.0, 3.0])[:, None, None].expand(3, 3, 1)
    found = GaussianLikelihood("absolute").compare(outputs, y)[:, 0]  # losses -2, -1 and 1
    torch.testing.assert_close(found, torch.tensor([0.5, 0.5 - 0.5 / 3, 0.0]))


class Likelihood(GaussianLikelihood):
    """Its scores are its losses, from -2 on."""

    def scores(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.losses(output, y)

    def least(self) -> float:
        return -2.0

    def measure(self, output: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        return {"mae": float(self.scores(output, y).mean()), "r2": 0.5}


OWN = (FedAvg, Auto, CLoVE, FedDrift, IFCA)


@pytest.mark.parametrize(
    ("task", "make"),
    [(GaussianLikelihood(), FedAvg), *((Likelihood(), make) for make in OWN)]
    + [pytest.param(GaussianLikelihood(), make, marks=pytest.mark.on_demand) for make in OWN[1:]],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_losses_and_scores_of_ones_own_may_be_negative(task, make):
    population = samples_of(task, (60, 60, 60, 60))
    alike = replace(population, train=population.train[::2], test=population.test[::2])
    experiment = Experiment(
        make(model_of(task, 1), LocalTraining(5, 10, 0.1)), alike, rounds=6, evaluation=Evaluation(every=6)
    )
    summary = experiment.run()
    assert not experiment.fed.rejected
    scored = summary["mae"]
    assert isinstance(scored, float) and (scored < -1 if isinstance(task, Likelihood) else 0 < scored < 1)
    assert summary["r2"] == 0.5 if isinstance(task, Likelihood) else "r2" in summary


def test_scores_outside_of_their_range_are_an_error_before_the_first_round():
    class Unbounded(Likelihood):
        def least(self) -> float:
            return 0.0

    with pytest.raises(
        ModelError, match=r"Unbounded gives scores from -.*allow 0 to 1e\+30.*return the range of scores"
    ):
        Experiment(FedAvg(model_of(Unbounded(), 1)), samples_of(Unbounded()), rounds=1)


@dataclass(frozen=True)
class Tenth(Regression):
    """Every score is the largest: sums of 0.1 in float32 are a little more or less than so many tenths."""

    def scores(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.full_like(y, 0.1)

    def most(self) -> float:
        return 0.1


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_scores_at_the_end_of_their_range_may_be_rounded(sign):
    class Below(Tenth):
        def scores(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return -super().scores(output, y)

        def least(self) -> float:
            return -0.1

    task = Tenth() if sign > 0 else Below()
    people = samples_of(task, (20, 20, 600))
    people = replace(people, train=people.train[:2], test=people.train[2].split(300))
    experiment = Experiment(FedAvg(model_of(task, 1)), people, rounds=1)
    summary = experiment.run()
    assert summary["mae"] == pytest.approx(0.1 * sign) and not experiment.fed.rejected


def test_an_infinite_loss_of_a_network_of_double_precision_is_the_largest_of_floats():
    people = samples_of(Regression())
    model = Model(lambda: nn.Linear(6, 1).double(), classes=1, task=Regression())
    people = replace(people, x=people.x.double())
    huge = {name: torch.full_like(w, 1e200) for name, w in model.init().items()}
    samples = Samples(people.x, people.y, people.test[0], torch.tensor(5), exact=True)
    assert float(score(model, huge, samples)["loss"]) == torch.finfo(torch.float32).max


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("task", [NextToken(), NextToken("perplexity")], ids=repr)
def test_a_client_of_tokens_may_have_no_test_samples(engine, task):
    people = samples_of(task)
    people = replace(people, test=(people.test[0], people.test[1][:0], *people.test[2:]))
    summary = Experiment(FedAvg(model_of(task, 4)), people, engine, rounds=1).run()
    assert summary["rejected_replies"] == 0 and summary[task.metric().name] > 0
