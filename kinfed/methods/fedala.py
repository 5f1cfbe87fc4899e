"""FedALA: adaptive local aggregation (Zhang et al., AAAI 2023, Algorithm 1).

A client does not overwrite its model Θᵢ by the received Θ: in the last p layers each number becomes Θᵢ + (Θ - Θᵢ)·W,
with a W of its own in [0, 1] that follows the gradient (Θ - Θᵢ)·∇f on a random s % of the client's mini-batches.
From there it trains. W starts at 1, where this is FedAvg. Deviations: W is trained for one epoch in every round
(authors: until its loss settles the first time, one epoch later on), and a client is tested with that of the last round
it took part in (authors: learnt anew); one that has not trained yet is served Θ.
"""

from dataclasses import dataclass

import torch

from kinfed.checks import at_least, fraction
from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import AggregateOver, KeepsModel
from kinfed.methods.server_optimiser import ServerOptimiser
from kinfed.models import Model, is_last_layer
from kinfed.params import Params, Payload, Value, model_in
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedALA(KeepsModel):
    """Each client learns, number by number, how much of the common model to take into its own last layers."""

    model: Model
    local: LocalTraining = LocalTraining()
    adaptive_layers: int = 1  # p, counted from the last one; the others are taken as received
    share: float = 0.8  # s, of the mini-batches on which W is learnt
    mixing_lr: float = 1.0  # η, of W; 0: FedAvg
    aggregate_over: AggregateOver = "participants"  # all_clients: those who were not asked count with the old model
    server: ServerOptimiser = ServerOptimiser()

    def __post_init__(self) -> None:
        at_least(1, adaptive_layers=self.adaptive_layers)
        at_least(0, mixing_lr=self.mixing_lr)
        fraction(share=self.share)

    def initial_memory(self) -> dict[str, Value]:
        names = (name for name in self.model.weights if is_last_layer(self.model, name, self.adaptive_layers))
        first = self.model.init()
        return super().initial_memory() | {"mixing": {name: torch.ones_like(first[name]) for name in names}}

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: E epochs from its own mixture, which stays with it, and so does W."""
        own = self.recall_own(client, params)
        mixing = self.learn_mixing(client, own, params)
        trained, _ = self.local(client, mix_last(own, params, mixing), self.model.gradient)
        return Reply({"params": trained}, keep=self.keep_own(client, trained) | {"mixing": mixing})

    def learn_mixing(self, client: Client, own: Params, params: Params) -> Params:
        """Client: W after its mini-batches of this round."""
        mixing, size = client.recall_model("mixing"), self.local.batch_size
        for step, batch in enumerate(client.batches(1, size)):
            gradient = self.model.gradient(mix_last(own, params, mixing), batch).weights
            rate = self.mixing_lr * batch.live * (step < self.share * client.steps(1, size))
            moved = {name: w - rate * (params[name] - own[name]) * gradient[name] for name, w in mixing.items()}
            mixing = {name: w.clamp(0, 1) for name, w in moved.items()}
        return mixing

    def personalise(self, client: Client, offer: Payload) -> Params:
        params = model_in(offer, "params")
        return mix_last(self.recall_own(client, params), params, client.recall_model("mixing"))


def mix_last(own: Params, params: Params, mixing: Params) -> Params:
    """The received model, whose numbers with a W lie between the client's own and the received one."""
    return params | {name: own[name] + (params[name] - own[name]) * w for name, w in mixing.items()}
