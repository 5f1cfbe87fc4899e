"""Shape: one model for all. A method says how clients train and what the server makes of their replies."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from kinfed.algorithm import Algorithm
from kinfed.client import Client, Reply
from kinfed.federation import Federation, Offer, Replies
from kinfed.params import Params, each_leaf


@dataclass(frozen=True)
class OneModelState:
    params: Params


class OneModel(Algorithm[OneModelState], ABC):
    """Every client is served the same model; strangers too."""

    def init(self, fed: Federation) -> OneModelState:
        return OneModelState(each_leaf(lambda w: w.to(fed.device), self.model.init()))

    def round(self, state: OneModelState, t: int, fed: Federation) -> OneModelState:
        cohort = fed.sample()
        return self.absorb(state, fed.run(self.train, cohort, self.offer(state, cohort, fed)), fed)

    @abstractmethod
    def train(self, client: Client, params: Params) -> Reply:
        """Client task: what it learns from the model it is sent."""

    @abstractmethod
    def absorb(self, state: OneModelState, replies: Replies, fed: Federation) -> OneModelState:
        """Server: the state after these replies."""

    def offer(self, state: OneModelState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"params": state.params})

    def admit(self, state: OneModelState, newcomers: Tensor, fed: Federation) -> OneModelState:
        return state

    def personalise(self, client: Client, params: Params) -> Params:  # type: ignore[override]
        return params
