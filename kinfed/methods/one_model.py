"""Shape: one model for all, or a part of it for all and the rest personal.

A method says how clients train, what the server makes of it, and what a client uses.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfed.capabilities import TRAIN_SUMMED, Exportable
from kinfed.client import Client, Reply, client_task
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer, Replies
from kinfed.method import Method
from kinfed.methods.server_optimiser import NO_MOMENTS, Moments, ServerOptimiser
from kinfed.models import Model
from kinfed.params import Params, Payload, Value, each_leaf, model_in

AggregateOver = Literal["participants", "all_clients"]


@dataclass(frozen=True)
class OneModelState:
    """The model of all clients."""

    params: Params
    moments: Moments = NO_MOMENTS  # of the server's optimiser


class OneModel(Method[OneModelState], Exportable[OneModelState], ABC):
    """Every client is served the same model; unseen ones too."""

    def init(self, fed: Federation) -> OneModelState:
        return OneModelState(each_leaf(lambda w: w.to(fed.device), self.model.init()))

    def round(self, state: OneModelState, t: int, fed: Federation) -> OneModelState:
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        return self.absorb(state, replies, fed) if len(replies.cohort) or fed.privacy.training.is_on else state

    @abstractmethod
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: what it learns from the model it is sent."""

    @abstractmethod
    def absorb(self, state: OneModelState, replies: Replies, fed: Federation) -> OneModelState:
        """Server: the state after these replies, of which there is at least one, unless noise hides that."""

    def offer(self, state: OneModelState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"params": state.params})


class Averaged(OneModel, ABC):
    """The mean of what the clients trained, weighted by their samples, and a step of the server's optimiser to it.

    FedAvg's file explains `aggregate_over`.
    """

    aggregate_over: AggregateOver
    summed_tasks: ClassVar[Mapping[str, str]] = TRAIN_SUMMED
    hides_clients: ClassVar[bool] = True

    server: ServerOptimiser

    def init(self, fed: Federation) -> OneModelState:
        state = super().init(fed)
        return replace(state, moments=self.server.init(state.params))

    def absorb(self, state: OneModelState, replies: Replies, fed: Federation) -> OneModelState:
        mean = fed.average(replies, "params", state.params)
        if self.aggregate_over == "all_clients":
            fresh = fed.weights[replies.cohort].sum() / fed.weights[fed.clients].sum()
            mean = each_leaf(lambda new, old: fresh * new + (1 - fresh) * old, mean, state.params)
        params, moments = self.server.step(state.params, mean, state.moments, self.model.buffers)
        return OneModelState(params, moments)


class KeepsOwn:
    """Each client keeps a model of its own, which starts as what it is served when it first trains."""

    model: Model

    def initial_memory(self) -> dict[str, Value]:
        return {"own": self.model.init(), "has_trained": torch.tensor(False)}

    def recall_own(self, client: Client, served: Params) -> Params:
        """Client: its own model; the served one as long as it has not trained."""
        has_trained = client.recall("has_trained")
        return each_leaf(lambda own, common: torch.where(has_trained, own, common), client.recall_model("own"), served)

    def keep_own(self, client: Client, own: Params) -> dict[str, Value]:
        """Client: what it remembers once it has trained its own model."""
        return {"own": own, "has_trained": torch.ones_like(client.recall("has_trained"))}


class KeepsModel(KeepsOwn, Averaged, ABC):
    """Beside the one model each client keeps one of its own."""

    model: Model

    def personalise(self, client: Client, offer: Payload) -> Params:
        return self.recall_own(client, model_in(offer, "params"))

    def assignment_rule(self) -> str:
        return "everybody is served the same model, and uses it until it has trained one of its own"


@dataclass(frozen=True)
class OnePartState:
    """The part of the model that all clients share."""

    shared: Params


class OnePart(Method[OnePartState], Exportable[OnePartState], ABC):
    """Clients train the whole network; the server averages the shared part, weighted by samples."""

    summed_tasks: ClassVar[Mapping[str, str]] = TRAIN_SUMMED
    hides_clients: ClassVar[bool] = True

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
        if not len(replies.cohort) and not fed.privacy.training.is_on:
            return state
        return OnePartState(fed.average(replies, "shared", state.shared))

    @client_task
    def train(self, client: Client, shared: Params) -> Reply:
        """Client task: the shared part after training, while its own stays with it."""
        trained, _ = self.local(client, self.personalise(client, {"shared": shared}), self.model.gradient)
        own = {name: trained[name] for name in client.memory}
        return Reply({"shared": {name: trained[name] for name in shared}}, keep=own)

    def initial_memory(self) -> dict[str, Value]:
        return {name: w for name, w in self.model.init().items() if not self.is_shared(name)}

    def personalise(self, client: Client, offer: Payload) -> Params:
        return {name: client.recall(name) for name in client.memory} | model_in(offer, "shared")

    def offer(self, state: OnePartState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"shared": state.shared})

    def assignment_rule(self) -> str:
        return "everybody is served the same shared layers, and trains the others, which are blank, itself"
