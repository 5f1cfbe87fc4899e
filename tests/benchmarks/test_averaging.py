"""Means of Auto's last models: what a run keeps of them, and the table."""

import argparse
import json

import pytest
import torch

from benchmarks import averaging
from benchmarks.averaging import average_clients, count_averaged, measure, multiply_updates, show
from benchmarks.regret_cases import Case
from kinfed.data.partitions import DisjointClasses

LINE = {
    "case": "mnist-iid", "seed": 0, "clients": [2, 1, 1],
    "accuracy": {str(k): [80.0 + k, 90.0 - k, 70.0] for k in averaging.COUNTS},
    "products": [[-1.0, -2.0], [2.0, 1.0], [1.0, 2.0]],
}  # fmt: skip


def test_rules_serve_the_last_model_where_updates_agree_or_agree_more_and_more():
    assert count_averaged(LINE, "settled") == [4, 1, 1]
    assert count_averaged(LINE, "not faster") == [4, 4, 1]
    assert average_clients(LINE, [4, 1, 1]) == (2 * 84 + 89 + 70) / 4


def test_successive_updates_are_multiplied_and_rounds_without_one_left_out():
    models = [
        {"w": torch.tensor([[first], [second]])} for first, second in ((0.0, 0.0), (1.0, 1.0), (1.0, 3.0), (0.0, 6.0))
    ]
    assert multiply_updates(models) == [[-1.0], [2.0, 6.0]]


def test_the_table_has_what_means_gain(tmp_path):
    path = tmp_path / "averaging.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    row = show(path).splitlines()[2].split(" | ")
    assert row[2:5] == ["80.25", "+0.25", "+0.50"] and row[-2:] == ["+1.50", "+0.75 |"]


def test_a_run_keeps_the_accuracy_of_means_and_the_products_of_its_last_updates(monkeypatch):
    case = Case("digits", DisjointClasses(10, 5), train_samples=20, test_samples=10, fraction=0.5)
    monkeypatch.setitem(averaging.CASES, "digits-disjoint", case)
    line = measure("digits-disjoint", 0, argparse.Namespace(rounds=26, data_dir="", device="cpu"))
    assert set(line["accuracy"]) == {str(k) for k in averaging.COUNTS} and sum(line["clients"]) == 10
    assert max(map(len, line["products"])) <= 12, "of the last half of the rounds"
    assert average_clients(line, [1] * len(line["clients"])) == pytest.approx(line["last"])
