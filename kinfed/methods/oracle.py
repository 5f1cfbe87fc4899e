"""Oracle: FedAvg in each true cluster, a reference point and no method that anybody could use.

It reads the planted clusters that a benchmark's data come with, which no server of a real federation knows, and so says
what perfect clustering would give. Where data change, so do the true clusters, at once. Where none are planted it is
FedAvg. Unseen clients get the model of their true cluster; after the run nobody knows theirs, and nothing is exported.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.errors import RoleError
from kinfed.federation import Federation
from kinfed.methods.cluster_models import Clustered, ClusterModels, Stale
from kinfed.models import Model
from kinfed.params import repeat, select
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class OracleState:
    served: ClusterModels


@dataclass(frozen=True)
class Oracle(Clustered[OracleState]):
    """FedAvg in each true cluster, which only the maker of the data knows: what perfect clustering would give."""

    model: Model
    local: LocalTraining = LocalTraining()
    stale: Stale = "exclude"  # what a client that was not sampled contributes

    def init(self, fed: Federation) -> OracleState:
        served, changes = ClusterModels.init(self.model, self.stale, fed), fed.population.changes
        later = [change.true_clusters for change in changes if change.true_clusters is not None]
        number = max(int(planted.max()) for planted in (find_planted(fed), *later)) + 1
        models = repeat(select(served.models, 0), number)
        return self.admit(OracleState(served.serve(served.assignment, models)), fed.clients, fed)

    def round(self, state: OracleState, t: int, fed: Federation) -> OracleState:
        moved = state.served.assignment[fed.present] != find_planted(fed)[fed.present]
        served = self.admit(state, fed.present[moved], fed).served
        return OracleState(self.train_clusters(served, fed.sample(), fed))

    def admit(self, state: OracleState, unseen: Tensor, fed: Federation) -> OracleState:
        return OracleState(state.served.assign(unseen, unseen, find_planted(fed)[unseen], fed))

    def export_state(self, state: OracleState, clients: Tensor, sizes: Tensor) -> OracleState:
        raise RoleError("oracle cannot serve clients after the run: nobody knows their true clusters")

    def assignment_rule(self) -> str:
        return "a client is served the model of its true cluster, which only the maker of the data knows"


def find_planted(fed: Federation) -> Tensor:
    """The true cluster of each client: [clients]; all 0 where none are planted."""
    nobody = torch.zeros(fed.count, dtype=torch.long, device=fed.device)
    return nobody if fed.true_clusters is None else fed.true_clusters.to(fed.device)
