"""Centralised training, a reference point: one model, trained by SGD on the samples of all clients in one place.

It reads samples that no server of a federation may see, and so says what is lost by leaving them where they are. In a
round the samples of that round's clients are pooled, shuffled, and passed E times, so that it makes as many passes over
samples as FedAvg does. Other batch sizes or learning rates may suit pooled samples better. Clients say what they hand
over, which is not counted as traffic. A deployment, whose samples are elsewhere, cannot run it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfed.capabilities import Exportable
from kinfed.client import Client, Reply, Samples, client_task
from kinfed.errors import ConfigError
from kinfed.federation import Federation, Offer
from kinfed.keys import base_key
from kinfed.method import Method
from kinfed.methods.one_model import OneModelState
from kinfed.models import Model
from kinfed.params import each_leaf
from kinfed.ranges import NUMBERS, Range
from kinfed.training import LocalTraining

SENT = {"samples": Range(lambda facts: facts.train, lambda facts: facts.train), "mean": NUMBERS}


@dataclass(frozen=True)
class Centralised(Method[OneModelState], Exportable[OneModelState]):
    """One model, trained on the samples of all clients in one place: what is lost by not sharing them."""

    model: Model
    local: LocalTraining = LocalTraining()

    def init(self, fed: Federation) -> OneModelState:
        if not fed.sees_samples:
            raise ConfigError("centralised needs all samples in one place, and a deployment's are not: use 'fedavg'")
        return OneModelState(each_leaf(lambda w: w.to(fed.device), self.model.init()))

    def round(self, state: OneModelState, t: int, fed: Federation) -> OneModelState:
        given = fed.run(self.train, fed.sample()).cohort
        if not len(given):
            return state
        return OneModelState(self.local(pool_samples(given, fed), state.params, self.model.gradient)[0])

    @client_task(ranges=SENT)
    def train(self, client: Client) -> Reply:
        """Client task: hands its samples over: how many they are, and their mean, which no damaged sample has."""
        total = torch.zeros((), device=client.key.device)
        for batch in client.train.in_order():
            means = self.model.inputs(batch.x).float().flatten(1).mean(1)
            total = total + torch.where(batch.mask, means, 0.0).sum()
        return Reply({"samples": client.train.size.clone(), "mean": total / client.train.size.clamp(min=1)})

    def offer(self, state: OneModelState, cohort: Tensor, fed: Federation) -> Offer:
        return Offer(shared={"params": state.params})

    def assignment_rule(self) -> str:
        return "every client is served the same model, trained on pooled samples"


def pool_samples(clients: Tensor, fed: Federation) -> Client:
    """The samples of these clients as those of one, with a random order of its own in each round."""
    index = torch.cat([fed.train[i] for i in clients.tolist()])
    size, now = (torch.tensor(number, device=fed.device) for number in (len(index), fed.round))
    samples = Samples(fed.x, fed.y, index, size, exact=True)
    key = torch.tensor(base_key(fed.seed, "pool", fed.round), device=fed.device)
    return Client(samples, samples, key, now, now, {})
