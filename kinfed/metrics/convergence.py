"""How fast the mean over clients came to a target, to its last value, or to a stop far below its best."""

from collections.abc import Sequence
from math import isfinite

from kinfed.quality import Metric


def rounds_to_target(means: Sequence[tuple[int, float]], target: float, lower_is_better: bool = False) -> int | None:
    """The first evaluated round at which the mean over clients reaches the target; None if none does."""
    return next((round for round, mean in means if (mean <= target if lower_is_better else mean >= target)), None)


def converged_at(means: Sequence[tuple[int, float]], within: float = 0.01) -> int | None:
    """The first evaluated round from which the mean stays within `within` of its last value.

    None where it stayed there for fewer than three evaluations, or for less than a tenth of them: too few to say.
    """
    if not means:
        return None
    last = means[-1][1]
    far = [i for i, (_, mean) in enumerate(means) if abs(mean - last) > within]
    first = far[-1] + 1 if far else 0
    return means[first][0] if len(means) - first >= max(3, 0.1 * len(means)) else None


def find_convergence(means: Sequence[tuple[int, float]], metric: Metric) -> int | None:
    """The same, within a percentage point of a share, or a hundredth of the last value of another metric."""
    last = means[-1][1]
    return converged_at(means, 0.01 if metric.unit == "%" else 0.01 * abs(last)) if isfinite(last) else None


def is_stuck(means: Sequence[tuple[int, float]], chance: float) -> bool:
    """Whether the mean accuracy was above chance, has fallen below half of its best, and does not move any more.

    That is what weights that have diverged look like: the same answer for every sample.
    """
    last, best = [mean for _, mean in means[-2:]], max((mean for _, mean in means), default=0.0)
    return len(last) == 2 and last[0] == last[1] < best / 2 and best > 1.5 * chance
