"""FedRep (Collins et al., ICML 2021, Algorithm 1): a common representation, and a head of each client's own.

A client first trains its head for some epochs while the received body is fixed, then the body for E epochs while the
head is fixed, and sends the body. Deviations: means are weighted by samples (paper: plain ones); heads start from one
common first model (authors' code: an alias makes it the mean of others' heads). The authors' code tunes all heads once
more after the last round: `tune_epochs`. A client that never trained has a blank head, unless it tunes it.
"""

from dataclasses import dataclass

from kinfed.checks import at_least
from kinfed.client import Client, Reply, client_task
from kinfed.methods.one_model import OnePart
from kinfed.models import Model, fix_weights, is_last_layer
from kinfed.params import Params, Payload, model_in
from kinfed.training import LabelledGradient, LocalTraining


@dataclass(frozen=True)
class FedRep(OnePart):
    """Each client trains its own last layers first, and then the common first ones, which are averaged."""

    model: Model
    local: LocalTraining = LocalTraining()
    personal_layers: int = 1  # counted from the last one: the head
    head_epochs: int = 10  # τ, before the body's; 0: heads are not trained
    tune_epochs: int = 0  # of the head, before a client uses the model

    def __post_init__(self) -> None:
        at_least(1, personal_layers=self.personal_layers)
        at_least(0, head_epochs=self.head_epochs, tune_epochs=self.tune_epochs)

    def is_shared(self, name: str) -> bool:
        return not is_last_layer(self.model, name, self.personal_layers)

    @client_task
    def train(self, client: Client, shared: Params) -> Reply:
        """Client task: the body after its training; the head stays with the client."""
        head = {name: client.recall(name) for name in client.memory}
        head = self.train_head(client, head, shared, self.head_epochs, labelled=False)
        body, _ = self.local(client, shared, fix_weights(self.model.gradient, head))
        return Reply({"shared": body}, keep=head)

    def train_head(self, client: Client, head: Params, body: Params, epochs: int, labelled: bool) -> Params:
        """Client: the head after some epochs with this body."""
        gradient = fix_weights(self.model.gradient, body)
        rule = LabelledGradient(gradient) if labelled else gradient
        return self.local.for_epochs(epochs)(client, head, rule)[0] if epochs else head

    def personalise(self, client: Client, offer: Payload) -> Params:
        body, head = model_in(offer, "shared"), {name: client.recall(name) for name in client.memory}
        return self.train_head(client, head, body, self.tune_epochs, labelled=True) | body
