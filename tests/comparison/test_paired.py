"""Paired statistics: what the headline, the tables and the files of a comparison say, by hand-made outcomes."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp, ttest_ind

from kinfed.comparison import (
    COLUMNS,
    Outcome,
    as_csv,
    comparison_table,
    headline,
    make_cells,
    markdown_table,
    mean_and_spread,
    pairs_as_csv,
    runs_as_csv,
    win_matrix,
)
from kinfed.comparison.outcomes import name_population
from kinfed.comparison.paired import Measured, Pair, compare_unpaired, estimate
from kinfed.comparison.results_table import Ranking
from kinfed.quality import MAE
from kinfed.runs.reader import Run
from tests.report.folders import MadeUp, write_run


def outcome(method: str, seed: int, accuracy: float, scores=(), population: str = "same", **numbers: float) -> Outcome:
    plain = {"accuracy": accuracy, "variance": 1.0, "worst_decile": 0.1, "at_target": 0.0, "bytes_down": 0}
    return Outcome(
        method, seed, plain | {"bytes_up": 0} | numbers, seed + 1.0, scores=np.array(scores), population=population
    )


FIRST, SECOND = [0.70, 0.78, 0.86, 0.94], [0.69, 0.765, 0.852, 0.93]  # seeds differ by far more than methods
HARD = [outcome("flt", s, v) for s, v in enumerate(FIRST)] + [outcome("fedavg", s, v) for s, v in enumerate(SECOND)]


def interval(values: list[float]) -> tuple[float, float]:
    """Student's interval of a mean, by its definition."""
    mean, error = np.mean(values), np.std(values, ddof=1) / len(values) ** 0.5
    width = t.ppf(0.975, len(values) - 1) * error
    return mean - width, mean + width


def test_the_paired_headline_is_right_where_marginal_intervals_overlap():
    (low, high), (other_low, other_high) = interval(FIRST), interval(SECOND)
    assert low < other_high and other_low < high
    differences = [100 * (a - b) for a, b in zip(FIRST, SECOND, strict=True)]
    paired_low, paired_high = interval(differences)
    assert paired_low > 0
    assert headline(HARD) == (
        f"FLT serves clients best: 82.00 ± {100 * np.std(FIRST, ddof=1):.2f} % on average, "
        f"{np.mean(differences):.2f} points above FedAvg "
        f"(95 % CI {paired_low:.2f} to {paired_high:.2f}, paired over 4 seeds)."
    )
    header, rows = make_cells(HARD)
    gap = rows[1][header.index("to best (95 % CI)")]
    assert gap.value == pytest.approx(-np.mean(differences))
    assert gap.spread == f"± {(paired_high - paired_low) / 2:.2f}"
    assert [row[1].is_best for row in rows] == [True, False]
    assert "| **82.00** ± " in markdown_table(HARD)


def test_tables_to_read_have_the_fields_names_and_files_have_keys():
    runs = [outcome("flhc", 0, 0.9, [0.9, 0.9]), outcome("fedavg_ft", 0, 0.8, [0.8, 0.8])]
    assert [row[0].shown for row in make_cells(runs)[1]] == ["FL+HC", "FedAvg + fine-tuning"]
    assert markdown_table(runs).splitlines()[2].startswith("| FL+HC | **90.00** ")
    assert win_matrix(runs)[0] == ["better than", "FL+HC", "FedAvg + fine-tuning"] and win_matrix(runs)[1][0] == "FL+HC"
    assert "points above FedAvg + fine-tuning" in headline(runs)
    assert [line.split(",")[0] for line in runs_as_csv(runs).splitlines()[1:]] == ["flhc", "fedavg_ft"]
    assert pairs_as_csv(runs).splitlines()[1].startswith("flhc,fedavg_ft,")


def test_the_same_numbers_without_common_clients_decide_nothing():
    apart = [outcome(o.method, o.seed, o.summary["accuracy"], population=o.method) for o in HARD]
    assert headline(apart).startswith("No method is clearly best: FLT at 82.00")
    assert headline(apart).endswith("unpaired, 4 and 4 runs).")
    assert not any(row[1].is_best for row in make_cells(apart)[1])
    assert win_matrix(apart) == []


