"""Rules of aggregation: each by hand, one liar among honest clients, and the mean where nobody lies."""

from dataclasses import dataclass, replace

import pytest
import torch

from kinfed.aggregation import (
    AGGREGATIONS,
    DEPLOYED,
    MEAN,
    Aggregation,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    NormClipping,
    Sent,
    TrimmedMean,
    count_liars,
    keep_one_of_each,
    measure_isolation,
    weighted_median,
)
from kinfed.config import read
from kinfed.config.settings import Config
from kinfed.engines import Sequential, Vectorised
from kinfed.errors import ConfigError
from kinfed.experiment import Evaluation, Experiment
from kinfed.methods import METHODS
from kinfed.params import Stack, flatten, unflatten
from tests.methods.registry import make, population
from tests.problems import assert_close, assert_same_bits, tiny_population

ROBUST = [kind() for name, kind in AGGREGATIONS.items() if name != "mean"]
named = pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: type(rule).__name__)


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers)[:, None]


def even(number: int) -> torch.Tensor:
    return torch.full((number,), 1 / number)


def test_a_median_is_the_middle_value_of_each_coordinate():
    updates = torch.tensor([[1.0, 5.0], [2.0, -7.0], [1e30, 6.0]])
    assert Median().combine(updates, even(3)).tolist() == [2.0, 5.0]


def test_a_median_of_an_even_number_is_between_the_two_in_the_middle():
    assert Median().combine(column(1, 2, 4, 1e30), even(4)).tolist() == [3.0]


def test_a_median_is_where_half_of_the_weight_lies():
    assert weighted_median(column(1, 2, 3), torch.tensor([0.2, 0.2, 0.6])).tolist() == [3.0]
    assert weighted_median(column(1, 2, 3), torch.tensor([0.5, 0.2, 0.3])).tolist() == [1.5]


def test_a_trimmed_mean_leaves_out_the_ends_of_each_coordinate():
    updates = torch.tensor([[0.0, -1e30], [2.0, 1.0], [4.0, 3.0], [1e30, 5.0]])
    assert TrimmedMean().combine(updates, even(4)).tolist() == [3.0, 2.0]


def test_a_trimmed_mean_weighs_what_is_left():
    weights = torch.tensor([0.1, 0.2, 0.6, 0.1])
    assert TrimmedMean().combine(column(0, 2, 4, 1e30), weights).tolist() == [pytest.approx((0.2 * 2 + 0.6 * 4) / 0.8)]


@pytest.mark.parametrize(("contributors", "liars"), [(1, 0), (2, 0), (3, 1), (10, 1), (12, 2), (25, 3)])
def test_the_share_of_liars_is_rounded_up_and_below_one_half(contributors, liars):
    assert count_liars(0.1, contributors) == liars


def test_a_geometric_median_is_the_corner_that_most_are_at():
    found = GeometricMedian().combine(torch.tensor([[1.0, 1.0], [1.0, 1.0], [1e30, 0.0]]), even(3))
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0]), atol=1e-4, rtol=0)


def test_a_geometric_median_of_a_triangle_is_its_fermat_point():
    height = 3**0.5
    found = GeometricMedian().combine(torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, height]]), even(3))
    torch.testing.assert_close(found, torch.tensor([0.0, height / 3]), atol=1e-4, rtol=0)


def test_a_geometric_median_does_not_stay_at_an_update_that_it_begins_at():
    # coordinates' medians are those of the update at 0; the Fermat point lies on the axis of symmetry, the chord of
    # the other two at (0.45, 0.45), its half 0.55 * sqrt(2) long: by 0.55 * sqrt(2 / 3) / sqrt(2) less each
    found = GeometricMedian().combine(torch.tensor([[-0.1, 1.0], [0.0, 0.0], [1.0, -0.1]]), even(3))
    torch.testing.assert_close(found, torch.full((2,), 0.45 - 0.55 / 3**0.5), atol=1e-4, rtol=0)


def test_a_geometric_median_of_equal_updates_is_these():
    assert GeometricMedian().combine(torch.full((3, 2), 0.25), even(3)).tolist() == [0.25, 0.25]


def test_krum_keeps_the_update_nearest_to_its_neighbours():
    updates = column(0, 1, 1.1, 1.3, 9)  # one liar: two neighbours each; 1.1 has 0.01 + 0.04
    assert Krum(keep=1).combine(updates, even(5)).tolist() == [pytest.approx(1.1)]


