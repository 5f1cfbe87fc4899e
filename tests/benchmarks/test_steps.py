import sys

from benchmarks import steps
from benchmarks.steps import training_seconds
from kinfed.bench.workloads import Workload


def test_a_training_is_timed():
    assert 0 < training_seconds(Workload("mlp", 3, 20, classes=5, cohort=3), "cpu", tf32=False, repeats=2) < 60


def test_the_table_has_a_row_for_each_workload(monkeypatch, capsys):
    monkeypatch.setattr(steps, "training_seconds", lambda workload, *how: 0.001 * workload.steps_each + 0.002)
    monkeypatch.setattr(sys, "argv", ["steps.py", "--device", "cpu", "--workloads", "flt4,leaf"])
    steps.main()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows == ["| flt4 | 480 | 25 | no | 1.000 | – | 2.00 |", "| leaf | 120 | 20 | no | 1.000 | – | 2.00 |"]
