"""Shape: one model for all. A method says how clients train, what the server makes of it, and what a client uses."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from kinfed.aggregation import average
from kinfed.capabilities import Exportable
from kinfed.client import Client, Reply
from kinfed.federation import Federation, Offer, Replies
from kinfed.method import Method
from kinfed.params import Params, each_leaf

AggregateOver = Literal["participants", "all_clients"]


@dataclass(frozen=True)
class OneModelState:
    params: Params


class OneModel(Method[OneModelState], Exportable[OneModelState], ABC):
    """Every client is served the same model; unseen ones too."""

    def init(self, fed: Federation) -> OneModelState:
        return OneModelState(each_leaf(lambda w: w.to(fed.device), self.model.init()))

    def round(self, state: OneModelState, t: int, fed: Federation) -> OneModelState:
        cohort = fed.sample()
        replies = fed.run(self.train, cohort, self.offer(state, cohort, fed))
        return self.absorb(state, replies, fed) if len(replies.cohort) else state

    @abstractmethod
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: what it learns from the model it is sent."""

    @abstractmethod
    def absorb(self, state: OneModelState, replies: Replies, fed: Federation) -> OneModelState:
        """Server: the state after these replies, of which there is at least one."""

    def offer(self, state: OneModelState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"params": state.params})


class Averaged(OneModel, ABC):
    """The mean of what the clients trained, weighted by their samples; FedAvg's file explains `aggregate_over`."""

    aggregate_over: AggregateOver

    def absorb(self, state: OneModelState, replies: Replies, fed: Federation) -> OneModelState:
        sizes = fed.sizes[replies.cohort]
        mean = average(replies.stack("params"), sizes)
        if self.aggregate_over == "all_clients":
            fresh = sizes.sum() / fed.sizes[fed.clients].sum()
            mean = each_leaf(lambda new, old: fresh * new + (1 - fresh) * old, mean, state.params)
        return replace(state, params=mean)
