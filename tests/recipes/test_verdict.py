"""The rule by which numbers are judged, by hand."""

import pytest

from kinfed.recipes import MEASURES
from kinfed.recipes.costs import show_costs
from kinfed.recipes.measures import AGREES, BETTER, INCOMPARABLE, OTHER, WITHIN, WORSE, Found, Printed
from kinfed.recipes.outcome import average_variants

ACCURACY, VARIANCE = MEASURES["accuracy"], MEASURES["variance"]


@pytest.mark.parametrize(
    ("printed", "values", "verdict"),
    [
        (Printed(90.0), (91.0,), AGREES),  # one point is forgiven
        (Printed(90.0), (91.1,), BETTER),
        (Printed(90.0), (88.9,), WORSE),
        (Printed(90.0, 0.6), (91.6,), WITHIN),  # one seed is taken to spread as the published one: 2 · √2 · 0.6 = 1.7
        (Printed(90.0, 0.6), (91.8,), BETTER),
        (Printed(90.0), (88.0, 90.0, 87.0), WITHIN),  # off by 1.67; the seeds' spread is 1.53
        (Printed(90.0, 0.3), (88.0, 88.4), WORSE),  # 2 · √(0.3² + 0.28²) = 0.82 < 1 < 1.8
    ],
)
def test_an_accuracy_is_judged_by_its_points_and_both_spreads(printed, values, verdict):
    assert Found(ACCURACY, printed, values).verdict == verdict


def test_a_lower_variance_is_better_and_a_quarter_is_forgiven():
    assert Found(VARIANCE, Printed(40.0), (49.9,)).verdict == AGREES
    assert Found(VARIANCE, Printed(40.0), (29.0,)).verdict == BETTER
    assert Found(VARIANCE, Printed(40.0), (51.0,)).verdict == WORSE
    assert Found(VARIANCE, Printed(2.0), (2.9,)).verdict == AGREES  # one is forgiven where a quarter is less


def test_what_cannot_be_compared_keeps_its_difference():
    found = Found(ACCURACY, Printed(90.0), (80.0,), "other data")
    assert found.verdict == INCOMPARABLE and found.difference == -10.0


def test_another_protocol_is_never_better_or_worse():
    assert [Found(ACCURACY, Printed(90.0), (x,), is_judged=False).verdict for x in (80, 90, 99)] == [OTHER] * 3


def test_without_a_published_or_a_measured_number_there_is_no_verdict():
    assert Found(ACCURACY, None, (80.0,)).verdict == "" and Found(ACCURACY, Printed(80.0), ()).verdict == ""


def test_a_mean_over_variants_is_of_the_seeds_that_all_have_and_of_the_variants_that_have_a_measure():
    first, second = {0: {"accuracy": 90.0, "unseen": 80.0}, 1: {"accuracy": 50.0}}, {0: {"accuracy": 70.0}}
    assert average_variants([first, second]) == {0: {"accuracy": 80.0, "unseen": 80.0}}
    assert average_variants([first, {}]) == {}


def test_costs_are_means_over_the_seeds_that_reach_the_target():
    costs = {"cost_rounds": (20.0, float("inf"), 40.0), "cost_megabytes": (1.0, float("inf"), 2.0)}
    assert show_costs(costs) == ["30 (2 of 3 seeds)", "1.5", "–", "–", "–"]
    assert show_costs({"cost_rounds": (float("inf"),) * 2}) == ["not reached", "–", "–", "–", "–"]
    assert show_costs({"cost_rounds": (20.0, 30.0)})[0] == "25"
