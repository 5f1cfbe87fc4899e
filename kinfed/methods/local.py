"""Local training, no federation ("Local" in FLT, "SOLO" in FLIS).

As in FLT's code only the sampled clients train in a round, so a client trains fraction · rounds times on average.
The model never leaves its client: nothing is sent either way.
"""

from dataclasses import dataclass

from torch import Tensor

from kinfed.client import Client, Reply, client_task
from kinfed.federation import Federation, Offer
from kinfed.method import Method
from kinfed.models import Model
from kinfed.params import Params, Payload
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class LocalState:
    """The server knows nothing."""


@dataclass(frozen=True)
class Local(Method[LocalState]):
    """Every client alone: it trains its own copy of the common first model and sends nothing."""

    model: Model
    local: LocalTraining = LocalTraining()

    def init(self, fed: Federation) -> LocalState:
        return LocalState()

    def round(self, state: LocalState, t: int, fed: Federation) -> LocalState:
        fed.run(self.train, fed.sample())
        return state

    @client_task
    def train(self, client: Client) -> Reply:
        trained, _ = self.local(client, self.personalise(client, {}), self.model.gradient)
        return Reply(send={}, keep={"params": trained})

    def initial_memory(self) -> Payload:
        return {"params": self.model.init()}

    def personalise(self, client: Client, offer: Payload) -> Params:
        return client.recall_model("params")

    def offer(self, state: LocalState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer()
