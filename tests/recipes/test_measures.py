"""What is read from runs, and which of several runs is reported: numbers by hand."""

from pathlib import Path

import numpy as np
import pytest

from kinfed.config import Config, read
from kinfed.recipes import MEASURES, Wanted, cells_of, load_recipe, result_of
from kinfed.recipes.outcome import FAILS, HOLDS, Outcome, read_curves, reference
from kinfed.runs.reader import Run
from kinfed.runs.run_tables import Columns

FLHC = read({"method": "flhc", "methods": {"flhc": {"rounds_before": 2}}, "evaluation": {"target": 0.8}})


def run(config: Config, accuracies: tuple[float, ...], at_target: float = 0.5) -> Run:
    """A run that was evaluated after every round, and moved 1 MB each way in each."""
    count = len(accuracies)
    moved = np.arange(1.0, count + 1) * 1e6
    rounds = {
        "round": np.arange(1.0, count + 1),
        "accuracy": np.array(accuracies),
        "at_target": np.full(count, at_target),
        "bytes_down": moved,
        "bytes_up": moved,
    }
    made = Run(Path("nowhere"))
    vars(made).update(  # as if they had been read
        config=config,
        rounds=Columns(rounds, {}),
        summary={"accuracy": accuracies[-1], "at_target": at_target},
        seconds=1.0,
    )
    return made


def test_the_round_after_the_clustering_is_read_from_the_rounds():
    mine = run(FLHC, (0.1, 0.2, 0.3, 0.4))
    assert MEASURES["accuracy"].of(mine, FLHC) == pytest.approx(40)
    assert MEASURES["accuracy_after_clustering"].of(mine, FLHC) == pytest.approx(30)  # two rounds before, so the third
    assert MEASURES["accuracy_after_clustering"].of(run(FLHC, (0.1, 0.2)), FLHC) is None  # it never came that far
    longer = run(FLHC, tuple(i / 20 for i in range(1, 21)))
    assert MEASURES["accuracy_later"].of(longer, FLHC) == pytest.approx(60)  # the tenth after these two
    assert MEASURES["at_target_later"].of(mine, FLHC) is None


def test_a_multiple_is_of_plain_fedavg_in_the_same_round():
    mine, plain = run(FLHC, (0.1, 0.2, 0.3, 0.4)), run(FLHC, (0.1, 0.2, 0.2, 0.1))
    assert MEASURES["accuracy_after_clustering_times"].of(mine, FLHC, plain) == pytest.approx(1.5)
    assert MEASURES["accuracy_times"].of(mine, FLHC, plain) == pytest.approx(4)
    assert MEASURES["at_target_times"].of(mine, FLHC, run(FLHC, (0.1,), at_target=0.0)) is None
    other = reference(FLHC, MEASURES["accuracy_times"])
    assert other.method == "fedavg" and not other.methods and other.partition == FLHC.partition


def test_the_curve_of_a_row_that_is_a_round_of_a_longer_run_ends_there():
    figure = load_recipe("flis-figure-4")
    assert all(row.round == 80 for row in figure.rows.values())
    longer = run(FLHC, tuple(i / 200 for i in range(1, 201)))
    assert list(read_curves(figure, longer, 3)) == ["accuracy@1", "accuracy@2", "accuracy@3"]
    assert len(read_curves(figure, longer)) == 200


def test_rounds_and_megabits_to_a_target():
    mine = run(FLHC, (0.5, 0.7, 0.85, 0.9))
    assert MEASURES["rounds_to_target"].of(mine, FLHC) == 3
    assert MEASURES["megabits_to_target"].of(mine, FLHC) == pytest.approx(6e6 * 8 / 1e6 / 100)  # of 100 clients
    assert MEASURES["rounds_to_target"].of(run(FLHC, (0.5,)), FLHC) is None


