"""Shape: several models, and for each client the one it is served.

`hears[g, m]` says that client m's updates enter model g. A partition into clusters is a block matrix, FLT's case I the
distinct rows of its related-clients matrix: clients with the same relatives share one model instead of holding copies.
"""

from abc import ABC
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from kinfed.aggregation import mix, mix_heard, one_hot
from kinfed.algorithm import Algorithm
from kinfed.client import Client
from kinfed.errors import RoleError
from kinfed.federation import Federation, Offer, Replies
from kinfed.params import Params, Stack, join, put

Stale = Literal["aggregated", "last_local", "exclude"]


@dataclass(frozen=True)
class GroupState:
    models: Stack  # [G]
    labels: Tensor  # [clients] the model each is served; -1: not placed yet
    hears: Tensor  # [G, clients] bool
    slots: Stack  # [clients] what each trained last; empty unless stale="last_local"


S = TypeVar("S", bound=GroupState)


class Groups(Algorithm[S], ABC):
    """Averaging among relatives; a method says who they are.

    `stale` is what a client that was not asked this round contributes (FLT's code averages all slots every round):
    the model it is served ("aggregated"), what it trained last ("last_local"), or nothing ("exclude").
    """

    stale: Stale

    def offer(self, state: S, cohort: Tensor, fed: Federation) -> Offer:
        labels = state.labels[cohort]
        if bool((labels < 0).any()):
            raise RoleError(f"clients {cohort[labels < 0].tolist()} have no model yet: admit them first")
        return Offer(each={"params": state.models}, pick=labels)

    def personalise(self, client: Client, params: Params) -> Params:  # type: ignore[override]
        return params

    def blend(self, state: S, replies: Replies, fed: Federation) -> S:
        """The state after averaging each model over the clients it hears, weighted by their rows."""
        weights, fresh = state.hears * fed.sizes.float(), replies.stack("params")
        if self.stale == "last_local":
            slots = put(state.slots, replies.cohort, fresh)
            return replace(state, slots=slots, models=mix_heard(state.models, weights, slots))
        if self.stale == "aggregated":
            rest = ~torch.isin(torch.arange(fed.count, device=fed.device), replies.cohort)
            old = weights[:, rest] @ one_hot(state.labels[rest], len(weights)).T  # they hold what they were served
            heard = torch.cat([weights[:, replies.cohort], old], 1)
            return replace(state, models=mix_heard(state.models, heard, join(fresh, state.models)))
        return replace(state, models=mix_heard(state.models, weights[:, replies.cohort], fresh))


def reseat(state: S, related: Tensor, placed: Tensor, sizes: Tensor) -> S:
    """The state with one model per distinct row of `related` ([clients, clients]), for the placed clients.

    A model starts as the mean of what its clients were served before; where all are new, of what their relatives are
    served, and without relatives of what everybody is.
    """
    hears, served = torch.unique(related[placed], dim=0, return_inverse=True)
    labels = torch.full_like(state.labels, -1).index_copy(0, placed, served)
    before = one_hot(state.labels, len(state.hears)).T * sizes[:, None]  # [clients, G before]
    weights = before.sum(0).expand(len(hears), -1)
    for nearer in (hears.float() @ before, one_hot(labels, len(hears)) @ before):
        weights = torch.where(nearer.sum(1, keepdim=True) > 0, nearer, weights)
    return replace(state, models=mix(weights / weights.sum(1, keepdim=True), state.models), labels=labels, hears=hears)
