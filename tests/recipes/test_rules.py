"""Rules of shapes and claims, by hand."""

import pytest

from kinfed.recipes import Outcome, Wanted, cells_of, load_recipe
from kinfed.recipes.outcome import FAILS, HOLDS, UNKNOWN, Result, judge_numbers
from kinfed.recipes.outcome_tables import count_verdicts, explain_absence, list_checks, make_tables
from kinfed.recipes.rules import RULES, Shape

LOW, HIGH = [(0, 1.0), (1, 2.0), (2, 2.5)], [(0, 1.5), (1, 4.0), (2, 3.0)]


@pytest.mark.parametrize(
    ("rule", "better", "than", "by", "between", "holds"),
    [
        ("above", HIGH, LOW, 0.5, (), True),  # 3.0 - 2.5
        ("above", HIGH, LOW, 0.6, (), False),
        ("above", LOW, (), 2.5, (), True),  # above zero
        ("above", HIGH, LOW, 2.0, (1,), True),  # at 1: 4.0 - 2.0
        ("above", HIGH, LOW, 2.1, (1,), False),
        ("above", LOW, LOW, 0.0, (), False),  # equal is not above
        ("above", HIGH, LOW, 0.0, (), True),
        ("rises", LOW[:1], (), 0.0, (), False),
        ("falls", LOW[:1], (), 0.0, (), False),
        ("exceeds", HIGH, (), 4.0, (), True),
        ("exceeds", LOW, (), 2.6, (), False),
        ("jumps", HIGH, (), 2.5, (0, 1), True),
        ("jumps", HIGH, (), 0.0, (1, 2), False),  # it falls there
        ("jumps", HIGH, (), 0.0, (1, 1), False),
        ("at_most", LOW, (), 2.4, (), False),
        ("at_most", LOW, HIGH, -0.5, (), True),
        ("close", LOW, HIGH, 0.5, (), True),
        ("close", LOW, HIGH, 0.4, (), False),
        ("peaks", HIGH, (), 0, (0.5, 1.5), True),
        ("peaks", LOW, (), 0, (0.5, 1.5), False),  # it is highest at 2
        ("dips", HIGH, (), 0, (0, 0.5), True),
        ("rises", LOW, (), 1.5, (), True),
        ("falls", LOW, (), 0.1, (), False),
        ("settles", HIGH, (), 1.0, (1,), True),  # 4.0 and 3.0
        ("settles", HIGH, (), 0.9, (1,), False),
        ("highest", HIGH, LOW, 0, (), True),
        ("highest", LOW, HIGH, 0.5, (), True),  # within half
        ("highest", LOW, HIGH, 0.4, (), False),
        ("lowest", HIGH, LOW, 0, (), False),
        ("gains_most", LOW, HIGH, 0, (1,), True),  # 0.5 from there on, the other falls
        ("gains_most", HIGH, LOW, 0, (1,), False),
        ("gains_most", LOW, HIGH, 0, (0,), True),  # 1.5 each
    ],
)
def test_a_rule_looks_at_the_points_of_rows(rule, better, than, by, between, holds):
    shape = Shape(better, than, by, between)
    assert RULES[rule](shape) is holds


def outcome_with(name, values):
    """An outcome whose cells have these numbers, by row and protocol; cells without are not run."""
    recipe = load_recipe(name)
    cells = cells_of(recipe, Wanted(data_dir="nowhere"))
    found = [(cell, values.get((cell.row.name, cell.protocols[0]))) for cell in cells]
    results = (
        judge_numbers(recipe, cell, {0: numbers}) if numbers else Result(cell, (), state=UNKNOWN)
        for cell, numbers in found
    )
    return Outcome(recipe, tuple(results))


def test_claims_are_counted_over_columns_and_the_protocols_that_their_rows_run_under():
    robust = {("sae", "paper"): 0.9, ("clf", "paper"): 0.95, ("ae", "paper"): 0.7, ("wd-1", "paper"): 0.5}
    outcome = outcome_with("repa-table-1", {key: {"robustness": value} for key, value in robust.items()})
    counts = count_verdicts(outcome)
    assert counts["REPA places 79 % of look-alikes rightly at least (SAE)"] == {HOLDS: 3, UNKNOWN: 3}  # prox: not run
    assert counts["REPA places 79 % of look-alikes rightly at least (AE)"] == {FAILS: 3, UNKNOWN: 3}
    against = counts["REPA with the supervised auto-encoder is more robust than weight differences"]
    assert against == {HOLDS: 3}  # weight differences never run under prox
    assert counts["the supervised auto-encoder is as robust as the classifier or more, on average"][FAILS] == 1
    said = list_checks([outcome])
    assert (
        "| weight differences collapse under drift alone: at most 40 % placed rightly | repa-table-1 |  | 1 |" in said
    )


def test_a_claim_compares_a_row_with_another_measure_or_protocol_of_it():
    def scores(holdout, validation):
        return {"holdout@10": holdout, "validation@10": validation}

    values = {
        ("repa", "plain"): scores(80.0, 80.9), ("repa", "prox"): scores(81.0, 83.0),
        ("wd", "plain"): scores(70.0, 70.0), ("wd", "prox"): scores(69.0, 70.0),
    }  # fmt: skip
    counts = count_verdicts(outcome_with("repa-figure-3", values))
    near = counts["REPA loses practically nothing on writers held out: within one point of those that train"]
    assert near == {HOLDS: 1, FAILS: 1}  # 0.9 apart, and 2.0 with the proximal term
    assert counts["the proximal term helps REPA, for writers held out"] == {HOLDS: 1}
    assert counts["the proximal term helps WD, for writers held out"] == {FAILS: 1}
    assert counts["the proximal term helps FedAvg, for writers held out"] == {UNKNOWN: 1}


