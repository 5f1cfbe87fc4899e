"""Rules of shapes, by hand."""

import pytest

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
        ("exceeds", HIGH, (), 4.0, (), True),
        ("exceeds", LOW, (), 2.6, (), False),
        ("jumps", HIGH, (), 2.5, (0, 1), True),
        ("jumps", HIGH, (), 0.0, (1, 2), False),  # it falls there
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
        ("highest", HIGH, (), 0, (), True),
        ("highest", LOW, (), 0.5, (), True),  # within half
        ("lowest", HIGH, (), 0, (), False),
        ("gains_most", LOW, (), 0, (1,), True),  # 0.5 from there on, the other falls
        ("gains_most", LOW, (), 0, (0,), True),  # 1.5 each
    ],
)
def test_a_rule_looks_at_the_points_of_rows(rule, better, than, by, between, holds):
    shape = Shape(better, than, {"low": LOW, "high": HIGH}, by, between)
    assert RULES[rule](shape) is holds