def test_krum_of_three_looks_at_the_nearest_other():
    assert Krum(keep=1).combine(column(1, 1.5, 9), even(3)).tolist() == [1.0]  # as near to 1.5 as that to it


def test_multi_krum_averages_all_but_the_liars():
    assert Krum().combine(column(1, 2, 3, 2, 1e30), even(5)).tolist() == [2.0]


def test_centred_clipping_moves_by_what_is_clipped_around_the_last_point():
    # radius 2, from 0: (1 + 2 + 2) / 3 = 5/3; then 1 - 5/3, 3 - 5/3 and the radius again: (-2/3 + 4/3 + 2) / 3 = 8/9
    rule = CentredClipping(radius=2.0, iterations=2)
    assert rule.combine(column(1, 3, 1e30), even(3)).tolist() == [pytest.approx(5 / 3 + 8 / 9)]


def test_weights_take_no_part_of_what_norm_clipping_leaves_to_running_statistics():
    weight, mean = column(1.0, 1.0, 1.0, -12.0), column(6.0, 6.0, 6.0, 0.0)  # the last sends weights alone
    updates = {"0.weight": weight, "0.running_mean": mean, "0.running_var": torch.zeros(4, 1)}
    kept = NormClipping().mix(even(4)[None], None, updates)
    assert kept["0.weight"].item() == (3 - 2) / 4, "cut to twice the median of weights, which is 1"
    assert kept["0.running_mean"].item() == 18 / 4 and list(kept) == list(updates)
    together = NormClipping(bound=37**0.5).mix(even(4)[None], None, updates)
    assert together["0.weight"].item() == pytest.approx((3 - 37**0.5) / 4), "a bound that is set is for all together"


def test_norm_clipping_cuts_to_the_median_norm_of_the_round():
    updates = torch.tensor([[3.0, 4.0], [0.0, 1.0], [-8.0, 6.0]])  # norms 5, 1, 10
    expected = torch.tensor([[3.0, 4.0], [0.0, 1.0], [-4.0, 3.0]])
    torch.testing.assert_close(NormClipping(factor=1.0).prepare(updates), expected)
    torch.testing.assert_close(NormClipping().prepare(updates), updates)  # up to twice the median
    torch.testing.assert_close(NormClipping(bound=0.5).prepare(updates)[1], torch.tensor([0.0, 0.5]))


def test_the_clipping_norm_is_that_of_the_whole_round_not_of_a_cluster_of_two():
    updates: Stack = {"w": column(1, 1, 1, 1, 1e30)}
    weights = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0, 0], [0, 0, 0, 0.5, 0.5]])
    assert NormClipping().mix(weights, None, updates)["w"].flatten().tolist() == pytest.approx([1.0, 1.5])


def test_samples_count_up_to_a_multiple_of_their_median():
    sizes, everyone = torch.tensor([10, 20, 30, 10**12]), torch.arange(4)
    assert DEPLOYED.cap(sizes, everyone).tolist() == [10, 20, 20, 20]
    assert Median(sample_cap=2.0).cap(sizes, everyone).tolist() == [10, 20, 30, 40]
    assert MEAN.cap(sizes, everyone) is sizes


def test_what_clients_report_counts_up_to_the_upper_quartile_of_all_reports():
    reported = torch.tensor([[1.0, -2.0], [2.0, -4.0], [3.0, -6.0], [4.0, -8.0], [1e3, -1e9]])
    believed = [[1.0, -2.0], [2.0, -4.0], [3.0, -6.0], [4.0, -8.0], [4.0, -8.0]]
    one = torch.zeros(5, dtype=torch.long)
    assert DEPLOYED.limit_reported(reported, one).tolist() == believed
    assert MEAN.limit_reported(reported, one) is reported
    assert DEPLOYED.limit_reported(reported[-4:], one[-4:]).tolist() == [[2, -4], [3, -6], [4, -8], [4, -8]]
    assert DEPLOYED.limit_reported(reported[-3:], one[-3:]).tolist() == reported[-3:].tolist()  # who of three lies?
    apart = torch.tensor([0, 0, 0, 1, 1])  # of groups of three and two all are the measure
    assert DEPLOYED.limit_reported(reported, apart).tolist() == believed


def test_losses_count_up_to_what_all_but_the_doubted_report():
    losses = torch.tensor([[0.1, 2.0], [0.2, 2.5], [3.0, 0.1], [2.5, 0.2], [500.0, 600.0]])
    assert DEPLOYED.limit_losses(losses).tolist() == [*losses[:4].tolist(), [3.0, 3.0]]
    assert MEAN.limit_losses(losses) is losses


