"""FLSC: Federated Learning with Soft Clustering (Li, Li and Varshney, IEEE Internet of Things Journal 2021): soft IFCA.

As in IFCA clients are offered all C models. A client selects the n with the least losses, starts from their mean, and
what it trains counts in all n. With n = 1 it is IFCA. Deviations: means are weighted by samples, as in IFCA here; a
client uses the mean of its n models, from which it would train.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.aggregation import Sent
from kinfed.capabilities import Exportable, FindsClusters, require_labels
from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.client_tasks import score
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.method import Method
from kinfed.methods.cluster_models import draw_models
from kinfed.models import Model
from kinfed.params import Params, Payload, Stack, count, each_leaf, model_in, one_hot, select
from kinfed.per_client import Labels
from kinfed.ranges import CHOICE
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLSCState:
    models: Stack  # [C]
    choices: Labels  # [clients, n] the models that each selected last, the best one first; -1: it was never asked


@dataclass(frozen=True)
class FLSC(Method[FLSCState], FindsClusters[FLSCState], Exportable[FLSCState]):
    """Soft IFCA: clients select several models with the least losses, train their mean, and count in all of them."""

    model: Model
    local: LocalTraining = LocalTraining()
    clusters: int = 3  # C, models that clients select from
    overlap: int = 2  # n, models that a client selects

    needs_labels: ClassVar[str] = "FLSC's clients select their models by the losses"

    def __post_init__(self) -> None:
        at_least(1, clusters=self.clusters, overlap=self.overlap)
        if self.overlap > self.clusters:
            raise ConfigError(f"overlap must be 1..{self.clusters}, the clusters, got {self.overlap}")

    def init(self, fed: Federation) -> FLSCState:
        nothing = torch.full((fed.count, self.overlap), -1, device=fed.device)
        return FLSCState(draw_models(self.model, self.clusters, fed.device), nothing)

    def round(self, state: FLSCState, t: int, fed: Federation) -> FLSCState:
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        picked = one_hot(replies["choices"].flatten(), self.clusters).view(self.clusters, -1, self.overlap).sum(2)
        sent = Sent(state.models, None, picked.T / self.overlap)  # the means of what they selected
        weights = picked.clamp(max=1) * fed.weights[replies.cohort]  # one that is named twice counts once
        models = fed.aggregation.mix_contributors(state.models, weights, sent, replies.stack("params"))
        return FLSCState(models, state.choices.index_copy(0, replies.cohort, replies["choices"]))

    @client_task(ranges={"choices": CHOICE})
    def train(self, client: Client, models: Stack) -> Reply:
        """Client task: the n models with the least losses, and their mean, trained."""
        choices = self.rank(client, models)
        trained, _ = self.local(client, mean_of(models, choices), self.model.gradient)
        return Reply({"params": trained, "choices": choices})

    @client_task(ranges={"choices": CHOICE})
    def choose(self, client: Client, models: Stack) -> Reply:
        """Client task: the n models alone."""
        return Reply({"choices": self.rank(client, models)})

    def rank(self, client: Client, models: Stack) -> Tensor:
        """Client: the n models with the least losses on its training samples, the best one first: [n]."""
        losses = [score(self.model, select(models, m), client.train)["loss"] for m in range(count(models))]
        return torch.stack(losses).argsort(stable=True)[: self.overlap]

    def offer(self, state: FLSCState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"models": state.models})

    def personalise(self, client: Client, offer: Payload) -> Params:
        models = model_in(offer, "models")
        return mean_of(models, self.rank(client, models))

    def admit(self, state: FLSCState, unseen: Tensor, fed: Federation) -> FLSCState:
        require_labels(self, unseen, fed)
        if fed.round == 0 and not fed.is_over:
            return state  # first models say nothing of them yet; they select theirs whenever they are served
        replies = fed.run(self.choose, unseen, self.offer(state, unseen, fed))
        return replace(state, choices=state.choices.index_copy(0, replies.cohort, replies["choices"]))

    def cluster_assignment(self, state: FLSCState) -> Tensor:
        return state.choices[:, 0]


def mean_of(models: Stack, which: Tensor) -> Params:
    """The mean of some models of a stack."""
    return each_leaf(lambda w: w.index_select(0, which).mean(0), models)
