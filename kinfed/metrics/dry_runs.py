"""What a method answers in a dry run, where nothing is counted or remembered: signatures, and REPA's robustness (5.10).

Robustness: are clients that resemble a member of a cluster assigned to that cluster?
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Literal, TypeVar

import torch
from torch import Tensor

from kinfed.federation import Federation
from kinfed.method import Method

State = TypeVar("State")
Wanted = Literal["own", "all", "none"]
WIDTH = 32  # numbers a client that are kept


@contextmanager
def dry_run(fed: Federation) -> Iterator[None]:
    """Inside it clients can be asked; afterwards the federation is as it was before."""
    before = fed.ledger, fed.calls, fed.memory, fed.rejected
    fed.ledger, fed.calls, fed.rejected = deepcopy(fed.ledger), dict(fed.calls), list(fed.rejected)
    try:
        yield
    finally:
        fed.ledger, fed.calls, fed.memory, fed.rejected = before


def collect_signatures(
    method: Method[State], state: State, fed: Federation, wanted: Wanted
) -> tuple[Tensor, Tensor] | None:
    """The ids and signatures of training clients, [n] and [n, up to 32]; None where there are none.

    "own" looks at methods that have signatures; with "all" the clients of other methods train once more for Δw. Real
    clients elsewhere are not asked: a deployed server has what its method knows already.
    """
    if wanted == "none" or (wanted == "own" and not has_signatures(method)):
        return None
    if not fed.sees_samples and not method.remembers_signatures:
        return None
    with dry_run(fed):
        vectors = method.embeddings(state, fed)
    if vectors is None:
        return None
    sound = vectors.isfinite().all(1)
    return fed.clients[sound].cpu(), reduce_width(vectors[sound].cpu().float())


def has_signatures(method: Method[State]) -> bool:
    """Whether the method has signatures of its own; the contract's default is to let clients train once more."""
    return type(method).embeddings is not Method.embeddings


def reduce_width(vectors: Tensor, width: int = WIDTH) -> Tensor:
    """The vectors in their first principal directions, if they are wider ([n, d] -> [n, width])."""
    most = min(width, len(vectors))
    if vectors.shape[1] <= width or not most:
        return vectors
    with torch.random.fork_rng(devices=[]):  # it starts from random directions, and nobody else's draws change
        torch.manual_seed(0)
        u, s, _ = torch.pca_lowrank(vectors, q=most)
    return u * s


def originals_of(fed: Federation) -> Tensor:
    """For each client the one it was made to resemble; -1 for a real one: [clients]."""
    return torch.tensor([-1 if role.look_alike_of is None else role.look_alike_of for role in fed.roles])


def assign_look_alikes(method: Method[State], state: State, fed: Federation) -> Tensor | None:
    """The clusters once all look-alikes are assigned too ([clients]); None if the method has none."""
    unseen = (originals_of(fed) >= 0).nonzero()[:, 0].to(fed.device)
    if not len(unseen) or method.cluster_assignment(state) is None:
        return None
    with dry_run(fed):
        clusters = method.cluster_assignment(method.admit(state, unseen, fed))
    return None if clusters is None else clusters.cpu()


def robustness(clusters: Tensor, originals: Tensor, members: Tensor) -> dict[str, float]:
    """The mean over clusters of the share of their members' look-alikes that are in the cluster, and its error.

    clusters and originals: [clients]; members: ids of the clients that the clusters are made of. Nothing where no
    look-alike was given a cluster.
    """
    counts = torch.isin(originals, members) & (originals >= 0)
    counts &= clusters[originals.clamp(min=0)] >= 0
    home, now = clusters[originals[counts]], clusters[counts]
    if not bool((now >= 0).any()):
        return {}
    shares = torch.stack([(now[home == cluster] == cluster).double().mean() for cluster in home.unique()])
    error = {} if len(shares) < 2 else {"robustness_se": float(shares.std() / len(shares) ** 0.5)}
    return {"robustness": float(shares.mean())} | error
