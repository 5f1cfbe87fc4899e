"""The client and the server of the Flower contender; actors find their job in the environment."""

import functools
import json
import os
import sys
import time
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from kinfed.bench.drivers import Clock, Job, make_network

FOREVER = 10**6
JOB = "KINFED_BENCH_JOB"
client, server = ClientApp(), ServerApp()


def begin() -> None:
    """Hands this process's job to the actors it will start."""
    os.environ[JOB] = sys.argv[1]


@functools.cache
def job() -> Job:
    return Job(**json.loads(os.environ[JOB]))


@functools.cache
def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """All clients' samples, once for each actor."""
    torch.set_num_threads(1)
    return torch.from_numpy(job().floats()), torch.from_numpy(job().labels())


@client.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of the client with this partition number."""
    (x, y), own = samples(), int(context.node_config["partition-id"])
    module = make_network(job().network, job().classes)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=job().lr)
    for pick in torch.randperm(job().samples).split(job().batch):
        optimiser.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(module(x[own, pick]), y[own, pick]).backward()
        optimiser.step()
    answer = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": job().samples})}
    return Message(RecordDict(answer), reply_to=message)


class Timed(FedAvg):
    """FedAvg whose rounds wait for their turn."""

    clock: Clock

    def configure_train(self, server_round: int, arrays: object, config: object, grid: Grid) -> Iterable[Message]:
        self.clock.begin()
        return list(super().configure_train(server_round, arrays, config, grid))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> object:
        arrived = list(replies)
        broken = [reply for reply in arrived if reply.has_error()]
        if broken or len(arrived) != job().cohort:
            raise RuntimeError(f"{len(broken)} of {len(arrived)} replies failed, wanted {job().cohort} good ones")
        result = super().aggregate_train(server_round, arrived)
        self.clock.end()
        return result


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds of FedAvg, once all clients are there: a cohort is a share of those that are."""
    while len(list(grid.get_node_ids())) < job().clients:
        time.sleep(0.1)
    strategy = Timed(
        fraction_train=job().cohort / job().clients, fraction_evaluate=0.0, min_available_nodes=job().clients
    )
    strategy.clock = Clock()
    first = ArrayRecord(make_network(job().network, job().classes).state_dict())
    strategy.start(grid=grid, initial_arrays=first, num_rounds=FOREVER)
