"""FedRep (Collins et al., ICML 2021, Algorithm 1): a common representation, and a head of each client's own.

A client first trains its head for some epochs while the received body is fixed, then the body for E epochs while the
head is fixed, and sends the body. Deviations: means are weighted by samples (paper: plain ones); heads start from one
common first model. The authors' code tunes all heads once more after the last round: `tune_epochs`. A client that never
trained has a blank head, unless it tunes it. `begin="mean"` is the authors' code, where heads of clients that never
trained are an alias of the common model's: the mean of the heads of the last round's clients, which are sent for it.
"""

from dataclasses import dataclass
from typing import Literal, cast

import torch

from kinfed.checks import at_least, one_of
from kinfed.client import Client, Reply, client_task
from kinfed.federation import Federation
from kinfed.methods.one_model import KeepsOwn, OnePart, OnePartState
from kinfed.models import Model, fix_weights, is_last_layer
from kinfed.params import Params, Payload, Value, model_in
from kinfed.training import LabelledGradient, LocalTraining


@dataclass(frozen=True)
class FedRep(OnePart, KeepsOwn):
    """Each client trains its own last layers first, and then the common first ones, which are averaged."""

    model: Model
    local: LocalTraining = LocalTraining()
    personal_layers: int = 1  # counted from the last one: the head
    head_epochs: int = 10  # τ, before the body's; 0: heads are not trained
    tune_epochs: int = 0  # of the head, before a client uses the model
    begin: Literal["first", "mean"] = "first"  # of heads; mean: the last round's clients' mean one

    def __post_init__(self) -> None:
        one_of(("first", "mean"), begin=self.begin)
        at_least(1, personal_layers=self.personal_layers)
        at_least(0, head_epochs=self.head_epochs, tune_epochs=self.tune_epochs)

    def is_shared(self, name: str) -> bool:
        return not is_last_layer(self.model, name, self.personal_layers)

    def init(self, fed: Federation) -> OnePartState:
        whole = {name: w.to(fed.device) for name, w in self.model.init().items()}
        return super().init(fed) if self.begin == "first" else OnePartState(whole)

    def initial_memory(self) -> dict[str, Value]:
        return {"own": cast("Params", super().initial_memory()), "has_trained": torch.tensor(False)}

    @client_task
    def train(self, client: Client, shared: Params) -> Reply:
        """Client task: the body after its training; the head stays with the client."""
        head, body = self.part(client, shared)
        if self.head_epochs:
            head, _ = self.local.for_epochs(self.head_epochs)(client, head, fix_weights(self.model.gradient, body))
        body, _ = self.local(client, body, fix_weights(self.model.gradient, head))
        whole = body | head
        return Reply({"shared": {name: whole[name] for name in shared}}, keep=self.keep_own(client, head))

    def part(self, client: Client, shared: Params) -> tuple[Params, Params]:
        """Client: its head, and the body it is served."""
        first = {name: shared.get(name, w) for name, w in client.recall_model("own").items()}
        return self.recall_own(client, first), {name: w for name, w in shared.items() if name not in first}

    def personalise(self, client: Client, offer: Payload) -> Params:
        head, body = self.part(client, model_in(offer, "shared"))
        if not self.tune_epochs:
            return body | head
        rule = LabelledGradient(fix_weights(self.model.gradient, body))
        return body | self.local.for_adaptation().for_epochs(self.tune_epochs)(client, head, rule)[0]
