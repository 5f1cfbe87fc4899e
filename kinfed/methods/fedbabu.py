"""FedBABU (Oh, Kim and Yun, ICLR 2022, Algorithm 1): body aggregation and body update.

The head is that of the first model, the same for all, and never trained; clients train the body, which is averaged.
Before a client uses the model it tunes it on its labelled samples: all layers, or one part, as the paper compares. The
epochs of tuning are `local.adapt_epochs`, or E where that is 0 (paper: 5, at a lower rate). Deviations: means are
weighted by samples (authors' code: plain ones); no round is selected on test samples. Nothing tuned is kept or sent.
`begin="last"` is what PFLlib's code does: a client tunes the body that it trained last, and not the mean it is served.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from kinfed.checks import at_least, one_of
from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import KeepsOwn, OnePart
from kinfed.models import Model, fix_weights, is_last_layer
from kinfed.params import Params, Payload, Value, model_in
from kinfed.training import LabelledGradient, LocalTraining


@dataclass(frozen=True)
class FedBABU(OnePart, KeepsOwn):
    """Clients train all layers but the last, which stays as it was drawn; each tunes the model before it uses it."""

    model: Model
    local: LocalTraining = LocalTraining()
    fixed_layers: int = 1  # counted from the last one: the head
    tunes: Literal["all", "head", "body"] = "all"  # what a client tunes before it uses the model
    begin: Literal["served", "last"] = "served"  # last: it tunes the body that it trained last, once there is one

    def __post_init__(self) -> None:
        at_least(1, fixed_layers=self.fixed_layers)
        one_of(("all", "head", "body"), tunes=self.tunes)
        one_of(("served", "last"), begin=self.begin)

    def is_shared(self, name: str) -> bool:
        return not is_last_layer(self.model, name, self.fixed_layers)

    @client_task
    def train(self, client: Client, shared: Params) -> Reply:
        """Client task: the body after E epochs under the fixed head."""
        body, _ = self.local(client, shared, fix_weights(self.model.gradient, self.head(client)))
        return Reply({"shared": body}, keep=self.keep_own(client, body) if self.begin == "last" else {})

    def initial_memory(self) -> dict[str, Value]:
        memory, body = super().initial_memory(), {n: w for n, w in self.model.init().items() if self.is_shared(n)}
        if self.begin == "last":
            memory |= {"own": body, "has_trained": torch.tensor(False)}
        return memory

    def personalise(self, client: Client, offer: Payload) -> Params:
        body, head = model_in(offer, "shared"), self.head(client)
        body = self.recall_own(client, body) if self.begin == "last" else body
        start, fixed = {"all": (head | body, {}), "head": (head, body), "body": (body, head)}[self.tunes]
        rule = LabelledGradient(fix_weights(self.model.gradient, fixed))
        return fixed | self.local.for_adaptation()(client, start, rule)[0]

    def head(self, client: Client) -> Params:
        """Client: the head that nobody trains."""
        return {name: client.recall(name) for name in client.memory if name not in ("own", "has_trained")}

    def assignment_rule(self) -> str:
        return "everybody is served the same body, and tunes the model if it has labels"
