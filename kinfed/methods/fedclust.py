"""FedClust (Islam et al., 2024, arXiv 2407.07124): clusters by the final layer that clients train.

All clients train the first model once and send its final layer alone; the server merges them by their distances up to a
threshold and trains one model per cluster by FedAvg. An unseen client does the same and joins the cluster it would
merge with first. Settled without the authors' code, of which there is none: this training is no round; all clusters
start from the first model; linkage and threshold are `Hierarchy`'s, which searches the latter by the silhouette.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from kinfed.capabilities import require_labels
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import Hierarchy
from kinfed.clustering.neighbour_sets import NeighbourSets
from kinfed.federation import Federation, Offer
from kinfed.methods.cluster_models import ClusteredOnce, ClusterModels, Merges, Stale, draw_models, drop_outlying
from kinfed.models import Model, is_last_layer
from kinfed.params import Params, flatten, select
from kinfed.per_client import Members
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedClustState:
    served: ClusterModels
    merges: Merges
    members: Members  # [m] the clients that were clustered, and unseen ones are compared with
    heads: Tensor  # [m, parameters] the final layer that each trained; [0, ...] where no client may join


@dataclass(frozen=True)
class FedClust(ClusteredOnce[FedClustState]):
    """Clusters found before training by the final layer that each client trains once, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    hierarchy: Hierarchy = Hierarchy()
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    needs_labels: ClassVar[str] = "FedClust assigns clients by the layer they train"

    def init(self, fed: Federation) -> FedClustState:
        replies = fed.run(self.train_head, fed.clients, self.first_offer(fed))
        replies, heads = drop_outlying(replies, flatten(replies.stack("head")), fed)
        merges = self.hierarchy.merge(replies.cohort, heads, fed.aggregation.count_doubted(len(heads)))
        served = ClusterModels.init(self.model, self.stale, fed)
        served = served.relate(replies.cohort, NeighbourSets.of_clusters(merges.clusters()), fed)
        kept = slice(None) if len(fed.clients) < fed.count else slice(0)
        return FedClustState(served, merges, replies.cohort[kept], heads[kept])

    def round(self, state: FedClustState, t: int, fed: Federation) -> FedClustState:
        return replace(state, served=self.train_clusters(state.served, fed.sample(), fed))

    def admit(self, state: FedClustState, unseen: Tensor, fed: Federation) -> FedClustState:
        require_labels(self, unseen, fed)
        replies = fed.run(self.train_head, unseen, self.first_offer(fed))
        clusters = state.served.assignment[state.members]
        nearest = self.hierarchy.predict(flatten(replies.stack("head")), state.heads, clusters)
        return replace(state, served=state.served.assign(unseen, replies.cohort, nearest, fed))

    def first_offer(self, fed: Federation) -> Offer:
        """Server: the first model, from which all heads are trained."""
        return Offer(shared={"params": select(draw_models(self.model, 1, fed.device), 0)})

    @client_task
    def train_head(self, client: Client, params: Params) -> Reply:
        """Client task: the final layer after E epochs of the whole model."""
        trained, _ = self.local.outside_rounds(client, params, self.model.gradient)
        return Reply({"head": {name: w for name, w in trained.items() if is_last_layer(self.model, name)}})
