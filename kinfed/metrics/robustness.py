"""REPA's robustness (methods 5.10): are clients that resemble a member of a group placed in that group?"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor

from kinfed.capabilities import FindsClusters
from kinfed.federation import Federation
from kinfed.method import Method

State = TypeVar("State")


def originals_of(fed: Federation) -> Tensor:
    """For each client the one it was made to resemble; -1 for a real one: [clients]."""
    return torch.tensor([-1 if role.look_alike_of is None else role.look_alike_of for role in fed.roles])


def place_look_alikes(method: Method[State], state: State, fed: Federation) -> Tensor | None:
    """The groups once all look-alikes are placed too ([clients]); None if the method has none.

    It leaves no trace: no byte is counted, and no client remembers it.
    """
    newcomers = (originals_of(fed) >= 0).nonzero()[:, 0].to(fed.device)
    if not len(newcomers) or not isinstance(method, FindsClusters):
        return None
    with aside(fed):
        clusters: Tensor = method.cluster_assignment(method.admit(state, newcomers, fed))
    return clusters.cpu()


@contextmanager
def aside(fed: Federation) -> Iterator[None]:
    """Inside it clients can be asked; afterwards the federation is as it was before."""
    before = fed.ledger, fed.calls, fed.memory, fed.rejected
    fed.ledger, fed.calls, fed.rejected = deepcopy(fed.ledger), dict(fed.calls), list(fed.rejected)
    try:
        yield
    finally:
        fed.ledger, fed.calls, fed.memory, fed.rejected = before


def robustness(clusters: Tensor, originals: Tensor, members: Tensor) -> dict[str, float]:
    """The mean over groups of the share of their members' look-alikes that are in the group, and its standard error.

    groups and originals: [clients]; members: ids of the clients that the groups are made of. Nothing where no
    look-alike was given a group.
    """
    counts = torch.isin(originals, members) & (originals >= 0)
    counts &= clusters[originals.clamp(min=0)] >= 0
    home, now = clusters[originals[counts]], clusters[counts]
    if not bool((now >= 0).any()):
        return {}
    shares = torch.stack([(now[home == cluster] == cluster).double().mean() for cluster in home.unique()])
    error = {} if len(shares) < 2 else {"robustness_se": float(shares.std() / len(shares) ** 0.5)}
    return {"robustness": float(shares.mean())} | error