def test_an_outlier_is_far_from_everybody_and_nobody_is_among_equals():
    points = column(0.0, 0.1, 0.2, 5.0, 5.1, 5.2, 9.0)
    assert DEPLOYED.find_outliers(points).tolist() == [*[False] * 6, True]
    assert not DEPLOYED.find_outliers(torch.zeros(5, 1)).any()
    assert not DEPLOYED.find_outliers(column(0.0, 0.1, 1e30)).any()  # who of three lies?
    assert DEPLOYED.find_outliers(column(0.0, 0.1, 0.2, 1e30)).tolist() == [False, False, False, True]
    assert not MEAN.find_outliers(points).any()


@pytest.mark.parametrize("clients", [5, 6, 7, 8, 12])
@pytest.mark.parametrize("copied", [(-1,), (-1, -1), (-1, -2)])
def test_who_copies_others_makes_no_outliers_of_the_rest_and_is_found(clients, copied):
    """Equal clients say nothing of how far clients usually are: their nearest ones are 0 away."""
    points = torch.randn(clients, 64, generator=torch.Generator().manual_seed(0))
    points[: len(copied)] = points[list(copied)]
    equal = {*range(len(copied)), *(clients + at for at in copied)}
    assert not DEPLOYED.find_outliers(points).any()
    assert set(DEPLOYED.find_copies(points).nonzero()[:, 0].tolist()) == equal
    points[2] = 1e6
    assert DEPLOYED.find_outliers(points).nonzero()[:, 0].tolist() == [2], "the others are as far as they were"


@pytest.mark.parametrize("apart", [0.0, 1e-3])
def test_two_that_send_alike_are_as_far_from_the_others_as_one_of_them(apart):
    points = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    points[:2], points[1, 0] = 50.0, 50.0 + apart
    assert DEPLOYED.find_outliers(points).nonzero()[:, 0].tolist() == [0, 1]
    points[2] = 50.0
    assert not DEPLOYED.find_outliers(points[:9]).any(), "three of nine are a cluster"
    points[0], points[1], points[2] = points[9], points[10], points[11]
    assert not DEPLOYED.find_outliers(points).any(), "who copies a client in a cluster is in it"


def test_who_stands_for_clients_that_are_alike():
    points = column(0.0, 0.1, 5.0, 0.15, 9.0)[:, None]  # 0 and 0.15 are each within 0.1 of 0.1
    kept, whose = keep_one_of_each(points, None, 0.11, few=3)
    assert kept.tolist() == [0, 2, 4] and whose.tolist() == [0, 0, 1, 0, 2]
    assert keep_one_of_each(points, None, 0.11, few=1)[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("clients", "doubted"), [(3, 0), (4, 1), (10, 1), (11, 2), (12, 2), (30, 3)])
def test_a_decision_about_all_must_not_hang_on_a_tenth_of_them(clients, doubted):
    assert (DEPLOYED.count_doubted(clients), MEAN.count_doubted(clients)) == (doubted, 0)


def test_near_copies_by_a_quarter_of_the_clients_make_no_outliers():
    points = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    points[:2] = points[-2:] * 1.01
    assert not DEPLOYED.find_outliers(points).any()


def test_a_client_near_its_cluster_is_no_outlier_however_tight_that_is():
    assert not DEPLOYED.find_outliers(column(0.0, 0.01, 0.02, 5.0, 5.01, 5.02, 0.5)).any()


def test_an_outlier_is_found_by_all_its_points_that_count():
    points = torch.tensor([[[0.0], [5.0]], [[5.1], [0.1]], [[0.2], [5.2]], [[5.3], [0.3]], [[0.4], [1e30]]])
    assert DEPLOYED.find_outliers(points).tolist() == [False, False, False, False, True]
    there = torch.ones(5, 2, dtype=torch.bool)
    there[4, 1] = False
    assert not DEPLOYED.find_outliers(points, there).any()


def test_isolation_is_the_mean_distance_to_the_nearest_points_of_others_and_to_a_remote_clients():
    points = torch.tensor([[0.0, 4.0], [1.0, 1.0], [9.0, 9.0], [20.0, 20.0]])[..., None]
    nearest, remote = measure_isolation(points, None)
    assert nearest.tolist() == [2.0, 1.0, 5.0, 11.0]  # (1 + 3) / 2; 1; 9 - 4; 20 - 9
    assert remote.tolist() == [7.0, 8.0, 8.0, 16.0]  # of three others the second: (9 + 5) / 2; 8; 9 - 1; 20 - 4


