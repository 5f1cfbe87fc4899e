"""Ditto (Li et al., ICML 2021, Algorithm 1): FedAvg, and beside it a personal model that is held near the common one.

A client trains w as in FedAvg and sends it. On the same mini-batches it trains v, which stays with it, along
∇f(v) + λ(v - wᵗ), where wᵗ is the model it received. λ(v - wᵗ) = λ(v - v₀) + λ(v₀ - wᵗ): a proximal term and a shift.
Deviations: E epochs (paper: s steps); means are weighted by samples (authors' code: plain); v starts from the model
that a client receives when it first trains (paper: from a first model), which is the same if all take part.
"""

from dataclasses import dataclass, replace

from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import AggregateOver, KeepsModel
from kinfed.methods.server_optimiser import ServerOptimiser
from kinfed.models import Model
from kinfed.params import Params, each_leaf
from kinfed.training import LocalTraining, ShiftedGradient


@dataclass(frozen=True)
class Ditto(KeepsModel):
    """FedAvg, and beside it a personal model of each client that is pulled towards the common one."""

    model: Model
    local: LocalTraining = LocalTraining()
    pull: float = 1.0  # λ, how strongly the personal model is held near the common one; 0: local training
    aggregate_over: AggregateOver = "participants"  # all_clients: those who were not asked count with the old model
    server: ServerOptimiser = ServerOptimiser()

    def __post_init__(self) -> None:
        at_least(0, pull=self.pull)

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: w, which is sent, and v, which is kept."""
        own = self.recall_own(client, params)  # v₀
        held = replace(self.local, mu=self.local.mu + self.pull)
        shift = each_leaf(lambda v, w: self.pull * (v - w), own, params)
        own, _ = held(client, own, ShiftedGradient(self.model.gradient, shift))
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"params": trained}, keep=self.keep_own(client, own))
