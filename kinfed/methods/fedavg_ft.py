"""FedAvg + local fine-tuning: trained as FedAvg, and every client tunes the model before it uses it.

No paper's method, but a baseline that personalised ones must be held against: FLIS scores its clients by their locally
trained models, which helps any method by itself. The epochs of tuning are `local.adapt_epochs`, or E where that is 0.
A client without labels uses the model as it is served. Nothing tuned is kept or sent.
"""

from dataclasses import dataclass

from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import AggregateOver, Averaged
from kinfed.methods.server_optimiser import ServerOptimiser
from kinfed.models import Model
from kinfed.params import Params, Payload, model_in
from kinfed.training import LabelledGradient, LocalTraining


@dataclass(frozen=True)
class FedAvgFT(Averaged):
    """FedAvg, then some epochs of each client's own training."""

    model: Model
    local: LocalTraining = LocalTraining()
    aggregate_over: AggregateOver = "participants"  # all_clients: those who were not asked count with the old model
    server: ServerOptimiser = ServerOptimiser()

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"params": trained})

    def personalise(self, client: Client, offer: Payload) -> Params:
        return self.local.for_adaptation()(client, model_in(offer, "params"), LabelledGradient(self.model.gradient))[0]