@named
def test_without_liars_a_rule_gives_what_all_clients_agree_on(rule):
    trained: Stack = {"w": torch.tensor([[2.0, 1.0]]).repeat(5, 1), "b": torch.full((5,), 3.0)}
    start = {"w": torch.tensor([1.0, 1.0]), "b": torch.tensor(0.5)}
    assert_close(
        rule.average(trained, torch.arange(1, 6), start), {"w": torch.tensor([2.0, 1.0]), "b": torch.tensor(3.0)}
    )


@pytest.mark.parametrize(
    "rule", [NormClipping(bound=1e9), TrimmedMean(liars=0.0), Krum(liars=0.0), CentredClipping(radius=1e9)]
)
def test_a_rule_that_clips_nobody_is_the_mean(rule):
    trained, sizes = {"w": torch.randn(6, 4), "b": torch.randn(6)}, torch.tensor([3, 1, 4, 1, 5, 9])
    models = {"w": torch.randn(2, 4), "b": torch.randn(2)}
    sent, weights = Sent(models, torch.tensor([0, 1, 0, 1, 0, 1])), torch.rand(2, 8)
    weights /= weights.sum(1, keepdim=True)
    assert_close(rule.average(trained, sizes, {"w": torch.zeros(4), "b": torch.ones(())}), MEAN.average(trained, sizes))
    assert_close(rule.mix(weights, sent, trained, models), MEAN.mix(weights, sent, trained, models))
    assert_close(rule.sum(trained), MEAN.sum(trained))


@pytest.mark.parametrize("rule", [MEAN, *ROBUST], ids=lambda rule: type(rule).__name__)
def test_a_model_is_the_mix_of_its_contributors_and_without_any_stays(rule):
    models, trained = {"w": torch.tensor([[1.0], [2.0]])}, {"w": column(5.0, 5.0, 9.0)}
    sent, weights = Sent(models, torch.tensor([1, 1, 0])), torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.25, 0.0]])
    assert rule.mix_contributors(models, weights, sent, trained)["w"].tolist() == [[1.0], [5.0]]
    assert rule.mix_contributors(models, torch.zeros(2, 3), sent, trained)["w"].tolist() == [[1.0], [2.0]]
    assert rule.average_numbers(torch.full((4,), 3.0), torch.tensor([2, 6, 1, 1])) == pytest.approx(3.0)


@named
@pytest.mark.parametrize("lie", [1e30, -1e30, 3e38])
def test_one_of_five_moves_no_rule_beyond_the_honest_ones(rule, lie):
    honest = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    trained = {"w": torch.cat([honest, torch.full((1, 6), lie)])}
    found = rule.average(trained, torch.ones(5), {"w": torch.zeros(6)})["w"]
    assert found.norm() <= honest.norm(dim=1).max() * 1.01


def test_who_was_sent_what_is_the_nearest_where_clients_selected_it_themselves():
    models, trained = {"w": column(0.0, 10.0)}, {"w": column(1.0, 9.0, 12.0)}
    start, shares = Sent(models, None).find_start(trained)
    assert start["w"].flatten().tolist() == [0.0, 10.0, 10.0] and shares.tolist() == [[1, 0], [0, 1], [0, 1]]


def test_who_started_from_a_mean_of_models_is_clipped_around_it():
    models, trained = {"w": column(0.0, 10.0)}, {"w": column(6.0, 6.0, 4.0, 1005.0)}
    sent, weights = Sent(models, None, torch.full((4, 2), 0.5)), torch.full((1, 4), 0.25)
    assert NormClipping().mix(weights, sent, trained)["w"].item() == (6 + 6 + 4 + 7) / 4  # twice the median norm, 1


def test_vectors_become_the_models_that_they_were():
    models = {"w": torch.randn(3, 2, 2), "scale": torch.randn(3), "n": torch.randn(3, 1).double()}
    assert_same_bits(unflatten(flatten(models), models), models)


def test_a_rule_is_named_in_a_config_with_its_settings():
    config = read({"aggregation": {"name": "trimmed_mean", "liars": 0.2, "sample_cap": 3.0}})
    assert config.aggregation == TrimmedMean(liars=0.2, sample_cap=3.0)
    assert read(config.resolve()) == config
    assert Config().aggregation is None


@dataclass(frozen=True)
class First(Aggregation):
    """The update of the first contributor."""

    def combine(self, updates, weights):
        return updates[0]


def test_a_rule_of_ones_own_is_named_by_its_module():
    config = read({"aggregation": {"name": f"{__name__}:First", "sample_cap": 0.0}})
    assert config.aggregation == First(sample_cap=0.0)


