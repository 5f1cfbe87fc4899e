"""REPA: client clustering without training and data labels (Radovič and Pejović, arXiv 2309.14088, 2023).

An encoder is learnt by federated learning, or handed in; every client sends statistics of its embedded samples; the
server clusters the training clients by them (L2-normalised, K-Means) and trains one model per cluster by FedAvg.
Settled where the paper is silent, after the authors' later code: λ, the networks, Adam, the normalisation, and one
first model for all clusters. Deviations: a client's signature is of its training samples (paper: a holdout client's of
its validation samples, on which it is scored too); the encoder's rounds are given, not stopped by a correlation; a
training client that sends no statistics is in the largest cluster.
"""

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.functional import normalize

from kinfed.capabilities import AssignsUnseen, SendsNetworks
from kinfed.client import Client, Reply, client_task
from kinfed.federation import Federation, Offer, Replies
from kinfed.methods.cluster_models import Stale
from kinfed.methods.kmeans_clusters import ClusteredByKMeans, KMeansState
from kinfed.methods.signature_tasks import ENCODER_SUMMED
from kinfed.models import Model
from kinfed.params import Params
from kinfed.signatures import EmbeddingStatistics
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class REPA(ClusteredByKMeans, AssignsUnseen[KMeansState], SendsNetworks):
    """Clusters found before training by statistics of each client's embedded samples, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    signature: EmbeddingStatistics = field(default_factory=EmbeddingStatistics)
    clusters: int = 10  # of K-Means; it must be given
    seed: int = 10  # of K-Means
    stale: Stale = "exclude"  # what a client that was not sampled contributes
    summed_tasks = ENCODER_SUMMED

    def learn_root(self, first: Params, fed: Federation) -> Params:
        return self.signature.learn(self.model, self.train_encoder, fed)  # φ

    def collect(self, root: Params, clients: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
        replies = fed.run(self.compute_signature, clients, Offer(shared={"encoder": root}))
        return replies, normalize(replies["statistics"])

    @client_task
    def train_encoder(self, client: Client, params: Params) -> Reply:
        """Client task: some epochs of the encoder and its heads."""
        return Reply({"params": self.signature.train(self.model, client, params)})

    @client_task(key="describe")  # its first name: another key would change results
    def compute_signature(self, client: Client, encoder: Params) -> Reply:
        """Client task: statistics of its embedded samples; it takes neither labels nor training."""
        return Reply({"statistics": self.signature.compute(self.model, client, encoder)})

    def networks(self, shape: tuple[int, ...]) -> tuple[Params, ...]:
        return self.model.init(), *self.signature.networks(self.model, shape)

    def assignment_rule(self) -> str:
        return "a client joins the cluster whose centre is nearest to the statistics of its embedded samples"
