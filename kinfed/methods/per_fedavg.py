"""Per-FedAvg, first order (Fallah et al., NeurIPS 2020, Algorithm 1 without the Hessian): a model that adapts quickly.

A step takes two different mini-batches: w ← w - β∇f(w - α∇f(w; B); B'). As in FLIS' code an epoch runs in pairs
of consecutive mini-batches and leaves out an odd last one: a client with `batch_size` samples or fewer moves nothing.
A client uses the model after some epochs, or steps, at rate α on its own samples (paper: one step), or as it is
without labels.
Deviations: plain SGD; `momentum` and `uses="last"` are FLIS' code, which has one momentum for both steps, and scores a
client by the model it trained last. `local` gives the epochs, the batch size, the decay of β, and what changes the
gradient of the outer step: a proximal term, weight decay, clipping.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kinfed.checks import above_zero, at_least, fraction
from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import AggregateOver, KeepsModel
from kinfed.methods.server_optimiser import ServerOptimiser
from kinfed.models import Model
from kinfed.params import Params, Payload, Value, model_in
from kinfed.training import LabelledGradient, LocalTraining, MetaGradient, train_pairs


@dataclass(frozen=True)
class PerFedAvg(KeepsModel):
    """One model for all that is trained to do well after a client's first steps from it."""

    model: Model
    local: LocalTraining = LocalTraining()
    alpha: float = 0.01  # α, of the inner step and of adaptation
    beta: float = 0.001  # β, of the outer step
    adapt_epochs: int = 1  # before a client uses the model; 0: as served
    adapt_steps: int = 0  # so many steps in place of these epochs (paper: 1); 0: epochs
    momentum: float = 0.0  # of both steps together; 0: plain SGD
    uses: Literal["adapted", "last"] = "adapted"  # last: the model that a client trained when it last took part
    aggregate_over: AggregateOver = "participants"  # all_clients: those who were not asked count with the old model
    server: ServerOptimiser = ServerOptimiser()

    sgd_reason: ClassVar[str] = "Per-FedAvg has plain SGD: its rates are alpha and beta"

    def __post_init__(self) -> None:
        above_zero(alpha=self.alpha, beta=self.beta)
        at_least(0, adapt_epochs=self.adapt_epochs, adapt_steps=self.adapt_steps)
        fraction(momentum=self.momentum)

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        size = self.local.batch_size
        outer = replace(self.local, batch_size=2 * size, lr=self.beta, momentum=self.momentum, optimiser="sgd")
        meta = MetaGradient(self.model.gradient, self.alpha, size)
        trained = train_pairs(outer, client, params, meta) if self.momentum else outer(client, params, meta)[0]
        return Reply({"params": trained}, self.keep_own(client, trained) if self.uses == "last" else {})

    def initial_memory(self) -> dict[str, Value]:
        return super().initial_memory() if self.uses == "last" else {}

    def personalise(self, client: Client, offer: Payload) -> Params:
        if self.uses == "last":
            return super().personalise(client, offer)
        params = model_in(offer, "params")
        if not self.adapt_epochs:
            return params
        size, steps = self.local.batch_size, self.adapt_steps
        inner = LocalTraining(self.adapt_epochs, size, self.alpha, momentum=0.0, steps=steps)
        return inner(client, params, LabelledGradient(self.model.gradient))[0]

    def assignment_rule(self) -> str:
        return super().assignment_rule() if self.uses == "last" else "every client is served the same model"
