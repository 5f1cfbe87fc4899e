"""WD: clusters by weight differences, what REPA is compared with (Radovič and Pejović, arXiv 2309.14088, section 4).

After some rounds of FedAvg every client tunes the common model θ for f epochs and sends what that changed, Δθ; the
server clusters the training clients by it (all parameters, L2-normalised, K-Means) and trains one model per cluster.
Settled where the paper is silent, as for REPA: the rounds before are given, all clusters start from one first model,
and training is `local` but for the epochs. An unseen client tunes θ too, and joins the cluster with the nearest centre.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import normalize

from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.client_tasks import flatten_updates, train_update
from kinfed.federation import Federation, Offer, Replies, run_fedavg
from kinfed.methods.cluster_models import Stale
from kinfed.methods.kmeans_clusters import ClusteredByKMeans
from kinfed.models import Model
from kinfed.params import Params
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class WD(ClusteredByKMeans):
    """Clusters found by what tuning changes in a common model of all clients, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    rounds_before: int = 30  # of FedAvg, before the clustering
    tuning_epochs: int = 1  # f, of what a client sends
    clusters: int = 10  # of K-Means; it must be given
    seed: int = 10  # of K-Means
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    needs_labels: ClassVar[str] = "WD assigns clients by what they train"

    def __post_init__(self) -> None:
        at_least(0, rounds_before=self.rounds_before)
        at_least(1, tuning_epochs=self.tuning_epochs)
        super().__post_init__()

    def learn_root(self, first: Params, fed: Federation) -> Params:
        return run_fedavg(self.prepare, first, self.rounds_before, fed)  # θ

    def collect(self, root: Params, clients: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
        replies = fed.run(self.tune, clients, Offer(shared={"params": root}))
        return replies, normalize(flatten_updates(self.model, replies))

    @client_task
    def prepare(self, client: Client, params: Params) -> Reply:
        """Client task: a round of the common model."""
        return Reply({"params": self.local.outside_rounds(client, params, self.model.gradient)[0]})

    @client_task
    def tune(self, client: Client, params: Params) -> Reply:
        """Client task: Δθ of f epochs."""
        return train_update(self.local.outside_rounds.for_epochs(self.tuning_epochs), client, params, self.model)
