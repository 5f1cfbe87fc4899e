"""REPA: client clustering without training and data labels (Radovič and Pejović, arXiv 2309.14088, 2023).

An encoder is learnt by federated learning, or handed in; every client sends statistics of its embedded rows; the
server clusters the training clients by them (L2-normalised, K-Means) and trains one model per cluster by FedAvg.
Settled where the paper is silent, after the authors' later code: λ, the networks, Adam, the normalisation, and one
first model for all clusters. Deviations: a client is described by its training rows (paper: a holdout client by its
validation rows, on which it is scored too); the encoder's rounds are given, not stopped by a correlation; a training
client that sends no statistics is in the largest cluster.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import normalize

from kinfed.checks import seed_of_numpy
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import distances
from kinfed.clustering.kmeans import server_kmeans
from kinfed.federation import Federation, Offer, Replies
from kinfed.methods.assigning import first_state, placed
from kinfed.methods.cluster_models import Clusters, GroupState, Stale
from kinfed.models import Model
from kinfed.params import Params
from kinfed.signatures import EmbeddingStatistics
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class REPAState(GroupState):
    encoder: Params  # φ, frozen
    centres: Tensor  # [clusters, statistics] of K-Means


@dataclass(frozen=True)
class REPA(Clusters[REPAState]):
    """Clusters found before training by statistics of each client's embedded rows, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    signature: EmbeddingStatistics = field(default_factory=EmbeddingStatistics)
    clusters: int = 10  # of K-Means; it must be told
    seed: int = 10  # of K-Means
    stale: Stale = "exclude"  # what a client that was not asked contributes

    stores_signatures: ClassVar[bool] = False

    def __post_init__(self) -> None:
        seed_of_numpy(self.seed)

    def init(self, fed: Federation) -> REPAState:
        first = first_state(self.model, self.stale, fed, self.clusters)
        encoder = self.signature.learn(self.model, self.train_encoder, fed)
        replies = self.described(encoder, fed.clients, fed)
        points = normalize(replies["statistics"])
        _, centres = server_kmeans(points, min(self.clusters, len(points)), points[:0], self.seed, runs=10)
        return self.join(REPAState(**vars(first), encoder=encoder, centres=centres), fed.clients, replies, fed)

    def round(self, state: REPAState, t: int, fed: Federation) -> REPAState:
        return self.step(state, fed.sample(), fed)

    def admit(self, state: REPAState, newcomers: Tensor, fed: Federation) -> REPAState:
        return self.join(state, newcomers, self.described(state.encoder, newcomers, fed), fed)

    def join(self, state: REPAState, newcomers: Tensor, replies: Replies, fed: Federation) -> REPAState:
        """The state in which newcomers are in the cluster with the centre nearest to what they sent."""
        return placed(state, newcomers, replies.cohort, self.apart(state, replies).argmin(1), fed)

    def distances_to_clusters(self, state: REPAState, clients: Tensor, fed: Federation) -> Tensor:
        return self.apart(state, self.described(state.encoder, clients, fed))

    def apart(self, state: REPAState, replies: Replies) -> Tensor:
        """Distances from what clients sent to each cluster's centre: [clients, clusters]."""
        return distances(normalize(replies["statistics"]), state.centres, "l2")

    def described(self, encoder: Params, clients: Tensor, fed: Federation) -> Replies:
        """What these clients say of themselves."""
        return fed.run(self.compute_signature, clients, Offer(shared={"encoder": encoder}))

    def assignment_rule(self) -> str:
        return "a client joins the cluster whose centre is nearest to the statistics of its embedded rows"

    def signatures(self, state: REPAState, fed: Federation) -> Tensor:
        replies = self.described(state.encoder, fed.clients, fed)
        return replies.align(fed.clients, normalize(replies["statistics"]))

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        return self.model.init(), self.signature.network(self.model, shape).init()

    @client_task
    def train_encoder(self, client: Client, params: Params) -> Reply:
        """Client task: some epochs of the encoder and its heads."""
        return Reply({"params": self.signature.train(self.model, client, params)})

    @client_task(key="describe")  # its first name: another key would change results
    def compute_signature(self, client: Client, encoder: Params) -> Reply:
        """Client task: statistics of its embedded rows; neither labels nor training."""
        return Reply({"statistics": self.signature.describe(self.model, client, encoder)})
