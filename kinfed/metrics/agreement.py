"""How well found groups fit planted ones, and what the relatedness graph got right."""

import torch
from torch import Tensor


def agreement(found: Tensor, planted: Tensor) -> dict[str, float]:
    """ARI, NMI, purity, and the number of groups found, over clients that have both labels (>= 0)."""
    both = (found >= 0) & (planted >= 0)
    table = crossed(found[both], planted[both])
    return {
        "ari": adjusted_rand(table),
        "nmi": mutual_information(table),
        "purity": purity(table),
        "clusters": float(len(table)),
    }


def crossed(found: Tensor, planted: Tensor) -> Tensor:
    """How many clients each found group and each planted one have in common: [found, planted]."""
    (ours, i), (true, j) = (labels.cpu().unique(return_inverse=True) for labels in (found, planted))
    return torch.bincount(i * len(true) + j, minlength=len(ours) * len(true)).view(len(ours), len(true)).double()


def purity(table: Tensor) -> float:
    """The share of clients whose found group is mostly of their own planted group."""
    return float(table.max(1).values.sum() / table.sum())


def adjusted_rand(table: Tensor) -> float:
    """Hubert and Arabie's index: 1 for the same groups, 0 for what chance gives."""
    together, ours, true = (float((n * (n - 1) / 2).sum()) for n in (table, table.sum(1), table.sum(0)))
    whole = float(table.sum())
    expected, most = ours * true / max(1.0, whole * (whole - 1) / 2), (ours + true) / 2
    return 1.0 if together == ours == true else (together - expected) / (most - expected)


def mutual_information(table: Tensor) -> float:
    """The mutual information of the two groupings over the mean of their entropies; 1 where neither divides anybody."""
    share = table / table.sum()
    ours, true = share.sum(1), share.sum(0)
    entropy = sum(float(-(p * p.log()).sum()) for p in (ours, true)) / 2
    shared = float(share.xlogy(share / (ours[:, None] * true)).sum())
    return 1.0 if entropy == 0 else max(0.0, shared / entropy)


def pair_quality(related: Tensor, planted: Tensor) -> tuple[float, float]:
    """Precision and recall of the related pairs of different clients."""
    true = (planted[:, None] == planted[None]) & ~torch.eye(len(planted), dtype=torch.bool, device=planted.device)
    said = related.bool() & ~torch.eye(len(planted), dtype=torch.bool, device=planted.device)
    hit = float((true & said).sum())
    return hit / max(1.0, float(said.sum())), hit / max(1.0, float(true.sum()))
