"""REPA's correlation (methods 5.11): does a method see clients as alike whose data are alike?"""

import torch
from torch import Tensor

RESAMPLES = 100


def pairs_of(similarity: Tensor) -> Tensor:
    """The upper triangle without the diagonal: each pair of different clients once."""
    above = torch.ones_like(similarity, dtype=torch.bool).triu(1)
    return similarity[above].double().cpu()


def pearson(a: Tensor, b: Tensor) -> float | None:
    """Pearson's correlation of two lists of numbers; None where one of them is constant or has fewer than two."""
    if len(a) < 2 or float(a.max() - a.min()) < 1e-12 or float(b.max() - b.min()) < 1e-12:
        return None
    a, b = a - a.mean(), b - b.mean()
    return float((a @ b / (a.norm() * b.norm())).clamp(-1, 1))


def bootstrap_error(a: Tensor, b: Tensor, seed: int, resamples: int = RESAMPLES) -> float | None:
    """REPA's standard error: the deviation of the correlations of resampled pairs, over √resamples."""
    luck = torch.Generator().manual_seed(seed)
    picks = (torch.randint(len(a), (len(a),), generator=luck) for _ in range(resamples))
    found = [value for pick in picks if (value := pearson(a[pick], b[pick])) is not None]
    return float(torch.tensor(found, dtype=torch.double).std(correction=0)) / resamples**0.5 if found else None


def correlation(name: str, seen: Tensor, true: Tensor, seed: int) -> dict[str, float]:
    """The correlation of two client-by-client similarities and its error, by name; nothing where there is none."""
    a, b = pairs_of(seen), pairs_of(true)
    value = pearson(a, b)
    if value is None:
        return {}
    error = bootstrap_error(a, b, seed)
    return {f"correlation_{name}": value} | ({} if error is None else {f"correlation_{name}_se": error})
