"""CFL: Clustered Federated Learning (Sattler et al., IEEE TNNLS 2021), and its parameter tree for unseen clients.

A cluster is split in two when its mean update is short but some client's is long. As in the authors' code the parts
come from complete linkage, and `gap`, the paper's further criterion, is off; unlike there, ids stay right after nested
splits. With partial participation only this round's participants count; at a split the members that were not sampled
send one update. Unseen clients descend the tree of splits by one update at each node, to the side whose members'
updates at the split are more similar on average (paper: the most similar member).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.capabilities import Exportable, FindsClusters, require_labels
from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.client_tasks import flatten_updates, select_weights, train_update
from kinfed.federation import Federation, Offer, Replies
from kinfed.method import Method
from kinfed.methods.cluster_models import draw_models, offer_assigned
from kinfed.methods.split_tree import SplitRule, SplitTree
from kinfed.models import Model
from kinfed.params import Params, Stack, count, each_leaf, join, one_hot, select
from kinfed.per_client import Labels
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class CFLState:
    models: Stack  # [C]
    assignment: Labels  # [clients] the cluster of each; -1: none yet
    tree: SplitTree


@dataclass(frozen=True)
class CFL(Method[CFLState], FindsClusters[CFLState], Exportable[CFLState]):
    """One model that is split in two wherever its clients' updates point apart."""

    model: Model
    local: LocalTraining = LocalTraining()
    rule: SplitRule = SplitRule()
    after: int = 20  # rounds before the first split

    needs_labels: ClassVar[str] = "CFL assigns clients by the updates they train"
    clusters_after: ClassVar[str] = "after"

    def __post_init__(self) -> None:
        at_least(0, after=self.after)

    def init(self, fed: Federation) -> CFLState:
        models = draw_models(self.model, 1, fed.device)
        assignment = torch.full((fed.count,), -1, device=fed.device).index_fill(0, fed.clients, 0)
        return CFLState(models, assignment, SplitTree.whole(models, select_weights(self.model, models)))

    def round(self, state: CFLState, t: int, fed: Federation) -> CFLState:
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        for cluster in range(count(state.models) if t >= self.after else 0):
            state = self.split(state, cluster, replies, fed)
        members, updates = one_hot(state.assignment[replies.cohort], count(state.models)), replies.stack("update")
        means = fed.aggregation.mix(members / members.sum(1, keepdim=True).clamp(min=1), None, updates)
        tree = state.tree.measure(fed.aggregation.prepare(flatten_updates(self.model, replies)))
        return replace(state, models=each_leaf(torch.add, state.models, means), tree=tree)

    def split(self, state: CFLState, cluster: int, replies: Replies, fed: Federation) -> CFLState:
        """The state after the bipartition of this cluster, if its participants call for one."""
        here = (state.assignment[replies.cohort] == cluster).nonzero()[:, 0]
        updates = fed.aggregation.prepare(flatten_updates(self.model, replies)[here])
        right = self.rule(updates, state.tree.longest, fed.aggregation.count_doubted(len(updates)))
        if right is None:
            return state
        absent = fed.present[~torch.isin(fed.present, replies.cohort) & (state.assignment[fed.present] == cluster)]
        tree = state.tree.split(cluster, select(state.models, cluster), updates, right)
        models = join(state.models, select(state.models, slice(cluster, cluster + 1)))
        assignment = state.assignment.index_fill(0, replies.cohort[here[right]], count(state.models))
        return self.descend(CFLState(models, assignment, tree), absent, len(tree.parents) - 1, fed)

    def descend(self, state: CFLState, clients: Tensor, first: int, fed: Federation) -> CFLState:
        """The state in which these clients went down the tree of splits, from the `first` one on."""
        for s in range(first, len(state.tree.parents)):
            here = clients[state.assignment[clients] == state.tree.parents[s]]
            if len(here):
                replies = fed.run(self.differ, here, Offer(shared={"params": select(state.tree.nodes, s)}))
                right = replies.cohort[state.tree.goes_right(s, flatten_updates(self.model, replies))]
                state = replace(state, assignment=state.assignment.index_fill(0, right, s + 1))
        return state

    def admit(self, state: CFLState, unseen: Tensor, fed: Federation) -> CFLState:
        require_labels(self, unseen, fed)
        return self.descend(replace(state, assignment=state.assignment.index_fill(0, unseen, 0)), unseen, 0, fed)

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: its update of its cluster's model."""
        return train_update(self.local, client, params, self.model)

    @client_task
    def differ(self, client: Client, params: Params) -> Reply:
        """Client task: its update of the model at a split."""
        return train_update(self.local.outside_rounds, client, params, self.model)

    def offer(self, state: CFLState, cohort: Tensor, fed: Federation) -> Offer:
        return offer_assigned(state.models, state.assignment, cohort)

    def cluster_assignment(self, state: CFLState) -> Tensor:
        return state.assignment
