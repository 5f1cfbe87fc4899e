"""CFL: Clustered Federated Learning (Sattler et al., IEEE TNNLS 2021), and its parameter tree for newcomers.

A cluster is split in two when its mean update is short but some client's is long. As in the authors' code the parts
come from complete linkage, and `gap`, the paper's further criterion, is off; unlike there, ids stay right after nested
splits.
With partial participation only this round's participants count for norms, similarities and means. At a split the
members who were not asked are asked for one update. Newcomers descend the tree of splits by one update at each
node, to the side whose members' updates at the split are more similar on average (paper: the most similar member).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinfed.aggregation import mix, one_hot
from kinfed.algorithms.groups import Served, ServedState, inits, need_labels
from kinfed.client import Client, Reply
from kinfed.clustering.hierarchy import bipartition
from kinfed.federation import Federation, Offer, Replies
from kinfed.models import Model
from kinfed.params import Params, Stack, count, each_leaf, flatten, join, rows
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class CFLState(ServedState):
    nodes: Stack  # [S] the models at the splits; split s made cluster s + 1
    parents: Tensor  # [S] the cluster that was split
    sides: Tensor  # [S, 2, parameters] the mean direction of the updates on either side


@dataclass(frozen=True)
class CFL(Served[CFLState]):
    """One model that is split in two wherever its clients' updates point apart."""

    model: Model
    local: LocalTraining = LocalTraining()
    mean_below: float = 0.4  # ε₁, of the norm of the mean update
    some_above: float = 1.6  # ε₂, of the norm of the longest update
    after: int = 20  # rounds before the first split
    gap: float = 0.0  # γ_max; 0: every bipartition is accepted

    serves_unlabelled: ClassVar[bool] = False

    def init(self, fed: Federation) -> CFLState:
        models = inits(self.model, 1, fed.device)
        labels = torch.full((fed.count,), -1, device=fed.device).index_fill(0, fed.clients, 0)
        sides = flatten(models)[:0, None].repeat(1, 2, 1)
        return CFLState(models, labels, rows(models, slice(0)), labels[:0], sides)

    def round(self, state: CFLState, t: int, fed: Federation) -> CFLState:
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        for cluster in range(count(state.models) if t >= self.after else 0):
            state = self.split(state, cluster, replies, fed)
        heard = one_hot(state.labels[replies.cohort], count(state.models))
        means = mix(heard / heard.sum(1, keepdim=True).clamp(min=1), replies.stack("update"))
        return replace(state, models=each_leaf(torch.add, state.models, means))

    def split(self, state: CFLState, cluster: int, replies: Replies, fed: Federation) -> CFLState:
        """The state after the bipartition of this cluster, if its participants call for one."""
        here = (state.labels[replies.cohort] == cluster).nonzero()[:, 0]
        updates = flatten(replies.stack("update"))[here]
        if len(here) <= 2 or updates.mean(0).norm() >= self.mean_below or updates.norm(dim=1).max() <= self.some_above:
            return state
        right, alike = bipartition(updates)  # alike: α_cross
        if self.gap >= ((1 - alike) / 2).clamp(min=0).sqrt():
            return state
        absent = (state.labels == cluster) & ~torch.isin(fed.everyone, replies.cohort)
        node, directions = rows(state.models, slice(cluster, cluster + 1)), normalize(updates, dim=1)
        sides = torch.stack([directions[~right].mean(0), directions[right].mean(0)])
        state = CFLState(
            models=join(state.models, node),
            labels=state.labels.index_fill(0, replies.cohort[here[right]], count(state.models)),
            nodes=join(state.nodes, node),
            parents=torch.cat([state.parents, state.parents.new_tensor([cluster])]),
            sides=torch.cat([state.sides, sides[None]]),
        )
        return self.descend(state, absent.nonzero()[:, 0], len(state.parents) - 1, fed)

    def descend(self, state: CFLState, clients: Tensor, first: int, fed: Federation) -> CFLState:
        """The state in which these clients went down the tree of splits, from the `first` one on."""
        for s in range(first, len(state.parents)):
            here = clients[state.labels[clients] == state.parents[s]]
            if len(here):
                replies = fed.run(self.differ, here, Offer(shared={"params": rows(state.nodes, s)}))
                left, right = (normalize(flatten(replies.stack("update")), dim=1) @ state.sides[s].T).unbind(1)
                state = replace(state, labels=state.labels.index_fill(0, replies.cohort[right > left], s + 1))
        return state

    def admit(self, state: CFLState, newcomers: Tensor, fed: Federation) -> CFLState:
        need_labels(newcomers, fed, "CFL places clients by the updates they train")
        return self.descend(replace(state, labels=state.labels.index_fill(0, newcomers, 0)), newcomers, 0, fed)

    def train(self, client: Client, params: Params) -> Reply:
        """Client task: its update of its cluster's model."""
        return self.differ(client, params)