def test_a_claim_compares_a_row_in_two_columns():
    recipe = load_recipe("flt-table-5")
    cells = cells_of(recipe, Wanted(rows=("m100-r20-e5-t100",), protocols=("paper",)))
    found = {"fedsem": 75.0, "flt-enc1": 81.0, "flt-enc2": 79.0}
    results = [
        judge_numbers(recipe, c, {0: {"accuracy": found[c.column.name]}}) for c in cells if c.column.name in found
    ]
    counts = count_verdicts(Outcome(recipe, tuple(results)))
    above = {
        says.split(" is above FedSEM by five")[0]: verdicts for says, verdicts in counts.items() if "by five" in says
    }
    assert (
        above["FLT, Enc1,"][HOLDS] == 1 and above["FLT, Enc2,"][FAILS] == 1 and above["kinfed's default"][UNKNOWN] == 1
    )


def test_a_peak_is_looked_for_once_the_whole_row_was_run():
    recipe = load_recipe("repa-figure-4")
    cells = cells_of(recipe, Wanted(rows=("repa",), protocols=("plain",)))
    found = [judge_numbers(recipe, cell, {0: {"holdout": 70.0 + at}}) for at, cell in enumerate(cells)]
    part = [*found[:2], *(Result(cell, (), state=UNKNOWN) for cell in cells[2:])]
    says = "REPA is best with many clusters"
    assert count_verdicts(Outcome(recipe, tuple(found)))[says][HOLDS] == 1
    assert count_verdicts(Outcome(recipe, tuple(part)))[says] == {UNKNOWN: 2}


def test_a_row_is_highest_once_all_rows_were_run_and_is_not_as_soon_as_one_is_higher():
    recipe = load_recipe("flis-table-2")
    cells = cells_of(recipe, Wanted(columns=("fmnist",), protocols=("paper",)))
    says = next(claim.says for claim in recipe.claims if claim.rule == "highest")

    def verdict(found):
        ran = [
            judge_numbers(recipe, cell, {0: {"accuracy": found[cell.row.name]}})
            if cell.row.name in found
            else Result(cell, (), state=UNKNOWN)
            for cell in cells
        ]
        return count_verdicts(Outcome(recipe, tuple(ran)))[says]

    rows = {cell.row.name: 80.0 for cell in cells}
    assert verdict(rows)[HOLDS] == 1
    assert HOLDS not in verdict({name: value for name, value in rows.items() if name != "ifca"})
    assert verdict({"flis-dc": 80.0, "ifca": 90.0})[FAILS] == 1


def test_a_figure_of_single_runs_is_judged_by_what_was_measured_at_their_end():
    ends = {("fedavg", "fair"): (80.0, 40.0), ("local", "fair"): (98.0, 0.5), ("calibrated", "fair"): (99.0, 1.2)}
    ends[("fedsem", "fair")] = (99.0, 1.3)
    values = {key: {"accuracy": mean, "variance": variance} for key, (mean, variance) in ends.items()}
    counts = count_verdicts(outcome_with("flt-figure-clients", values))
    assert counts["FLT's clients vary less than FedAvg's"] == {HOLDS: 2}
    assert counts["FLT's clients vary least, but for one"] == {HOLDS: 3}
    assert counts["FLT's mean is above FedAvg's by ten points"] == {HOLDS: 3}


def test_rows_that_were_not_run_are_counted_where_they_are_most_of_a_column():
    few = outcome_with("repa-table-1", {("sae", "paper"): {"robustness": 0.9}})
    many = outcome_with("repa-table-1", {(row, "paper"): {"robustness": 0.9} for row in ("sae", "clf", "ae")})
    (_, rows), *_ = make_tables(few)
    assert [row[0] for row in rows[1:]] == ["REPA, SAE"]
    assert [line for line in explain_absence(few) if "rows" in line] == [
        "7 of 8 rows were not run: drift + label skew; label skew; drift."
    ]
    (_, rows), *_ = make_tables(many)
    assert len(rows) == 1 + 8 and not explain_absence(many)


def test_rows_are_compared_by_the_seeds_that_both_have():
    recipe = load_recipe("flis-table-2")
    cells = {cell.row.name: cell for cell in cells_of(recipe, Wanted(columns=("fmnist",), protocols=("paper",)))}

    def verdicts(by_seed):
        found = [
            judge_numbers(recipe, cells[row], {seed: {"accuracy": value} for seed, value in numbers.items()})
            for row, numbers in by_seed.items()
        ]
        absent = [Result(cell, (), state=UNKNOWN) for row, cell in cells.items() if row not in by_seed]
        outcome = Outcome(recipe, (*found, *absent))
        claims = [claim for claim in outcome.claims() if claim[1:3] == ("fmnist", "paper")]
        return {claim.says: verdict for claim, _, _, verdict in claims}

    def find(verdicts, words):
        return next(verdict for says, verdict in verdicts.items() if words in says)

    ahead = {"flis-dc": {0: 90.0, 2: 80.0}, "ifca": {0: 89.0, 1: 60.0, 2: 79.0}}  # its mean is ahead by 9, or by 1
    behind = {"flis-dc": {0: 90.0, 2: 80.0}, "ifca": {0: 91.0, 1: 60.0, 2: 81.0}}
    assert find(verdicts(ahead), "above IFCA") == HOLDS
    assert find(verdicts(behind), "above IFCA") == FAILS  # though the mean over all of its own seeds is lower
    assert find(verdicts(behind), "highest") == FAILS
    assert find(verdicts({"flis-dc": {0: 90.0}, "ifca": {1: 60.0}}), "above IFCA") == UNKNOWN
