"""FeSEM, multi-centre federated learning (Xie et al., WWW journal 2023; arXiv 2005.01026), Algorithm 1.

Default is FLT's implementation: k-means on the latest models of all clients, warm-started at the last centres; all
start from one model. `assignment="nearest"` is the paper's E-step: the nearest of centres that start from different
inits; each client's first model is one of them at random (they are far apart: clients hardly ever change sides).
Deviation: centres are means weighted by rows (paper: plain). Not in the paper: a newcomer trains the mean of all
centres once and joins the one nearest to what it gets; holdout clients do so again when others change sides.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfed.aggregation import average, mix_heard, one_hot
from kinfed.capabilities import require_labels
from kinfed.checks import seed_of_numpy
from kinfed.clustering.coordinates import coordinates
from kinfed.clustering.hierarchy import distances
from kinfed.clustering.kmeans import server_kmeans
from kinfed.federation import Federation, Offer, Replies
from kinfed.keys import base_key, uniform
from kinfed.methods.assigning import first_state, inits, placed
from kinfed.methods.cluster_models import Clusters, GroupState, Stale
from kinfed.models import Model
from kinfed.params import Stack, count, each_leaf, flatten, put, select
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FeSEMState(GroupState):
    centres: Stack  # [C] of the last k-means; [0] before the first


@dataclass(frozen=True)
class FeSEM(Clusters[FeSEMState]):
    """Clients are clustered by their latest models every round, and each cluster's models averaged."""

    model: Model
    local: LocalTraining = LocalTraining()
    clusters: int = 5  # C, it must be told
    assignment: Literal["kmeans", "nearest"] = "kmeans"  # FLT's code, or the paper's E-step
    stale: Stale = "aggregated"  # what a client that was not asked contributes
    seed: int = 43  # of k-means

    needs_labels: ClassVar[str] = "FeSEM places clients by the models they train"

    def __post_init__(self) -> None:
        seed_of_numpy(self.seed)

    def init(self, fed: Federation) -> FeSEMState:
        first = first_state(self.model, self.stale, fed, self.clusters)
        state = FeSEMState(**vars(first), centres=select(first.models, slice(0)))
        if self.assignment == "kmeans":
            return state
        luck = uniform(torch.tensor(base_key(fed.seed, "fesem")), fed.count).to(fed.device)[fed.clients]
        apart = replace(state, models=inits(self.model, self.clusters, fed.device))
        return placed(apart, fed.clients, fed.clients, (luck * self.clusters).long(), fed)

    def round(self, state: FeSEMState, t: int, fed: Federation) -> FeSEMState:
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        found, centres = self.assign(state, replies, fed)  # E-step
        labels = state.labels.index_copy(0, fed.clients, found)
        hears = one_hot(labels, self.clusters).bool() & torch.isin(fed.everyone, fed.clients)
        after = self.blend(replace(state, hears=hears, centres=centres), replies, fed)  # M-step, of the models held
        after, moved = replace(after, labels=labels), not torch.equal(labels, state.labels)
        return self.admit(after, fed.unseen, fed) if moved and len(fed.unseen) else after

    def assign(self, state: FeSEMState, replies: Replies, fed: Federation) -> tuple[Tensor, Stack]:
        """The cluster of each client that trains, by the model it holds, and the centres of k-means."""
        held, whose = self.held(state, replies, fed)
        centres = state.models if self.assignment == "nearest" else state.centres
        points = coordinates(*held, centres)
        theirs, start = points[whose[fed.clients].cpu()], points[len(points) - count(centres) :]
        if self.assignment == "nearest":
            return distances(theirs, start, "l2").argmin(1).to(fed.device), state.centres
        found = server_kmeans(theirs, self.clusters, start, self.seed)[0].to(fed.device)
        holders = one_hot(whose[fed.clients], sum(count(models) for models in held))
        return found, mix_heard(state.models, one_hot(found, self.clusters) @ holders.T, *held)

    def held(self, state: FeSEMState, replies: Replies, fed: Federation) -> tuple[tuple[Stack, ...], Tensor]:
        """The models that clients hold, each once, and which of them is whose."""
        fresh, answered = replies.stack("params"), len(replies.cohort)
        if state.slots:
            return (put(state.slots, replies.cohort, fresh),), fed.everyone
        return (fresh, state.models), (state.labels + answered).index_copy(0, replies.cohort, fed.everyone[:answered])

    def admit(self, state: FeSEMState, newcomers: Tensor, fed: Federation) -> FeSEMState:
        require_labels(self, newcomers, fed)
        mean = average(state.models, (state.hears * fed.sizes).sum(1))
        replies = fed.run(self.differ, newcomers, Offer(shared={"params": mean}))
        trained = each_leaf(torch.add, replies.stack("update"), mean)
        nearest = distances(flatten(trained), flatten(state.models), "l2").argmin(1)
        return placed(state, newcomers, replies.cohort, nearest, fed)
