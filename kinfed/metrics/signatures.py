"""How a method sees those who train, small enough to be kept with a run."""

from typing import Literal, TypeVar

import torch
from torch import Tensor

from kinfed.capabilities import HasSignatures
from kinfed.client_tasks import compute_update
from kinfed.federation import Federation
from kinfed.method import Method
from kinfed.metrics.robustness import aside
from kinfed.params import flatten

State = TypeVar("State")
Wanted = Literal["own", "all", "none"]
WIDTH = 32  # numbers a client that are kept


def signatures_seen(
    method: Method[State], state: State, fed: Federation, wanted: Wanted
) -> tuple[Tensor, Tensor] | None:
    """Who is described, and how: [n] and [n, up to 32]; None where nobody is.

    "own" looks at methods that have signatures; with "all" the clients of other methods train once more for Δw. It
    leaves no trace, but real clients elsewhere are not asked: a deployed server has what its method knows already.
    """
    if wanted == "none" or (wanted == "own" and not isinstance(method, HasSignatures)):
        return None
    if not fed.sees_samples and not (isinstance(method, HasSignatures) and method.stores_signatures):
        return None
    with aside(fed):
        vectors = compute_signatures(method, state, fed)
    sound = vectors.isfinite().all(1)
    return fed.clients[sound].cpu(), narrowed(vectors[sound].cpu().float())


def compute_signatures(method: Method[State], state: State, fed: Federation) -> Tensor:
    """The method's own signatures of those who train, or else the update Δw of each (REPA's "WD"): [clients, d].

    Row i is of fed.clients[i], NaN if it did not reply.
    """
    if isinstance(method, HasSignatures):
        own: Tensor = method.signatures(state, fed)
        return own
    replies = fed.run(compute_update, fed.clients, method.offer(state, fed.clients, fed))
    return replies.align(fed.clients, flatten(replies.stack("update")))


def narrowed(vectors: Tensor, width: int = WIDTH) -> Tensor:
    """The vectors in their first principal directions, if they are wider ([n, d] -> [n, width])."""
    most = min(width, len(vectors))
    if vectors.shape[1] <= width or not most:
        return vectors
    with torch.random.fork_rng(devices=[]):  # it starts from random directions, and nobody else's draws change
        torch.manual_seed(0)
        u, s, _ = torch.pca_lowrank(vectors, q=most)
    return u * s
