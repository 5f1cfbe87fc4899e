"""FedBABU (Oh, Kim and Yun, ICLR 2022, Algorithm 1): body aggregation and body update.

The head is that of the first model, the same for all, and never trained; clients train the body, which is averaged.
Before a client uses the model it tunes it on its labelled samples: all layers, or one part, as the paper compares. The
epochs of tuning are `local.adapt_epochs`, or E where that is 0 (paper: 5, at a lower rate). Deviations: means are
weighted by samples (authors' code: plain ones); no round is selected on test samples. Nothing tuned is kept or sent.
"""

from dataclasses import dataclass
from typing import Literal

from kinfed.checks import at_least, one_of
from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import OnePart
from kinfed.models import Model, fix_weights, is_last_layer
from kinfed.params import Params, Payload, model_in
from kinfed.training import LabelledGradient, LocalTraining


@dataclass(frozen=True)
class FedBABU(OnePart):
    """Clients train all layers but the last, which stays as it was drawn; each tunes the model before it uses it."""

    model: Model
    local: LocalTraining = LocalTraining()
    fixed_layers: int = 1  # counted from the last one: the head
    tunes: Literal["all", "head", "body"] = "all"  # what a client tunes before it uses the model

    def __post_init__(self) -> None:
        at_least(1, fixed_layers=self.fixed_layers)
        one_of(("all", "head", "body"), tunes=self.tunes)

    def is_shared(self, name: str) -> bool:
        return not is_last_layer(self.model, name, self.fixed_layers)

    @client_task
    def train(self, client: Client, shared: Params) -> Reply:
        """Client task: the body after E epochs under the fixed head."""
        return Reply({"shared": self.local(client, shared, fix_weights(self.model.gradient, self.head(client)))[0]})

    def personalise(self, client: Client, offer: Payload) -> Params:
        body, head = model_in(offer, "shared"), self.head(client)
        start, fixed = {"all": (head | body, {}), "head": (head, body), "body": (body, head)}[self.tunes]
        rule = LabelledGradient(fix_weights(self.model.gradient, fixed))
        return fixed | self.local.for_adaptation()(client, start, rule)[0]

    def head(self, client: Client) -> Params:
        """Client: the head that nobody trains."""
        return {name: client.recall(name) for name in client.memory}

    def assignment_rule(self) -> str:
        return "everybody is served the same body, and tunes the model if it has labels"
