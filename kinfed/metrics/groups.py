"""How well found groups fit planted ones, and what the relatedness graph got right."""

import torch
from torch import Tensor


def agreement(found: Tensor, planted: Tensor) -> dict[str, float]:
    """ARI, NMI, purity, and the number of groups found, over clients that have both labels (>= 0)."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    both = (found >= 0) & (planted >= 0)
    ours, true = found[both].cpu().numpy(), planted[both].cpu().numpy()
    return {
        "ari": float(adjusted_rand_score(true, ours)),
        "nmi": float(normalized_mutual_info_score(true, ours)),
        "purity": purity(found[both], planted[both]),
        "groups": float(len(found[both].unique())),
    }


def purity(found: Tensor, planted: Tensor) -> float:
    """The share of clients whose found group is mostly of their own planted group."""
    table = torch.stack(
        [torch.stack([((found == f) & (planted == p)).sum() for p in planted.unique()]) for f in found.unique()]
    )
    return float(table.max(1).values.sum() / table.sum())


def pair_quality(related: Tensor, planted: Tensor) -> tuple[float, float]:
    """Precision and recall of the related pairs of different clients."""
    true = (planted[:, None] == planted[None]) & ~torch.eye(len(planted), dtype=torch.bool, device=planted.device)
    said = related.bool() & ~torch.eye(len(planted), dtype=torch.bool, device=planted.device)
    hit = float((true & said).sum())
    return hit / max(1.0, float(said.sum())), hit / max(1.0, float(true.sum()))
