"""Metrics over clients: accuracy, fairness, targets, convergence. Accuracies are fractions."""

from collections.abc import Sequence

import torch
from torch import Tensor


def mean_accuracy(accuracy: Tensor) -> float:
    """The plain mean over clients: each counts the same, whatever its rows."""
    return float(accuracy.double().mean())


def sample_accuracy(accuracy: Tensor, rows: Tensor) -> float:
    """REPA's VAL and HO: the mean over clients weighted by their test rows, so that each row counts the same."""
    return float((accuracy.double() * rows).sum() / rows.sum())


def standard_error(mean: float, rows: int) -> float:
    """FLT's ±: the binomial standard error √(p(1-p)/N) of an accuracy over N test rows."""
    return float((mean * (1 - mean) / rows) ** 0.5)


def variance(accuracy: Tensor) -> float:
    """Fairness: population variance over clients in squared percentage points; lower is fairer."""
    return float((100 * accuracy.double()).var(correction=0)) if len(accuracy) else float("nan")


def worst_decile(accuracy: Tensor) -> float:
    """The mean over the tenth of the clients (at least one) that fare worst."""
    worst = accuracy.double().sort().values[: max(1, len(accuracy) // 10)]
    return float(worst.mean())


def share_at_target(accuracy: Tensor, target: float) -> float:
    """The share of clients that reach the target accuracy."""
    return float((accuracy >= target).double().mean())


def rounds_to_target(means: Sequence[tuple[int, float]], target: float) -> int | None:
    """The first evaluated round at which the mean accuracy reaches the target; None if none does."""
    return next((round for round, mean in means if mean >= target), None)


def converged_at(means: Sequence[tuple[int, float]], within: float = 0.01) -> int | None:
    """The first evaluated round from which the mean accuracy stays within `within` of its last value."""
    if not means:
        return None
    last = means[-1][1]
    far = [i for i, (_, mean) in enumerate(means) if abs(mean - last) > within]
    return means[far[-1] + 1][0] if far else means[0][0]


def is_stuck(means: Sequence[tuple[int, float]], chance: float) -> bool:
    """Whether the mean accuracy was above chance, has fallen below half of its best, and does not move any more.

    That is what weights that have diverged look like: the same answer for every row.
    """
    last, best = [mean for _, mean in means[-2:]], max((mean for _, mean in means), default=0.0)
    return len(last) == 2 and last[0] == last[1] < best / 2 and best > 1.5 * chance


def accuracy_of(correct: Tensor, rows: Tensor) -> Tensor:
    """Accuracies of clients; not a number for those without test rows."""
    return torch.where(rows > 0, correct.double() / rows.clamp(min=1), torch.nan)
