"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1).

The weights nₘ/n are renormalised over those who took part. `aggregate_over="all_clients"` is the baseline of FLT's
code: the slots of all clients are averaged every round, and those who did not take part still hold the old model.
"""

from dataclasses import dataclass

from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import AggregateOver, Averaged
from kinfed.methods.server_optimiser import ServerOptimiser
from kinfed.models import Model
from kinfed.params import Params
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedAvg(Averaged):
    """One model for all: the mean of what the participants trained, weighted by their samples."""

    model: Model
    local: LocalTraining = LocalTraining()
    aggregate_over: AggregateOver = "participants"  # all_clients: those who were not asked count with the old model
    server: ServerOptimiser = ServerOptimiser()

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"params": trained})
