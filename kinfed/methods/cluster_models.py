"""Shape: several models, and for each client the one it is served.

`hears[g, m]` says that client m's updates enter model g. A partition into clusters is a block matrix, FLT's case I the
distinct rows of its related-clients matrix: clients with the same relatives share one model instead of holding copies.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from kinfed.aggregation import mix_heard, one_hot
from kinfed.capabilities import Exportable
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.graph import components
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.errors import RoleError
from kinfed.federation import Federation, Offer, Replies
from kinfed.method import Method
from kinfed.params import Params, Payload, Stack, put, subtract
from kinfed.per_client import Heard, Labels, Members, Slots

Stale = Literal["aggregated", "last_local", "exclude"]


@dataclass(frozen=True)
class ServedState:
    models: Stack  # [G]
    labels: Labels  # [clients] the model each is served; -1: not placed yet


@dataclass(frozen=True)
class GroupState(ServedState):
    hears: Heard  # [G, clients] bool
    slots: Slots  # [clients] what each trained last; empty unless stale="last_local"
    tree: Dendrogram  # how clients were merged into groups; of nobody where they were not


@dataclass(frozen=True)
class ComparedState(GroupState):
    members: Members  # [m] who was clustered, and newcomers are compared with; [0] where nobody may come


V = TypeVar("V", bound=ServedState)
S = TypeVar("S", bound=GroupState)


class Served(Method[V], Exportable[V], ABC):
    """Every client is served one of several models; a method says which, and how they are made."""

    def offer(self, state: V, cohort: Tensor, fed: Federation) -> Offer:
        labels = state.labels[cohort]
        if bool((labels < 0).any()):
            raise RoleError(f"clients {cohort[labels < 0].tolist()} have no model yet: admit them first")
        return Offer(each={"params": state.models}, pick=labels)

    def cluster_assignment(self, state: V) -> Tensor:
        return state.labels

    @client_task
    def differ(self, client: Client, params: Params) -> Reply:
        """Client task: Δw, what local training changes in the model it is sent; some methods place clients by it."""
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"update": subtract(trained, params)})


class Groups(Served[S], ABC):
    """Averaging among relatives; a method says who they are.

    `stale` is what a client that was not asked this round contributes (FLT's code averages all slots every round):
    the model it is served ("aggregated"), what it trained last ("last_local"), or nothing ("exclude").
    """

    stale: Stale

    @abstractmethod
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: `params` after training from the model it is served."""

    def step(self, state: S, cohort: Tensor, fed: Federation) -> S:
        """The state after these clients trained what they are served, and relatives were averaged."""
        return self.blend(state, fed.run(self.train, cohort, self.offer(state, cohort, fed)), fed)

    def blend(self, state: S, replies: Replies, fed: Federation) -> S:
        """The state after averaging each model over the clients it hears, weighted by their rows."""
        weights, fresh = state.hears * fed.sizes.float(), replies.stack("params")
        if state.slots:  # "last_local"
            slots = put(state.slots, replies.cohort, fresh)
            return replace(state, slots=slots, models=mix_heard(state.models, weights, slots))
        if self.stale == "aggregated":
            rest = ~torch.isin(fed.everyone, replies.cohort)
            old = weights[:, rest] @ one_hot(state.labels[rest], len(weights)).T  # they hold what they were served
            heard = torch.cat([weights[:, replies.cohort], old], 1)
            return replace(state, models=mix_heard(state.models, heard, fresh, state.models))
        return replace(state, models=mix_heard(state.models, weights[:, replies.cohort], fresh))

    def export_state(self, state: S, clients: Tensor, sizes: Tensor) -> S:
        if isinstance(state, ComparedState) and not len(state.members):
            raise RoleError(
                "the run kept nothing that a stranger could be compared with: either its clients were not clustered "
                "yet, or all trained from the start; run it again with one that does not, such as roles.holdout=0.1"
            )
        without = replace(state, tree=Dendrogram.none(clients.device))  # nobody is placed by it
        return super().export_state(without, clients, sizes)

    def neighbours(self, state: S) -> NeighbourSets:
        nobody = torch.zeros_like(state.hears[:1])
        return NeighbourSets(torch.cat([state.hears, nobody]), state.labels.where(state.labels >= 0, len(state.hears)))

    def dendrogram(self, state: S) -> Dendrogram:
        return state.tree


class Clusters(Groups[S], ABC):
    """Clients train the model of their cluster, and use it as it is."""

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from the model it is served."""
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"params": trained, **self.remarks(client)})

    def remarks(self, client: Client) -> Payload:
        """Client: what it says beside what it trained; most methods need nothing."""
        return {}


def connected(graph: Tensor) -> Tensor:
    """The component of each client in a graph of relatives: [clients]; -1 for those who are not in it."""
    return torch.where(graph.any(1), components(graph).to(graph.device), -1)
