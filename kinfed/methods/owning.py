"""Shape: clients use the model they trained themselves when they last took part, and remember it (FLIS).

One that was never asked uses the first model, a newcomer that has not trained yet what it is served.
"""

from abc import ABC
from typing import TypeVar

import torch

from kinfed.client import Client, Reply
from kinfed.method import Method
from kinfed.params import Params, Payload, each_leaf

State = TypeVar("State")


class Owning(Method[State], ABC):
    """A client owns the model it trained last; FLIS' methods say what it trains."""

    def initial_memory(self) -> Payload:
        return {"params": self.model.init(), "owns": torch.ones((), dtype=torch.bool)}

    def owned(self, client: Client, start: Params) -> Reply:
        """Client: what training from `start` gives, sent and remembered."""
        trained, _ = self.local(client, start, self.model.gradient)
        return Reply({"params": trained}, keep={"params": trained, "owns": torch.ones_like(client.recall("owns"))})

    def disowned(self, client: Client, reply: Reply) -> Reply:
        """Client: this reply, after which it uses what it is served."""
        return reply._replace(keep={"owns": torch.zeros_like(client.recall("owns"))})

    def own_or(self, client: Client, served: Params) -> Params:
        """Client: the model it owns, or what it is served."""
        owns = client.recall("owns")
        return each_leaf(lambda mine, other: torch.where(owns, mine, other), client.recall_model("params"), served)
