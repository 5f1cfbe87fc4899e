"""The rule: does a measured number agree with a published one?

A difference is forgiven up to the larger of the measure's own allowance and twice the joint spread √(s² + s'²) of the
published ± and of our seeds. Beyond it the number is better or worse. docs/reproducing.md explains the allowances.
"""

from dataclasses import dataclass
from math import hypot
from statistics import mean, stdev

from kinfed.recipes.measures import Measure
from kinfed.recipes.recipe import Printed

ROUNDING = 1e-9
AGREES, BETTER, WORSE, INCOMPARABLE = "agrees", "better", "worse", "cannot be compared"


@dataclass(frozen=True)
class Found:
    """One number of a cell: published, measured by each seed, and judged."""

    measure: Measure
    printed: Printed | None
    values: tuple[float, ...]
    reason: str = ""  # why it cannot be compared

    @property
    def mean(self) -> float | None:
        return mean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over seeds."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured minus published."""
        return None if self.printed is None or self.mean is None else self.mean - self.printed.value

    @property
    def tolerance(self) -> float | None:
        """How far they may lie apart and agree."""
        if self.printed is None:
            return None
        joint = hypot(self.printed.spread or 0.0, self.spread or 0.0)
        return max(self.measure.least, self.measure.share * abs(self.printed.value), 2 * joint)

    @property
    def verdict(self) -> str:
        """agrees, better, worse, cannot be compared; empty where a number is missing."""
        if self.difference is None or self.tolerance is None:
            return ""
        if self.reason:
            return INCOMPARABLE
        if abs(self.difference) <= self.tolerance + ROUNDING:
            return AGREES
        return BETTER if (self.difference < 0) == self.measure.lower_is_better else WORSE
