"""Rules by which the shape of a table or figure is checked: each looks at points (x, y) of its rows.

A row of a table has one point in each column; a curve has a point for each evaluated round, or each value of an axis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Points = Sequence[tuple[float, float]]  # by ascending x
ROUNDING = 1e-9


@dataclass(frozen=True)
class Shape:
    """What a rule looks at: the row that is claimed of, the one it is compared with, and numbers."""

    better: Points
    than: Points  # empty: zero
    by: float = 0.0
    between: tuple[float, ...] = ()

    @property
    def difference(self) -> float:
        """The row less the other, or zero: from `between` on where it is given, else at their ends."""
        return self.value(self.better) - (self.value(self.than) if self.than else 0.0)

    def value(self, points: Points) -> float:
        """A row's value at `between`, or at its end."""
        return value_from(points, self.between[0]) if self.between else points[-1][1]


def value_from(points: Points, x: float) -> float:
    """The first value at x or beyond it; the last one where there is none."""
    return next((y for at, y in points if at >= x - ROUNDING), points[-1][1])


def is_gain(difference: float, by: float) -> bool:
    """Whether this is so much at least; more than nothing where that is zero: equal rows are not above each other."""
    return difference >= by - ROUNDING if by else difference > ROUNDING


def is_above(shape: Shape) -> bool:
    """At its end, or at an x, the row is above the other, or zero, by so much."""
    return is_gain(shape.difference, shape.by)


def is_at_most(shape: Shape) -> bool:
    """At its end, or at an x, the row exceeds the other, or zero, by so much at most."""
    return shape.difference <= shape.by + ROUNDING


def is_close(shape: Shape) -> bool:
    """At their ends, or at an x, the rows lie no further apart than so much."""
    return abs(shape.difference) <= shape.by + ROUNDING


def peaks(shape: Shape) -> bool:
    """The row is highest within an interval of x."""
    x, _ = max(shape.better, key=lambda point: point[1])
    return shape.between[0] - ROUNDING <= x <= shape.between[1] + ROUNDING


def dips(shape: Shape) -> bool:
    """The row is lowest within an interval of x."""
    x, _ = min(shape.better, key=lambda point: point[1])
    return shape.between[0] - ROUNDING <= x <= shape.between[1] + ROUNDING


def rises(shape: Shape) -> bool:
    """The row ends so much above where it began."""
    return is_gain(shape.better[-1][1] - shape.better[0][1], shape.by)


def falls(shape: Shape) -> bool:
    """The row ends so much below where it began."""
    return is_gain(shape.better[0][1] - shape.better[-1][1], shape.by)


def settles(shape: Shape) -> bool:
    """From an x on, the row stays within so much of where it ends."""
    later = [y for x, y in shape.better if x >= shape.between[0] - ROUNDING]
    return bool(later) and max(abs(y - later[-1]) for y in later) <= shape.by + ROUNDING


def exceeds(shape: Shape) -> bool:
    """Somewhere the row is at least so high."""
    return max(y for _, y in shape.better) >= shape.by - ROUNDING


def jumps(shape: Shape) -> bool:
    """Between two x the row rises by so much."""
    before, after = (value_from(shape.better, x) for x in shape.between)
    return is_gain(after - before, shape.by)


def is_highest(shape: Shape) -> bool:
    """The other row does not end above it by more than so much."""
    return shape.better[-1][1] >= shape.than[-1][1] - shape.by - ROUNDING


def is_lowest(shape: Shape) -> bool:
    """The other row does not end below it by more than so much."""
    return shape.better[-1][1] <= shape.than[-1][1] + shape.by + ROUNDING


def gains_most(shape: Shape) -> bool:
    """From an x on, the other row does not rise more."""
    own, other = (points[-1][1] - value_from(points, shape.between[0]) for points in (shape.better, shape.than))
    return own >= other - ROUNDING


RULES: dict[str, Callable[[Shape], bool]] = {
    "above": is_above,
    "at_most": is_at_most,
    "close": is_close,
    "peaks": peaks,
    "dips": dips,
    "rises": rises,
    "falls": falls,
    "settles": settles,
    "exceeds": exceeds,
    "jumps": jumps,
    "highest": is_highest,
    "lowest": is_lowest,
    "gains_most": gains_most,
}
PLACES = {"peaks": 2, "dips": 2, "jumps": 2, "settles": 1, "gains_most": 1}  # numbers of `between` that a rule needs
OF_ALL_ROWS = frozenset({"highest", "lowest", "gains_most"})  # rules that must hold of a row and each of the others
