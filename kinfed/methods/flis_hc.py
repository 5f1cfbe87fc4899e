"""FLIS-HC: disjoint clusters by inference similarity (Morafah et al., FLIS, IEEE OJCS 2023).

Settled and changed: similarity and server samples as in FLIS-DC; clusters by average linkage on 1 - A, cut at 1 - β;
all clients' first training comes before round 0 and is no round. `variant="code"`: the authors' code has no hierarchy;
a client is averaged with all that are β-similar, as they were left, never-sampled ones with the first model (not kept:
there it also counts those before it in its round). An unseen client trains the first model once and joins the cluster
it is most like, or downloads all models and selects one (`newcomers="loss"`, as in the paper; one that never trains
does so after every round).
"""

from dataclasses import dataclass, replace
from math import inf, nextafter
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfed.capabilities import NeedsServerSamples, require_labels
from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import Dendrogram
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.federation import Federation, Offer
from kinfed.methods.cluster_models import (
    ClusteredOnce,
    ClusterModels,
    Merges,
    SelectOn,
    Stale,
    draw_models,
    drop_outlying,
    find_components,
    select_model,
)
from kinfed.methods.flis import (
    compare_predictions,
    drop_own,
    first_memory,
    own_or,
    predict,
    search_beta,
    server_samples,
    train_own,
)
from kinfed.models import Model
from kinfed.params import Params, Payload, Stack, model_in, select
from kinfed.per_client import Members
from kinfed.ranges import CHOICE
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FLISHCState:
    served: ClusterModels
    merges: Merges
    members: Members  # [m] the clients that were clustered, and unseen ones are compared with
    predicted: Tensor  # [m, server samples, classes] by members' models; [0, ...] where no client may join


@dataclass(frozen=True)
class FLISHC(ClusteredOnce[FLISHCState], NeedsServerSamples):
    """All clients train once and are clustered by what their models predict; then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    beta: float = 0.45  # β, similarity from which on clients belong together
    beta_by: Literal["given", "silhouette"] = "given"  # silhouette: searched for these clients, by their similarity
    linkage: Literal["average", "complete", "single"] = "average"  # between two clusters
    soft: bool = False  # compare probabilities, not classes
    variant: Literal["paper", "code"] = "paper"  # code: no hierarchy, a client is averaged with all that are similar
    newcomers: Literal["similarity", "loss"] = "similarity"  # assigned by what their model predicts, or they select one
    select_on: SelectOn = "train_loss"  # of newcomers' model selection
    stale: Stale = "exclude"  # the code's variant: always "last_local"

    needs_labels: ClassVar[str] = "FLIS assigns clients by the models they train, or by the loss of its own"

    def __post_init__(self) -> None:
        at_least(0, beta=self.beta)

    def init(self, fed: Federation) -> FLISHCState:
        served = ClusterModels.init(self.model, "last_local" if self.variant == "code" else self.stale, fed)
        server_samples(fed)  # fails early where there are none
        replies = fed.run(self.show, fed.clients, Offer(shared={"params": select(served.models, 0)}))
        predicted = predict(self.model, replies.stack("params"), server_samples(fed), self.soft)
        replies, predicted = drop_outlying(replies, predicted, fed)
        doubted = fed.aggregation.count_doubted(len(predicted))
        related, merges = self.cluster(replies.cohort, compare_predictions(predicted, predicted), doubted)  # A
        kept = slice(None) if len(fed.clients) < fed.count else slice(0)
        served = served.relate(replies.cohort, related, fed)
        return FLISHCState(served, merges, replies.cohort[kept], predicted[kept])

    def cluster(self, clients: Tensor, alike: Tensor, doubted: int = 0) -> tuple[NeighbourSets, Dendrogram]:
        """Who belongs together of these clients, by their similarity [m, m], and how they were merged."""
        beta = self.beta if self.beta_by == "given" else search_beta(alike, self.linkage, doubted)
        if self.variant == "code":
            similar = (alike >= beta) | torch.eye(len(alike), dtype=torch.bool, device=alike.device)
            return NeighbourSets.of_matrix(similar), Dendrogram.none(alike.device)
        merges = Dendrogram.of(clients, 1 - alike, self.linkage, nextafter(1 - beta, inf))
        return NeighbourSets.of_clusters(merges.clusters()), merges

    def round(self, state: FLISHCState, t: int, fed: Federation) -> FLISHCState:
        state = replace(state, served=self.train_clusters(state.served, fed.sample(), fed))
        again = self.newcomers == "loss" and len(fed.unseen)
        return self.admit(state, fed.unseen, fed) if again else state

    def admit(self, state: FLISHCState, unseen: Tensor, fed: Federation) -> FLISHCState:
        require_labels(self, unseen, fed)
        if self.newcomers == "loss":
            replies = fed.run(self.choose, unseen, Offer(shared={"models": state.served.models}))
            return replace(state, served=state.served.assign(unseen, replies.cohort, replies["choice"], fed))
        first = select(draw_models(self.model, 1, fed.device), 0)
        replies = fed.run(self.introduce, unseen, Offer(shared={"params": first}))
        predicted = predict(self.model, replies.stack("params"), server_samples(fed), self.soft)
        members = state.served.contributors[:, state.members].double()
        alike = compare_predictions(predicted, state.predicted) @ members.T / members.sum(1).clamp(min=1)  # on average
        return replace(state, served=state.served.assign(unseen, replies.cohort, alike.argmax(1), fed))

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from its cluster's model, remembered."""
        return train_own(self, client, params)

    @client_task
    def show(self, client: Client, params: Params) -> Reply:
        """Client task: the first model after E epochs, whose predictions the server compares."""
        return Reply({"params": self.local.outside_rounds(client, params, self.model.gradient)[0]})

    @client_task
    def introduce(self, client: Client, params: Params) -> Reply:
        """Client task: the same for an unseen client, which uses its cluster's model until it takes part."""
        return drop_own(client, self.show(client, params))

    @client_task(ranges={"choice": CHOICE})
    def choose(self, client: Client, models: Stack) -> Reply:
        """Client task: which cluster model an unseen client selects; it uses that until it takes part."""
        return drop_own(client, Reply({"choice": select_model(client, self.model, models, self.select_on)}))

    def personalise(self, client: Client, offer: Payload) -> Params:
        return own_or(client, model_in(offer, "params"))

    def initial_memory(self) -> Payload:
        return first_memory(self.model)

    def cluster_assignment(self, state: FLISHCState) -> Tensor:
        return find_components(self.neighbours(state).matrix())

    def needs_server_samples(self) -> bool:
        return True

    def admits_by_server_samples(self) -> bool:
        return self.newcomers == "similarity"
