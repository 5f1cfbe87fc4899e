"""PFLlib's clients get their samples in the order in which kinfed's clients train on them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.pfllib import Loader, order_samples
from kinfed.client import Client, Reply, client_task
from kinfed.experiment import Experiment
from kinfed.keys import base_key
from kinfed.methods import FedAvg
from kinfed.models import make_model
from kinfed.params import Params, Payload
from kinfed.training import LocalTraining
from tests.problems import SIZES, tiny_population

SEEN: list[tuple[int, Tensor]] = []


@dataclass(frozen=True)
class Watched(FedAvg):
    """FedAvg that notes the samples of each mini-batch."""

    @client_task
    def train(self, client: Client, params: Params) -> Reply:
        SEEN.extend((int(client.round), batch.x) for batch in client.batches(*self.local.passes))
        return Reply({"params": params})


def test_mini_batches_are_those_of_kinfed_s_clients():
    population, seed = tiny_population(), 3
    SEEN.clear()
    local = LocalTraining(epochs=2, batch_size=4, drop_last=True)
    model = make_model("linear", (1, 8, 8), population.classes, 0)
    Experiment(Watched(model, local), population, "sequential", rounds=2, seed=seed).run()
    expected = []
    for t in range(2):
        for client, size in enumerate(SIZES):
            for epoch in range(2):
                order = order_samples(base_key(seed, "train", t + 1), client, epoch, size, torch.device("cpu"))
                x = population.x[population.train[client]]
                expected += [(t, batch) for batch, _ in Loader(x, torch.arange(size), 4, lambda at=order: at, True)]
    assert len(SEEN) == len(expected)
    assert all(
        seen[0] == wanted[0] and torch.equal(seen[1], wanted[1]) for seen, wanted in zip(SEEN, expected, strict=True)
    )


@dataclass(frozen=True)
class Tuned(FedAvg):
    """FedAvg whose clients note the first mini-batch of each evaluation, on which they would tune the model."""

    def personalise(self, client: Client, offer: Payload) -> Params:
        SEEN.append((int(client.round), next(iter(client.batches(1, 4))).x))
        return super().personalise(client, offer)


def test_a_model_is_tuned_on_the_mini_batches_of_kinfed_s_evaluations():
    population, seed = tiny_population(), 3
    SEEN.clear()
    model = make_model("linear", (1, 8, 8), population.classes, 0)
    Experiment(Tuned(model, LocalTraining(batch_size=4)), population, "sequential", rounds=2, seed=seed).run()
    expected = []
    for evaluation in (1, 2):
        for client, size in enumerate(SIZES):
            order = order_samples(base_key(seed, "evaluate", evaluation), client, 0, size, torch.device("cpu"))
            expected.append(population.x[population.train[client]][order[:4]])
    seen = [x for _, x in SEEN[: len(expected)]]  # at the end there is one more, of all metrics
    assert all(torch.equal(*pair) for pair in zip(seen, expected, strict=True))