@pytest.mark.parametrize(
    "wrong",
    [lambda: TrimmedMean(liars=0.5), lambda: Krum(keep=-1), lambda: NormClipping(factor=0.0),
     lambda: Mean(sample_cap=-1.0), lambda: CentredClipping(iterations=0), lambda: GeometricMedian(tolerance=0.0)],
)  # fmt: skip
def test_meaningless_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()


def weights_of(state) -> dict[str, torch.Tensor]:
    """The models of a state of a method with one or several."""
    served = getattr(state, "served", state)
    return next(getattr(served, name) for name in ("models", "params", "shared") if hasattr(served, name))


@dataclass(frozen=True)
class Liar:
    """Wraps a federation's answers: the models that one client trains become a huge number."""

    client: int
    lie: float = 9e11  # replies beyond 1e12 are rejected

    def attach(self, fed):
        honest = fed._run

        def run(name, cohort, keys, offer):
            send, keep = honest(name, cohort, keys, offer)
            at = (cohort == self.client).nonzero()[:, 0]
            return {n: self._forge(value, at) for n, value in send.items()}, keep

        fed._run = run
        return fed

    def _forge(self, value, at):
        return value if torch.is_tensor(value) else {n: t.index_fill(0, at, self.lie) for n, t in value.items()}


AVERAGING = [name for name in METHODS if name not in ("local", "flis_dc")]


@pytest.mark.parametrize("name", AVERAGING)
def test_one_liar_with_huge_weights_moves_no_model_far_in_any_method(name):
    fed = Liar(client=3).attach(Vectorised(make(name), population()))
    fed.aggregation = DEPLOYED
    experiment = Experiment.over(fed, rounds=2, evaluation=Evaluation(every=2, metrics="main", signatures="none"))
    summary = experiment.run()
    assert max(float(w.abs().max()) for w in weights_of(experiment.state).values()) < 100
    assert summary["accuracy"] > 0.2


def test_the_same_liar_owns_the_mean():
    fed = Liar(client=3).attach(Vectorised(make("fedavg"), population()))
    experiment = Experiment.over(fed, rounds=1)
    experiment.run()
    assert max(float(w.abs().max()) for w in experiment.state.params.values()) > 1e10


@pytest.mark.parametrize("name", ["fedavg", "flt", "ifca", "cfl"])
def test_engines_agree_on_a_rule(name):
    states = []
    for engine in (Sequential, Vectorised):
        fed = engine(make(name), population(), fraction=0.5)
        fed.aggregation = TrimmedMean()
        experiment = Experiment.over(fed, rounds=2)
        experiment.run()
        states.append(weights_of(experiment.state))
    assert_close(*states)


def test_a_run_with_a_rule_resumes_with_the_same_bits(tmp_path):
    settings = {"fraction": 0.5, "aggregation": DEPLOYED, "checkpoint_every": 1}
    whole = Experiment(make("flt"), population(), rounds=4, **settings)
    whole.run()
    Experiment(make("flt"), population(), rounds=2, checkpoint=tmp_path / "c", **settings).run()
    resumed = Experiment(make("flt"), population(), rounds=4, checkpoint=tmp_path / "c", **settings)
    resumed.run(resume=True)
    assert_same_bits(weights_of(whole.state), weights_of(resumed.state))


def test_an_experiment_takes_a_rule_and_the_mean_is_its_default():
    robust = Experiment(make("fedavg"), population(), rounds=1, aggregation=Median())
    assert robust.fed.aggregation == Median()
    assert Experiment(make("fedavg"), population(), rounds=1).fed.aggregation == Mean()


def test_an_inflated_sample_count_weighs_no_more_than_the_cap():
    people = tiny_population((10, 10, 10, 10))
    fed = Vectorised(make("fedavg"), replace(people))
    fed.aggregation = DEPLOYED
    fed.train[2] = fed.train[2].repeat(1000)
    assert fed.weights.tolist() == [10, 10, 10, 10]


def test_a_run_says_where_a_cluster_is_too_small_to_outvote_a_liar(caplog):
    says = "2 of 2 clusters have fewer than 4 replies in a round"
    for rule, clients, is_said in ((Mean(), 6, False), (Median(), 6, True), (Median(), 8, False)):
        caplog.clear()
        Experiment(make("oracle"), tiny_population((12,) * clients), rounds=2, aggregation=rule).run()
        assert (caplog.text.count(says), is_said) in ((0, False), (2, True))
