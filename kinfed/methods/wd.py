"""WD: clusters by weight differences, what REPA is compared with (Radovič and Pejović, arXiv 2309.14088, section 4).

After some rounds of FedAvg every client tunes the common model θ for f epochs and sends what that changed, Δθ; the
server clusters the training clients by it (all parameters, L2-normalised, K-Means) and trains one model per cluster.
Settled where the paper is silent, as for REPA: the rounds before are given, all clusters start from one first model,
and training is `local` but for the epochs. A newcomer tunes θ too, and joins the cluster with the nearest centre.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import normalize

from kinfed.aggregation import average
from kinfed.capabilities import require_labels
from kinfed.checks import at_least, seed_of_numpy
from kinfed.client import Client, Reply, client_task
from kinfed.clustering.hierarchy import distances
from kinfed.clustering.kmeans import server_kmeans
from kinfed.federation import Federation, Offer, Replies
from kinfed.methods.assigning import first_state, placed
from kinfed.methods.cluster_models import Clusters, GroupState, Stale
from kinfed.models import Model
from kinfed.params import Params, flatten, select, subtract
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class WDState(GroupState):
    root: Params  # θ, the common model
    centres: Tensor  # [clusters, parameters]


@dataclass(frozen=True)
class WD(Clusters[WDState]):
    """Clusters found by what tuning changes in a common model of all clients, then FedAvg in each cluster."""

    model: Model
    local: LocalTraining = LocalTraining()
    rounds_before: int = 30  # of FedAvg, before the clustering
    tuning_epochs: int = 1  # f, of what a client sends
    clusters: int = 10  # of K-Means; it must be told
    seed: int = 10  # of K-Means
    stale: Stale = "exclude"  # what a client that was not asked contributes

    stores_signatures: ClassVar[bool] = False
    needs_labels: ClassVar[str] = "WD places clients by what they train"

    def __post_init__(self) -> None:
        at_least(0, rounds_before=self.rounds_before)
        at_least(1, tuning_epochs=self.tuning_epochs)
        seed_of_numpy(self.seed)

    def init(self, fed: Federation) -> WDState:
        first = first_state(self.model, self.stale, fed, self.clusters)
        root = select(first.models, 0)
        for _ in range(self.rounds_before):
            trained = fed.run(self.prepare, fed.sample(), Offer(shared={"params": root}))
            root = average(trained.stack("params"), fed.sizes[trained.cohort]) if len(trained.cohort) else root
        replies, moved = self.tuned(root, fed.clients, fed)
        _, centres = server_kmeans(moved, min(self.clusters, len(moved)), moved[:0], self.seed, runs=10)
        return self.join(WDState(**vars(first), root=root, centres=centres), fed.clients, replies, moved, fed)

    def round(self, state: WDState, t: int, fed: Federation) -> WDState:
        return self.step(state, fed.sample(), fed)

    def admit(self, state: WDState, newcomers: Tensor, fed: Federation) -> WDState:
        require_labels(self, newcomers, fed)
        return self.join(state, newcomers, *self.tuned(state.root, newcomers, fed), fed)

    def join(self, state: WDState, newcomers: Tensor, replies: Replies, moved: Tensor, fed: Federation) -> WDState:
        """The state in which newcomers are in the cluster whose centre is nearest to where those who answered moved."""
        return placed(state, newcomers, replies.cohort, distances(moved, state.centres, "l2").argmin(1), fed)

    def tuned(self, root: Params, clients: Tensor, fed: Federation) -> tuple[Replies, Tensor]:
        """What these clients replied, and the direction in which each moved the common model."""
        replies = fed.run(self.tune, clients, Offer(shared={"params": root}))
        return replies, normalize(flatten(replies.stack("update")))

    def signatures(self, state: WDState, fed: Federation) -> Tensor:
        replies, moved = self.tuned(state.root, fed.clients, fed)
        return replies.align(fed.clients, moved)

    @client_task
    def prepare(self, client: Client, params: Params) -> Reply:
        """Client task: a round of the common model."""
        return self.train(client, params)

    @client_task
    def tune(self, client: Client, params: Params) -> Reply:
        """Client task: Δθ of f epochs."""
        tuned, _ = replace(self.local, epochs=self.tuning_epochs)(client, params, self.model.gradient)
        return Reply({"update": subtract(tuned, params)})
