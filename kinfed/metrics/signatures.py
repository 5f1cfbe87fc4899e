"""How a method sees those who train, small enough to be kept with a run."""

from typing import Literal, TypeVar

import torch
from torch import Tensor

from kinfed.federation import Federation
from kinfed.method import Method
from kinfed.metrics.robustness import aside

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
    if wanted == "none" or (wanted == "own" and not has_signatures(method)):
        return None
    if not fed.sees_samples and not method.remembers_signatures:
        return None
    with aside(fed):
        vectors = method.embeddings(state, fed)
    if vectors is None:
        return None
    sound = vectors.isfinite().all(1)
    return fed.clients[sound].cpu(), narrowed(vectors[sound].cpu().float())


def has_signatures(method: Method[State]) -> bool:
    """Whether the method describes its clients; the contract's own way is to let them train once more."""
    return type(method).embeddings is not Method.embeddings


def narrowed(vectors: Tensor, width: int = WIDTH) -> Tensor:
    """The vectors in their first principal directions, if they are wider ([n, d] -> [n, width])."""
    most = min(width, len(vectors))
    if vectors.shape[1] <= width or not most:
        return vectors
    with torch.random.fork_rng(devices=[]):  # it starts from random directions, and nobody else's draws change
        torch.manual_seed(0)
        u, s, _ = torch.pca_lowrank(vectors, q=most)
    return u * s
