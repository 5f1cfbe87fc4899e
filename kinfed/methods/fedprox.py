"""FedProx (Li et al., MLSys 2020, Algorithm 2): FedAvg whose clients are held near the model they received.

The local loss is f(w) + μ/2 ‖w - w_received‖². Deviations: E full epochs for everybody, where the paper also lets slow
clients do less work; a proximal term that `local` has already (any method can have one) is added to this one.
μ has no universal value: the paper tunes it in 0.001 ... 1. Code that leaves out the ½ (REPA's) means half our μ.
"""

from dataclasses import dataclass, replace

from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import AggregateOver, Averaged
from kinfed.methods.server_optimiser import ServerOptimiser
from kinfed.models import Model
from kinfed.params import Params
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedProx(Averaged):
    """FedAvg with a proximal term: clients are pulled towards the model they received."""

    model: Model
    local: LocalTraining = LocalTraining()
    mu: float = 0.001  # μ, how strongly a client is pulled towards the model it received
    aggregate_over: AggregateOver = "participants"  # all_clients: those who were not asked count with the old model
    server: ServerOptimiser = ServerOptimiser()

    def __post_init__(self) -> None:
        at_least(0, mu=self.mu)

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        held = replace(self.local, mu=self.local.mu + self.mu)
        return Reply({"params": held(client, params, self.model.gradient)[0]})
