"""Shape: one part of the model for all, the rest of it each client's own. A method says which part is shared.

Only the shared part crosses the wire. An unseen client is served it on top of the first model's own part, which stays
untrained until the client trains by itself.
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from kinfed.aggregation import average
from kinfed.capabilities import Exportable
from kinfed.client import Client, Reply, client_task
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.method import Method
from kinfed.params import Params, Payload, model_in


@dataclass(frozen=True)
class OnePartState:
    shared: Params


class OnePart(Method[OnePartState], Exportable[OnePartState], ABC):
    """Clients train the whole network; the server averages the shared part, weighted by samples."""

    @abstractmethod
    def is_shared(self, name: str) -> bool:
        """Whether this weight is the same for all clients."""

    def init(self, fed: Federation) -> OnePartState:
        params = self.model.init()
        shared = {name: w.to(fed.device) for name, w in params.items() if self.is_shared(name)}
        if not shared:
            raise ConfigError(f"none of {', '.join(params)} is shared: share some, or use 'local'")
        if len(shared) == len(params):
            warnings.warn(f"all of {', '.join(params)} are shared, which is FedAvg: let some be personal", stacklevel=2)
        return OnePartState(shared)

    def round(self, state: OnePartState, t: int, fed: Federation) -> OnePartState:
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        if not len(replies.cohort):
            return state
        return OnePartState(average(replies.stack("shared"), fed.sizes[replies.cohort]))

    @client_task
    def train(self, client: Client, shared: Params) -> Reply:
        """Client task: the shared part after training, while its own stays with it."""
        trained, _ = self.local(client, self.personalise(client, {"shared": shared}), self.model.gradient)
        own = {name: trained[name] for name in client.memory}
        return Reply({"shared": {name: trained[name] for name in shared}}, keep=own)

    def initial_memory(self) -> Params:
        return {name: w for name, w in self.model.init().items() if not self.is_shared(name)}

    def personalise(self, client: Client, offer: Payload) -> Params:
        return {name: client.recall(name) for name in client.memory} | model_in(offer, "shared")

    def offer(self, state: OnePartState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"shared": state.shared})

    def assignment_rule(self) -> str:
        return "everybody is served the same shared layers, and trains the others, which are blank, itself"
