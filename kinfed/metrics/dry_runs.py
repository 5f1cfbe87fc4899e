"""What a method answers in a dry run, where nothing is counted or remembered: signatures, and REPA's robustness (5.10).

Robustness: are clients that resemble a member of a cluster assigned to that cluster?
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Literal, TypeVar

import torch
from torch import Tensor

from kinfed.capabilities import FindsClusters, HasSignatures
from kinfed.client_tasks import compute_update
from kinfed.federation import Federation
from kinfed.method import Method
from kinfed.params import flatten

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
    if wanted == "none" or (wanted == "own" and not isinstance(method, HasSignatures)):
        return None
    if not fed.sees_samples and not (isinstance(method, HasSignatures) and method.stores_signatures):
        return None
    with dry_run(fed):
        vectors = compute_signatures(method, state, fed)
    sound = vectors.isfinite().all(1)
    return fed.clients[sound].cpu(), reduce_width(vectors[sound].cpu().float())


def compute_signatures(method: Method[State], state: State, fed: Federation) -> Tensor:
    """The method's own signatures of those who train, or else the update Δw of each (REPA's "WD"): [clients, d].

    Row i is of fed.clients[i], NaN if it did not reply.
    """
    if isinstance(method, HasSignatures):
        own: Tensor = method.signatures(state, fed)
        return own
    replies = fed.run(compute_update, fed.clients, method.offer(state, fed.clients, fed))
    return replies.align(fed.clients, flatten(replies.stack("update")))


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
    if not len(unseen) or not isinstance(method, FindsClusters):
        return None
    with dry_run(fed):
        clusters: Tensor = method.cluster_assignment(method.admit(state, unseen, fed))
    return clusters.cpu()


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
