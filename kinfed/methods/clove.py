"""CLoVE: clustering of loss vector embeddings (Bhatia et al., 2025, arXiv 2506.22427), after the authors' code.

Clients are sent all C models and reply their losses, one for each. The server clusters these vectors by K-Means, gives
each cluster a model of its own so that the total loss is least (Hungarian matching), and clients train the model of
their cluster. Clients that kept their model for some of their rounds are sent that one alone, where all of a round did.
Deviations: SGD as `local` says (authors: Adam); every client replies its losses once before round 0, so that all have a
model, and then whenever it is sampled; an unseen client takes the model with the least loss, anew after every such
round, and one that comes later too (authors' code: an error). C must be given (authors: also by silhouette).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.capabilities import require_labels
from kinfed.checks import at_least, seed_of_numpy
from kinfed.client import Client, Reply, client_task
from kinfed.client_tasks import least_loss, score
from kinfed.clustering.kmeans import match_columns, server_kmeans
from kinfed.federation import Federation, Offer, Replies
from kinfed.methods.cluster_models import Clustered, ClusterModels, Stale, draw_models
from kinfed.models import Model
from kinfed.params import Stack, count, select
from kinfed.per_client import Each
from kinfed.ranges import LARGEST, Range
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class CLoVEState:
    served: ClusterModels
    stable: Each  # [clients] how many times in a row each took part and kept its model


@dataclass(frozen=True)
class CLoVE(Clustered[CLoVEState]):
    """Clients are clustered by their losses under all models; each cluster is matched with one, and trains it."""

    model: Model
    local: LocalTraining = LocalTraining()
    clusters: int = 2  # C, models
    stable_rounds: int = 3  # of a client without a change; where all clients of a round had them, they keep their model
    seed: int = 10  # of K-Means
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    needs_labels: ClassVar[str] = "CLoVE assigns clients by the losses of its models"
    hides_clients: ClassVar[bool] = False  # losses are not protected

    def __post_init__(self) -> None:
        at_least(1, clusters=self.clusters, stable_rounds=self.stable_rounds)
        seed_of_numpy(self.seed)

    def init(self, fed: Federation) -> CLoVEState:
        served = ClusterModels.init(self.model, self.stale, fed, self.clusters)
        served = replace(served, models=draw_models(self.model, self.clusters, fed.device))
        never = torch.zeros_like(served.assignment)
        return replace(self.cluster(CLoVEState(served, never), fed.clients, fed), stable=never)

    def round(self, state: CLoVEState, t: int, fed: Federation) -> CLoVEState:
        cohort = fed.sample()
        if bool((state.stable[cohort] >= self.stable_rounds).all()):
            return replace(state, served=self.train_clusters(state.served, cohort, fed))
        state = self.cluster(state, cohort, fed)
        state = replace(state, served=self.train_clusters(state.served, cohort, fed))
        return self.admit(state, fed.unseen, fed) if len(fed.unseen) else state

    def cluster(self, state: CLoVEState, clients: Tensor, fed: Federation) -> CLoVEState:
        """Server: the state in which these clients have the models of their clusters of loss vectors."""
        replies, losses = self.collect(state, clients, fed)
        if not len(losses):
            return state
        usual = ~fed.find_outliers(replies.cohort, losses)  # the others have the models that they say fit best
        some = fed.aggregation.limit_losses(losses)[usual]
        found, _ = server_kmeans(some, min(self.clusters, len(some)), some[:0], self.seed, runs=10)
        labels = losses.argmin(1).masked_scatter(usual, match_models(some, found)[found])
        kept = labels == state.served.assignment[replies.cohort]
        stable = state.stable.index_copy(0, replies.cohort, (state.stable[replies.cohort] + 1).where(kept, 0))
        return CLoVEState(state.served.assign(replies.cohort, replies.cohort, labels, fed), stable)

    def collect(self, state: CLoVEState, clients: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
        """Server: the replies of these clients, and their losses under all models: [replies, C]."""
        replies = fed.run(self.compute_losses, clients, Offer(shared={"models": state.served.models}))
        return replies, replies["losses"]

    @client_task(ranges={"losses": Range(least_loss, LARGEST)})
    def compute_losses(self, client: Client, models: Stack) -> Reply:
        """Client task: the mean loss on its training samples under each model; the largest under one that diverged."""
        totals = [score(self.model, select(models, m), client.train)["loss"] for m in range(count(models))]
        losses = torch.stack(totals) / client.train.size.clamp(min=1)
        usable = losses < LARGEST  # a model that diverged is none to take, and no lie, but samples suit one of them
        return Reply({"losses": losses.where(usable, torch.where(usable.any(), LARGEST, torch.nan))})

    def admit(self, state: CLoVEState, unseen: Tensor, fed: Federation) -> CLoVEState:
        require_labels(self, unseen, fed)
        replies, losses = self.collect(state, unseen, fed)
        return replace(state, served=state.served.assign(unseen, replies.cohort, losses.argmin(1), fed))


def match_models(losses: Tensor, labels: Tensor) -> Tensor:
    """The model of each cluster, one each, with which the total loss is least: [clusters]; losses: [clients, C]."""
    totals = torch.zeros(int(labels.max()) + 1, losses.shape[1], dtype=torch.double, device=losses.device)
    totals.index_add_(0, labels, losses.double())
    return match_columns(-totals)
