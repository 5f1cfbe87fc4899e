"""Means of Auto's last models: what a run keeps of them, and the table."""

import argparse
import json

import pytest

from benchmarks import averaging
from benchmarks.averaging import average_clients, count_averaged, measure, show, sum_successive
from benchmarks.regret_cases import Case
from kinfed.data.partitions import DisjointClasses

LINE = {
    "case": "mnist-iid", "seed": 0, "clients": [3, 1],
    "accuracy": {str(k): [80.0 + k, 90.0 - k] for k in averaging.COUNTS},
    "products": [[[1, -1], [-1, 1]], [[1, 1], [1, 1]]],
}  # fmt: skip


def test_a_model_is_averaged_by_the_sum_of_successive_products_and_clients_weigh_the_same():
    assert count_averaged(LINE) == [4, 1]
    assert average_clients(LINE, [4, 1]) == (3 * 84 + 89) / 4
    assert sum_successive([[1, 0, -2], [0, 0, 0], [-2, 0, 4]]) == -2, "nobody trained it in the second round"


def test_the_table_has_what_means_gain(tmp_path):
    path = tmp_path / "averaging.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    row = show(path).splitlines()[2]
    assert row == "| mnist-iid | 1 | 83.00 | +0.50 | +1.00 | +1.50 | +2.00 | +2.50 | +3.50 | +5.50 | +2.25 |"


def test_a_run_keeps_the_accuracy_of_means_and_the_products_of_its_last_updates(monkeypatch):
    case = Case("digits", DisjointClasses(10, 5), train_samples=20, test_samples=10, fraction=0.5)
    monkeypatch.setitem(averaging.CASES, "digits-disjoint", case)
    options = argparse.Namespace(rounds=26, data_dir="", device="cpu")
    line = measure("digits-disjoint", 0, options)
    assert set(line["accuracy"]) == {str(k) for k in averaging.COUNTS} and sum(line["clients"]) == 10
    assert {len(matrix) for matrix in line["products"]} == {13}, "the last half of the rounds"
    assert average_clients(line, [1] * len(line["clients"])) == pytest.approx(line["last"])
