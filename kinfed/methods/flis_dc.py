"""FLIS-DC: dynamic, overlapping clusters by inference similarity (Morafah et al., FLIS, IEEE OJCS 2023).

Settled and changed: similarity is the cosine of prediction matrices, as in the code (the printed ‖Bᵢ⊙Bⱼ‖ could not
exceed 1/√samples); the server's samples are public ones that no client trains or is tested on (code: from the clients'
test set); a client selects by least loss on its training samples (the code's selection by hits on its *test* samples
leaks, and is there as `select_on="test_accuracy"`); the code's constant 0.96, which admits pairs however large β is, is
left out. An unseen client downloads the last cluster models, selects one, and remembers it; those that never train
select again after every round, since clusters live for one round, and these bytes count (`choose`).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfed.aggregation import Sent
from kinfed.capabilities import Exportable, FindsClusters, NeedsServerSamples, RelatesClients, require_labels
from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.federation import Federation, Offer, Replies
from kinfed.method import Method
from kinfed.methods.cluster_models import SelectOn, draw_models, find_components, model_at, select_model
from kinfed.methods.flis import first_memory, inference_similarity, server_samples, train_own
from kinfed.models import Model
from kinfed.params import Params, Payload, Stack
from kinfed.per_client import Pairs
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLISDCState:
    models: Stack  # [T] one for each participant of the last round; the first model before
    related: Pairs  # [clients, clients] bool: row i: the cluster of client i; empty for the others


@dataclass(frozen=True)
class FLISDC(
    Method[FLISDCState], FindsClusters[FLISDCState], RelatesClients[FLISDCState], Exportable[FLISDCState],
    NeedsServerSamples,
):  # fmt: skip
    """Every round each participant's model is averaged with those that predict alike on the server's samples."""

    model: Model
    local: LocalTraining = LocalTraining()
    beta: float = 0.4  # β, similarity from which on two models are averaged
    soft: bool = False  # compare probabilities, not classes
    select_on: SelectOn = "train_loss"  # of model selection; test_accuracy leaks, and is there to compare with papers

    needs_labels: ClassVar[str] = "FLIS' clients select their cluster by its model's loss"

    def __post_init__(self) -> None:
        at_least(0, beta=self.beta)

    def init(self, fed: Federation) -> FLISDCState:
        server_samples(fed)  # fails early where there are none
        none = torch.zeros(fed.count, fed.count, dtype=torch.bool, device=fed.device)
        return FLISDCState(draw_models(self.model, 1, fed.device), none)

    def round(self, state: FLISDCState, t: int, fed: Federation) -> FLISDCState:
        replies = fed.run(self.train, fed.sample(), Offer(shared={"models": state.models}))
        state = self.cluster(state, replies, fed) if len(replies.cohort) else state
        return self.admit(state, fed.unseen, fed) if len(fed.unseen) else state

    def cluster(self, state: FLISDCState, replies: Replies, fed: Federation) -> FLISDCState:
        """One cluster around each participant: those whose models predict alike, and itself."""
        cohort, trained = replies.cohort, replies.stack("params")
        alike = inference_similarity(self.model, trained, server_samples(fed), self.soft) >= self.beta
        alike = alike | torch.eye(len(cohort), dtype=torch.bool, device=fed.device)
        weights = alike * fed.weights[cohort].double()
        related = torch.zeros_like(state.related)
        related[cohort[:, None], cohort] = alike
        shares, sent = weights / weights.sum(1, keepdim=True), Sent(state.models, None)
        return replace(state, models=fed.aggregation.mix(shares, sent, trained), related=related)

    @client_task
    def train(self, client: Client, models: Stack) -> Reply:
        """Client task: it trains the cluster model that it selects, and remembers what it got."""
        return train_own(self, client, self.select(client, models))

    @client_task
    def choose(self, client: Client, models: Stack) -> Reply:
        """Client task: it remembers the cluster model that it selects."""
        return Reply(send={}, keep={"params": self.select(client, models)})

    def select(self, client: Client, models: Stack) -> Params:
        """Client: the cluster model that fits its samples best."""
        return model_at(models, select_model(client, self.model, models, self.select_on))

    def offer(self, state: FLISDCState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer()

    def personalise(self, client: Client, offer: Payload) -> Params:
        return client.recall_model("params")

    def initial_memory(self) -> Payload:
        return first_memory(self.model)

    def admit(self, state: FLISDCState, unseen: Tensor, fed: Federation) -> FLISDCState:
        require_labels(self, unseen, fed)
        fed.run(self.choose, unseen, Offer(shared={"models": state.models}))
        return state

    def neighbours(self, state: FLISDCState) -> NeighbourSets:
        return NeighbourSets.of_matrix(state.related)

    def cluster_assignment(self, state: FLISDCState) -> Tensor:
        return find_components(state.related)

    def needs_server_samples(self) -> bool:
        return True

    def admits_by_server_samples(self) -> bool:
        return False
