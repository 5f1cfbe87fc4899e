"""FedSoft: Soft Clustered Federated Learning with Proximal Local Updating (Ruan and Joe-Wong, AAAI 2022), Algorithm 1.

Every τ rounds clients say on which share u of their samples each of S centres has the least loss. A client trains a
model of its own along ∇f(w) + λ Σ uₛ(w - cₛ) and sends it; a centre is the mean of these. Shares add up to 1, so the
proximal term pulls towards c̄ = Σ uₛcₛ. Deviations: a round's clients are sampled as for all methods and weigh u · n in
a centre (paper: K clients drawn in proportion to u · n for each centre, which weigh the same); optimisers start anew
(authors: Adam goes on); a client starts as its c̄, and uses that, with shares of every round, where it never trains.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.aggregation import Sent
from kinfed.capabilities import Exportable, FindsClusters, require_labels
from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.federation import Federation, Offer
from kinfed.method import Method
from kinfed.methods.cluster_models import check_clusters, draw_models
from kinfed.methods.one_model import KeepsOwn
from kinfed.models import Model
from kinfed.params import Params, Payload, Stack, count, each_leaf, mix, model_in, select, tensor_in
from kinfed.per_client import Each
from kinfed.ranges import PARTS
from kinfed.targets import fill_unknown
from kinfed.training import LocalTraining, ShiftedGradient

SMALL = 1e-4  # σ, the least share


@dataclass(frozen=True)
class FedSoftState:
    models: Stack  # c, [S]
    shares: Each  # u, [clients, S]; 0 for a client that was not asked yet


@dataclass(frozen=True)
class FedSoft(KeepsOwn, Method[FedSoftState], FindsClusters[FedSoftState], Exportable[FedSoftState]):
    """Clients train models of their own, pulled towards cluster centres by their shares; centres are their means."""

    model: Model
    local: LocalTraining = LocalTraining()
    clusters: int = 2  # S, centres
    pull: float = 0.1  # λ, how strongly a client's model is held near its centres
    every: int = 2  # τ, rounds from one estimate of the shares to the next

    needs_labels: ClassVar[str] = "FedSoft's clients estimate their shares by the losses of its centres"

    def __post_init__(self) -> None:
        at_least(0, pull=self.pull)
        at_least(1, clusters=self.clusters, every=self.every)

    def init(self, fed: Federation) -> FedSoftState:
        check_clusters(self.clusters, fed)
        nobody = torch.zeros(fed.count, self.clusters, device=fed.device)
        return FedSoftState(draw_models(self.model, self.clusters, fed.device), nobody)

    def round(self, state: FedSoftState, t: int, fed: Federation) -> FedSoftState:
        state = self.admit(state, fed.clients, fed) if t % self.every == 0 else state
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        weights = (state.shares * fed.weights[:, None])[replies.cohort].T
        sent = Sent(state.models, None, self.fill(state.shares[replies.cohort]))  # c̄, near which they train
        models = fed.aggregation.mix_contributors(state.models, weights, sent, replies.stack("params"))
        state = replace(state, models=models)
        return self.admit(state, fed.unseen, fed) if len(fed.unseen) else state

    @client_task(ranges={"shares": PARTS})
    def estimate(self, client: Client, models: Stack) -> Reply:
        """Client task: u, the share of its training samples on which each centre has the least loss."""
        wins = torch.full((count(models),), SMALL, device=client.key.device) * client.train.size
        for batch in client.train.in_order():
            outputs = [self.model.logits(select(models, s), batch.x) for s in range(count(models))]
            losses = torch.stack([self.model.task.losses(output, fill_unknown(batch.y)) for output in outputs])
            best = losses.nan_to_num(nan=torch.inf, posinf=torch.inf).argmin(0)  # a NaN would be the least
            wins = wins + ((best == torch.arange(count(models), device=best.device)[:, None]) & batch.mask).sum(1)
        return Reply({"shares": wins / wins.sum().clamp(min=SMALL)})

    @client_task
    def train(self, client: Client, models: Stack, shares: Tensor) -> Reply:
        """Client task: its own model, trained near c̄."""
        centre = average_centres(models, shares)
        own = self.recall_own(client, centre)
        shift = each_leaf(lambda w, c: self.pull * (w - c), own, centre)
        held = replace(self.local, mu=self.local.mu + self.pull)
        trained, _ = held(client, own, ShiftedGradient(self.model.gradient, shift))
        return Reply({"params": trained}, keep=self.keep_own(client, trained))

    def offer(self, state: FedSoftState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"models": state.models}, each={"shares": self.fill(state.shares[cohort])})

    def fill(self, shares: Tensor) -> Tensor:
        """Server: the shares [m, S] of these clients, alike for one whose estimate did not arrive."""
        return torch.where(shares.sum(1, keepdim=True) > 0, shares, 1 / self.clusters)

    def personalise(self, client: Client, offer: Payload) -> Params:
        return self.recall_own(client, average_centres(model_in(offer, "models"), tensor_in(offer, "shares")))

    def admit(self, state: FedSoftState, unseen: Tensor, fed: Federation) -> FedSoftState:
        require_labels(self, unseen, fed)
        replies = fed.run(self.estimate, unseen, Offer(shared={"models": state.models}))
        return replace(state, shares=state.shares.index_copy(0, replies.cohort, replies["shares"]))

    def cluster_assignment(self, state: FedSoftState) -> Tensor:
        return torch.where(state.shares.sum(1) > 0, state.shares.argmax(1), -1)


def average_centres(models: Stack, shares: Tensor) -> Params:
    """c̄, the mean of the centres [S] weighted by shares [S]."""
    return select(mix(shares[None], models), 0)
