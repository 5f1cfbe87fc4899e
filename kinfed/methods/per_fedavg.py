"""Per-FedAvg, first order (Fallah et al., NeurIPS 2020, Algorithm 1 without the Hessian): a model that adapts quickly.

A step takes two different mini-batches: w ← w - β∇f(w - α∇f(w; B); B'). As in FLIS' code an epoch runs in pairs
of consecutive mini-batches and leaves out an odd last one: a client with `batch_size` samples or fewer moves nothing.
A client uses the model after some epochs at rate α on its own samples (paper: one step), or as it is without labels.
Deviations: plain SGD, for FLIS' code has one momentum for both steps, which mixes them; `local` gives the epochs, the
batch size, the decay of β and a proximal term.
"""

from dataclasses import dataclass, replace

from kinfed.checks import above_zero, at_least
from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import AggregateOver, Averaged
from kinfed.methods.server_optimiser import ServerOptimiser
from kinfed.models import Model
from kinfed.params import Params, Payload, model_in
from kinfed.training import LabelledGradient, LocalTraining, MetaGradient


@dataclass(frozen=True)
class PerFedAvg(Averaged):
    """One model for all that is trained to do well after a client's first steps from it."""

    model: Model
    local: LocalTraining = LocalTraining()
    alpha: float = 0.01  # α, of the inner step and of adaptation
    beta: float = 0.001  # β, of the outer step
    adapt_epochs: int = 1  # before a client uses the model; 0: as served
    aggregate_over: AggregateOver = "participants"  # all_clients: those who were not asked count with the old model
    server: ServerOptimiser = ServerOptimiser()

    def __post_init__(self) -> None:
        above_zero(alpha=self.alpha, beta=self.beta)
        at_least(0, adapt_epochs=self.adapt_epochs)

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        size = self.local.batch_size
        outer = replace(self.local, batch_size=2 * size, lr=self.beta, momentum=0.0, optimiser="sgd")
        trained, _ = outer(client, params, MetaGradient(self.model.gradient, self.alpha, size))
        return Reply({"params": trained})

    def personalise(self, client: Client, offer: Payload) -> Params:
        params = model_in(offer, "params")
        if not self.adapt_epochs:
            return params
        inner = LocalTraining(self.adapt_epochs, self.local.batch_size, self.alpha, momentum=0.0)
        return inner(client, params, LabelledGradient(self.model.gradient))[0]
