"""REPA: client clustering without training and data labels (Radovič and Pejović, arXiv 2309.14088, 2023).

An encoder is learnt by federated learning, or handed in; every client sends statistics of its embedded rows; the
server clusters the training clients by them (L2-normalised, K-Means) and trains one model per cluster by FedAvg.
Settled where the paper is silent, after the authors' later code: λ, the networks, Adam, the normalisation, and one
first model for all clusters. Deviations: a client is described by its training rows (paper: a holdout client by its
validation rows, on which it is scored too); the encoder's rounds are given, not stopped by a correlation; a training
client that sends no statistics is in the largest cluster.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kinfed.algorithms.groups import Groups, GroupState, Stale, first_state, placed
from kinfed.client import Client, Reply
from kinfed.clustering.hierarchy import distances
from kinfed.clustering.kmeans import server_kmeans
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer, Replies
from kinfed.models import Model
from kinfed.params import Params, repeat, rows
from kinfed.signatures import EmbeddingStatistics
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class REPAState(GroupState):
    encoder: Params  # φ, frozen
    centres: Tensor  # [clusters, statistics] of K-Means


@dataclass(frozen=True)
class REPA(Groups[REPAState]):
    """Clusters found before training by statistics of each client's embedded rows, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    signature: EmbeddingStatistics = field(default_factory=EmbeddingStatistics)
    clusters: int = 10
    seed: int = 10  # of K-Means
    stale: Stale = "exclude"

    def init(self, fed: Federation) -> REPAState:
        if not 1 <= self.clusters <= len(fed.clients):
            raise ConfigError(f"clusters must be 1..{len(fed.clients)}, the clients that train, got {self.clusters}")
        encoder = self.signature.learn(self.model, self.train_encoder, fed)
        return self.cluster(encoder, fed.run(self.describe, fed.clients, Offer(shared={"encoder": encoder})), fed)

    def cluster(self, encoder: Params, replies: Replies, fed: Federation) -> REPAState:
        """The state in which training clients are clustered by what they sent, and nobody else is placed."""
        points, who = normalize(replies["statistics"]), replies.cohort
        number = min(self.clusters, len(who))
        _, centres = server_kmeans(points, number, points[:0], self.seed, runs=10)
        first = first_state(self.model, self.stale, fed)
        state = REPAState(
            models=repeat(rows(first.models, 0), number),
            labels=torch.full_like(first.labels, -1),
            hears=torch.zeros_like(first.hears).repeat(number, 1),
            slots=first.slots,
            encoder=encoder,
            centres=centres,
        )
        state = placed(state, who, who, self.nearest(state, replies), fed)
        silent = fed.clients[torch.isin(fed.clients, who, invert=True)]
        return placed(state, silent, silent[:0], silent[:0], fed)

    def nearest(self, state: REPAState, replies: Replies) -> Tensor:
        """The cluster with the centre nearest to what each client sent."""
        return distances(normalize(replies["statistics"]), state.centres, "l2").argmin(1)

    def round(self, state: REPAState, t: int, fed: Federation) -> REPAState:
        cohort = fed.sample()
        return self.blend(state, fed.run(self.train, cohort, self.offer(state, cohort, fed)), fed)

    def admit(self, state: REPAState, newcomers: Tensor, fed: Federation) -> REPAState:
        replies = fed.run(self.describe, newcomers, Offer(shared={"encoder": state.encoder}))
        return placed(state, newcomers, replies.cohort, self.nearest(state, replies), fed)

    def train_encoder(self, client: Client, params: Params) -> Reply:
        """Client task: some epochs of the encoder and its heads."""
        return Reply({"params": self.signature.train(self.model, client, params)})

    def describe(self, client: Client, encoder: Params) -> Reply:
        """Client task: statistics of its embedded rows; neither labels nor training."""
        return Reply({"statistics": self.signature.describe(self.model, client, encoder)})

    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from its cluster's model."""
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"params": trained})