def test_intervals_are_scipys():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=4), rng.normal(1, 3, size=7)
    welch = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    found = compare_unpaired(*([Measured(str(seed), seed, v, a) for seed, v in enumerate(runs)] for runs in (a, b)))
    assert (found.low, found.high) == pytest.approx(tuple(welch))
    paired = ttest_1samp(b, 0.0).confidence_interval(0.95)
    assert (estimate(b, "").low, estimate(b, "").high) == pytest.approx(tuple(paired))


def test_differences_that_seeds_turn_round_are_not_resolved():
    runs = [outcome("a", s, v) for s, v in enumerate([0.9, 0.5, 0.7])]
    runs += [outcome("b", s, v) for s, v in enumerate([0.8, 0.6, 0.69])]
    said = headline(runs)
    assert said.startswith("No method is clearly best: a at 70.00 ± 20.00 % and b at 69.67") and "CI -" in said
    assert "**" not in markdown_table(runs)


def test_one_seed_is_compared_by_its_clients():
    scores = np.linspace(0.2, 0.9, 20)
    ahead = scores + 0.01 + 0.001 * (np.arange(20) % 2)
    runs = [outcome("a", 0, ahead.mean(), ahead), outcome("b", 0, scores.mean(), scores)]
    assert "1.05 points above b (95 % CI 1.03 to 1.07, paired over 20 clients of 1 seed)" in headline(runs)
    (row,) = csv.DictReader(io.StringIO(pairs_as_csv(runs)))
    assert (row["clients_better"], row["clients_equal"], row["clients_worse"]) == ("20", "0", "0")
    assert float(row["difference"]) == pytest.approx(1.05)


def test_clients_that_one_method_did_not_serve_are_left_out():
    a = Measured("p", 0, 0.5, np.array([0.5, np.nan, 0.7, 0.6]))
    b = Measured("p", 0, 0.4, np.array([0.4, 0.2, np.nan, 0.6]))
    assert Pair([a], [b]).by_client.tolist() == pytest.approx([0.1, 0.0])


def test_seeds_that_only_one_method_ran_decide_nothing():
    runs = [outcome("flt", 0, 0.9, [0.9, 0.9]), outcome("flt", 1, 0.1), outcome("fedavg", 0, 0.8, [0.8, 0.8])]
    assert headline(runs).startswith("FLT serves clients best")  # though its mean over both seeds is lower


def test_the_win_matrix_counts_clients_and_seeds():
    runs = [outcome("a", 0, 0.55, [0.5, 0.6, 0.5, 0.6]), outcome("b", 0, 0.5, [0.5, 0.5, 0.4, 0.6])]
    header, first, second = win_matrix(runs)
    assert header == ["better than", "a", "b"]
    assert first == ["a", "–", "75 % of clients, 1 of 1 seeds"] and second[1] == "25 % of clients, 0 of 1 seeds"


def test_where_lower_is_better_the_lower_wins():
    def run(method: str, seed: int, mae: float) -> Outcome:
        return Outcome(method, seed, {"mae": mae, "bytes_down": 0, "bytes_up": 0}, 1.0, MAE, population="same")

    runs = [run("a", s, v) for s, v in enumerate([3.0, 4.0, 5.0])] + [run("b", s, v) for s, v in enumerate([2, 3.1, 4])]
    said = headline(runs)
    assert said.startswith("b serves clients best: 3.033 ± 1.002 MAE on average, 0.967 below a (95 % CI 0.823 to 1.110")


def test_all_numbers_of_a_column_have_the_same_decimals():
    runs = [outcome("a", s, 0.5, clusters=c) for s, c in enumerate([4.0, 5.0, 5.0])]
    runs += [outcome("b", s, 0.5, clusters=c) for s, c in enumerate([5.0, 5.0, 5.0])]
    table = comparison_table(runs)
    at = table[0].index("clusters")
    assert [row[at] for row in table[1:]] == ["4.67 ± 0.58", "5.00 ± 0.00"]
    whole = comparison_table([outcome("a", 0, 0.5, clusters=12.0), outcome("b", 0, 0.4, clusters=3.0)])
    assert [row[at] for row in whole[1:]] == ["12", "3"]


