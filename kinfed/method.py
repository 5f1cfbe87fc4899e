"""The core contract: a method is server rules and client tasks. It holds settings, never state.

What some methods can do beyond it is a capability (`capabilities.py`), declared beside `Method` in the class line.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from torch import Tensor

from kinfed.client import Client
from kinfed.federation import Federation, Offer
from kinfed.models import Model
from kinfed.params import Params, Payload, model_in
from kinfed.training import LocalTraining

State = TypeVar("State")  # a frozen dataclass of tensors, models, numbers


class Method(ABC, Generic[State]):
    """One method. Subclasses are frozen dataclasses; `state` is passed in and returned."""

    model: Model
    local: LocalTraining

    @abstractmethod
    def init(self, fed: Federation) -> State:
        """Server: the state before the first round; one-off phases live here."""

    @abstractmethod
    def round(self, state: State, t: int, fed: Federation) -> State:
        """Server: the state after round t."""

    @abstractmethod
    def offer(self, state: State, cohort: Tensor, fed: Federation) -> Offer:
        """Server: what these clients are served."""

    def admit(self, state: State, unseen: Tensor, fed: Federation) -> State:
        """Server: the state once clients that were not there at `init` (late, holdout, unlabelled) have a model."""
        return state

    def personalise(self, client: Client, offer: Payload) -> Params:
        """Client: the model it uses, made of what it is served."""
        return model_in(offer, "params")