def outcome(accuracy_of) -> Outcome:
    """Table IV of FL+HC, one row, as if its runs had ended so."""
    recipe = load_recipe("flhc-table-4")
    cells = cells_of(recipe, Wanted(rows=("l2-ward",)))

    def ended(config: Config) -> Run | None:
        accuracy = accuracy_of(config)
        return None if accuracy is None else run(config, (accuracy,) * 50)

    return Outcome(recipe, tuple(result_of(recipe, cell, (0, 1), ended, "") for cell in cells))


def quantile(config: Config) -> float | None:
    return config.settings_of("flhc")["hierarchy"].quantile if config.method == "flhc" else None  # type: ignore[attr-defined]


def test_of_a_sweep_the_best_run_is_reported():
    swept, searched = outcome(lambda c: {0.5: 0.8, 0.8: 0.97, 0.9: 0.96, 0.96: 0.5}.get(quantile(c), 0.7)).results
    assert swept.found[2].values == pytest.approx((97, 97)) and searched.found[2].values == pytest.approx((70, 70))
    assert [quantile(each.config) for each in swept.runs] == [0.8, 0.8] and swept.seeds == (0, 1)


def test_a_sweep_has_no_number_before_all_of_it_ran():
    swept, searched = outcome(lambda c: None if quantile(c) == 0.9 else 0.7).results
    assert not swept.found and swept.state == "not run" and searched.found


def test_variants_of_a_sweep_are_compared_by_the_seeds_that_all_of_them_have():
    def accuracy_of(config: Config) -> float | None:
        if quantile(config) == 0.8:
            return 0.9 if config.seed == 0 else 0.5
        return 0.8 if config.seed == 0 else None  # the others have ended for the first seed alone

    swept = outcome(accuracy_of).results[0]
    assert swept.seeds == (0,) and swept.found[2].values == pytest.approx((90,))
    assert [quantile(each.config) for each in swept.runs] == [0.8]


def test_a_claim_is_the_difference_of_two_main_numbers():
    recipe = load_recipe("flt-workshop-2")
    cells = cells_of(recipe, Wanted(protocols=("paper",)))

    def judged(flt: float) -> str:
        numbers = {"fedavg": 0.5, "fesem": 0.5, "flt": flt}
        results = [result_of(recipe, cell, (0,), lambda c: run(c, (numbers[c.method],)), "") for cell in cells]
        return Outcome(recipe, tuple(results)).judge(recipe.claims[0], ("mlp",), "paper")

    assert judged(0.76) == HOLDS and judged(0.74) == FAILS  # 25 points are claimed
    blank = Outcome(recipe, tuple(result_of(recipe, c, (0,), lambda _: None, "") for c in cells))
    assert blank.judge(recipe.claims[0], ("mlp",), "paper") == "not run"


def test_the_accuracy_is_of_what_clients_use_at_home():
    adapting = read({"evaluation": {"adapt": True}})
    mine = run(adapting, (0.4,))
    vars(mine)["summary"] = {"accuracy": 0.4, "accuracy_adapted": 0.9}
    assert MEASURES["accuracy"].of(mine, adapting) == pytest.approx(90)
    assert MEASURES["accuracy"].of(mine, FLHC) == pytest.approx(40)


def test_the_weighted_accuracy_too_is_of_what_clients_use_at_home():
    adapting = read({"evaluation": {"adapt": True}})
    mine = run(adapting, (0.4,))
    vars(mine)["summary"] = {"accuracy_val": 0.3}
    numbers = {"accuracy_adapted": np.array([0.5, 0.8, np.nan, 0.1]), "test_samples": np.array([30.0, 10.0, 5.0, 9.0])}
    vars(mine)["clients"] = Columns(numbers, {"role": ["trains", "late", "trains", "unseen"]})
    assert MEASURES["accuracy_weighted"].of(mine, adapting) == pytest.approx(100 * (0.5 * 30 + 0.8 * 10) / 40)
    assert MEASURES["accuracy_weighted"].of(mine, FLHC) == pytest.approx(30)