def test_no_best_is_marked_among_seconds_or_numbers_of_clusters():
    header, rows = make_cells([outcome("a", 0, 0.9, clusters=2), outcome("b", 5, 0.8, clusters=3)])
    for title in ("seconds", "clusters"):
        assert not any(row[header.index(title)].is_best for row in rows)
    assert rows[0][1].is_best


def test_runs_csv_has_one_row_a_run():
    rows = list(csv.DictReader(io.StringIO(runs_as_csv([*HARD, outcome("local", 9, 0.2, ari=0.5)]))))
    assert len(rows) == 9 and rows[0]["ari"] == "" and rows[-1]["ari"] == "0.5"
    assert (rows[5]["method"], rows[5]["seed"], rows[5]["accuracy"]) == ("fedavg", "1", "0.765")


def test_runs_csv_of_a_sweep_over_methods_has_one_column_of_them():
    run = replace(outcome("fedavg", 0, 0.5), settings={"method": "fedavg", "training.lr": 0.1})
    header, row = csv.reader(io.StringIO(runs_as_csv([run])))
    assert header[:3] == ["method", "seed", "training.lr"] and len(set(header)) == len(header) == len(row)
    assert row[:3] == ["fedavg", "0", "0.1"]


def test_methods_that_serve_every_client_alike_differ_by_a_plain_zero():
    runs = [outcome(name, 0, 0.75, scores=[0.5, 0.75, 1.0]) for name in ("a", "b")]
    assert headline(runs).endswith("differ by 0.00 points (95 % CI 0.00 to 0.00, paired over 3 clients of 1 seed).")


def test_an_infinite_number_has_a_mean_and_no_deviation():
    runs = [outcome("a", s, v) for s, v in enumerate([float("inf"), 0.5])] + [
        outcome("b", 0, 0.5),
        outcome("b", 1, 0.4),
    ]
    assert mean_and_spread(COLUMNS[0], runs[:2]) == (float("inf"), None)
    assert mean_and_spread(COLUMNS[0], runs[2:]) == (pytest.approx(45), pytest.approx(50**0.5))
    assert "inf" in markdown_table(runs) and "accuracy" in as_csv(runs)


def test_errors_of_models_that_diverged_are_written_with_an_exponent():
    moved = {"bytes_down": 0, "bytes_up": 0}
    runs = [Outcome(name, 0, {"mae": mae} | moved, 1.0, MAE) for name, mae in (("a", 5e29), ("b", 12.5))]
    assert make_cells(runs)[1][0][1].shown == "5.000e+29" and make_cells(runs)[1][1][1].shown == "1.250e+01"


def test_equal_differences_have_no_interval():
    runs = [outcome("a", 0, 0.5, [0.4, 0.6]), outcome("b", 0, 0.45, [0.35, 0.55])]
    assert "5.00 points above b (all differences alike, so without an interval, paired over 2 clients" in headline(runs)
    seeds = [outcome(name, s, v) for s in range(3) for name, v in (("a", 0.5), ("b", 0.49))]
    assert np.isnan(Pair(*Ranking(COLUMNS[0], seeds).measured.values()).difference.low)
    header, rows = make_cells(seeds)
    assert str(rows[1][header.index("to best (95 % CI)")]) == "-1.00"
    assert [row[1].is_best for row in rows] == [True, False]


@pytest.mark.parametrize(
    ("settings", "is_same"),
    [
        (["task.label_smoothing=0.1"], True),
        (["task.class_weights=[1,1,1,1,1,1,1,1,1,2]"], True),
        (["task.name=next_token"], False),
        (["partition.clients=7"], False),
    ],
)
def test_runs_that_learn_otherwise_have_the_same_clients(tmp_path: Path, settings: list[str], is_same: bool):
    plain = write_run(tmp_path / "plain", MadeUp("fedavg"))
    other = write_run(tmp_path / "other", MadeUp("fedavg", settings=tuple(settings)))
    assert (name_population(Run(plain)) == name_population(Run(other))) == is_same
