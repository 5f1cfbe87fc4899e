"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1).

The weights nₘ/n are renormalised over those who took part. `aggregate_over="all_clients"` is the baseline of FLT's
code: the slots of all clients are averaged every round, and those who did not take part still hold the old model.
"""

from dataclasses import dataclass, replace
from typing import Literal

from kinfed.aggregation import average
from kinfed.algorithms.one_model import OneModel, OneModelState
from kinfed.client import Client, Reply
from kinfed.federation import Federation, Replies
from kinfed.models import Model
from kinfed.params import Params, each_leaf
from kinfed.training import LocalTraining


@dataclass(frozen=True)
class FedAvg(OneModel):
    """One model for all: the mean of what the participants trained, weighted by their rows."""

    model: Model
    local: LocalTraining = LocalTraining()
    aggregate_over: Literal["participants", "all_clients"] = "participants"

    def train(self, client: Client, params: Params) -> Reply:
        trained, _ = self.local(client, params, self.model.gradient)
        return Reply({"params": trained})

    def absorb(self, state: OneModelState, replies: Replies, fed: Federation) -> OneModelState:
        if not len(replies.cohort):
            return state
        sizes = fed.sizes[replies.cohort]
        mean = average(replies.stack("params"), sizes)
        if self.aggregate_over == "all_clients":
            fresh = sizes.sum() / fed.sizes[fed.clients].sum()
            mean = each_leaf(lambda new, old: fresh * new + (1 - fresh) * old, mean, state.params)
        return replace(state, params=mean)
