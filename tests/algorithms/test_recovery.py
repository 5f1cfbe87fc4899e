"""Planted groups of five kinds are found, or not, as was written down in benchmarks/recovery.toml."""

from benchmarks.recovery import PLAN, read_plan
from kinfed.algorithms import ALGORITHMS

CELLS = read_plan()


def test_something_is_expected_of_every_method_on_every_kind():
    where = f"write it into [expected.METHOD] of benchmarks/{PLAN.name}, with the reason, before you measure"
    assert not CELLS.missing(), f"nothing is expected of {', '.join(CELLS.missing())}: {where}"
    assert {method for method, _ in CELLS.expected} == set(ALGORITHMS), "and of no method that is not there"
