"""Paired comparisons. Methods share seeds and clients, so their differences vary less than each of them does.

Intervals are t-intervals of 95 % (scipy). From three common seeds on they are of the means of seeds, and hold for other
seeds; with fewer, of the differences of single clients, and hold for other clients of these seeds. Runs that share no
clients are compared by Welch's interval. Each is of one pair: none is corrected for the number of pairs. Where all
differences are the same number other than 0, nothing says how far others would spread: there is no interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
SURE = 0.95
ENOUGH = 3  # common seeds whose means are compared; with fewer, clients are
NOBODY = np.empty(0)


@dataclass(frozen=True)
class Measured:
    """What a run came to: the larger, the better."""

    population: str  # runs that share it have the same clients
    seed: int
    value: float
    scores: Numbers  # of each client; NaN: of none, or not a training one

    @property
    def key(self) -> tuple[str, int]:
        return self.population, self.seed


@dataclass(frozen=True)
class Interval:
    """A mean difference and its interval; NaN where it has none."""

    mean: float
    low: float = np.nan
    high: float = np.nan
    over: str = ""  # what differs from one to the next, in words

    @property
    def is_known(self) -> bool:
        return not np.isnan(self.low)

    @property
    def is_resolved(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Wins:
    """How often the first is better, equal, worse."""

    better: int
    equal: int
    worse: int

    @classmethod
    def of(cls, differences: Numbers) -> "Wins":
        return cls(int((differences > 0).sum()), int((differences == 0).sum()), int((differences < 0).sum()))


@dataclass(frozen=True)
class Pair:
    """The runs of two methods."""

    first: Sequence[Measured]
    second: Sequence[Measured]

    @cached_property
    def common(self) -> list[tuple[Measured, Measured]]:
        """Their runs on the same clients with the same seed."""
        others = {run.key: run for run in self.second}
        return [(run, others[run.key]) for run in self.first if run.key in others]

    @cached_property
    def by_seed(self) -> Numbers:
        """How far the first is ahead, for each common seed."""
        return np.array([a.value - b.value for a, b in self.common], dtype=float)

    @cached_property
    def by_client(self) -> Numbers:
        """How far the first is ahead, for each client of each common seed that both served."""
        parts = [a.scores - b.scores for a, b in self.common if len(a.scores) == len(b.scores)]
        together = np.concatenate(parts) if parts else NOBODY
        found: Numbers = together[~np.isnan(together)]
        return found

    @property
    def difference(self) -> Interval:
        """How far the first is ahead of the second."""
        seeds, clients = len(self.by_seed), len(self.by_client)
        if seeds >= ENOUGH:
            return estimate(self.by_seed, f"paired over {seeds} seeds")
        if seeds and clients > 1:
            return estimate(self.by_client, f"paired over {clients} clients of {seeds} seed{'s' * (seeds > 1)}")
        return Interval(float(self.by_seed.mean())) if seeds else compare_unpaired(self.first, self.second)


def estimate(differences: Numbers, over: str) -> Interval:
    """The mean of these differences, and Student's interval of it."""
    mean = float(differences.mean())
    if np.ptp(differences) <= 1e-12 * max(1.0, abs(mean)):
        alike = Interval(mean, over=f"all differences alike, so without an interval, {over}")
        return alike if abs(mean) > 1e-12 else Interval(mean, mean, mean, over)
    error = float(differences.std(ddof=1)) / len(differences) ** 0.5
    return make_interval(mean, error, len(differences) - 1, over)


def compare_unpaired(first: Sequence[Measured], second: Sequence[Measured]) -> Interval:
    """The difference of two means over different clients, and Welch's interval of it where both have several runs."""
    a, b = (np.array([run.value for run in runs]) for runs in (first, second))
    mean = float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2 or np.ptp(a) == np.ptp(b) == 0:
        return Interval(mean)
    errors = np.array([runs.var(ddof=1) / len(runs) for runs in (a, b)])
    freedom = errors.sum() ** 2 / (errors**2 / (len(a) - 1, len(b) - 1)).sum()  # Welch and Satterthwaite
    return make_interval(mean, float(errors.sum()) ** 0.5, float(freedom), f"unpaired, {len(a)} and {len(b)} runs")


def make_interval(mean: float, error: float, freedom: float, over: str) -> Interval:
    """Student's interval of a mean with this standard error and these degrees of freedom."""
    from scipy.special import stdtrit  # scipy.stats would take a second to load

    half = float(stdtrit(freedom, (1 + SURE) / 2)) * error
    return Interval(mean, mean - half, mean + half, over)
