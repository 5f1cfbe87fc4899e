"""kinfed itself: FedAvg on one of its engines, named by the second argument. The one driver that needs kinfed."""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from kinfed.bench.peers.protocol import Job, drive, say

if TYPE_CHECKING:
    from kinfed.federation import Federation
    from kinfed.methods import FedAvg

NETWORKS = {"mlp": ("mlp_200", (1, 28, 28)), "cnn": ("flhc_cnn", (1, 28, 28)), "lenet": ("lenet5", (3, 32, 32))}


def start(job: Job) -> Callable[[int], object]:
    """A round of FedAvg as experiments run it, without evaluation."""
    import torch

    torch.set_num_threads(job.threads)
    if job.device != "cpu":
        say(copied_a_second=copied_a_second(job.device))
    how = {"workers": job.threads, "tf32": "tf32" in sys.argv} if sys.argv[2] == "vectorised" else {}
    fed, fedavg = prepared(job, sys.argv[2], how)
    state = fedavg.init(fed)

    def run(round: int) -> None:
        nonlocal state
        fed.begin(round)
        state = fedavg.round(state, round, fed)
        if job.device != "cpu":
            torch.cuda.synchronize()

    if job.device != "cpu":
        run(0)  # the engine records what comes a second time: the round that warms up
    return run


def prepared(job: Job, engine: str, how: Mapping[str, object]) -> "tuple[Federation, FedAvg]":
    """The clients of a job on an engine, and FedAvg."""
    import torch

    from kinfed.data import Population
    from kinfed.engines import ENGINES
    from kinfed.methods import FedAvg
    from kinfed.models import make_model
    from kinfed.training import LocalTraining

    name, shape = NETWORKS[job.network]
    x, y = torch.from_numpy(job.images().copy()).view(-1, *shape), torch.from_numpy(job.labels()).flatten()
    rows = tuple(own[:n] for own, n in zip(torch.arange(len(x)).split(job.rows), job.lengths, strict=True))
    test = torch.tensor([len(x)])  # nobody is tested, but must have a row
    x, y = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    population = Population(x, y, rows, (test,) * job.clients, job.classes)
    local = LocalTraining(job.epochs, job.batch, job.lr, momentum=job.momentum)
    fedavg = FedAvg(make_model(name, shape, job.classes), local)
    kind = cast("Callable[..., Federation]", ENGINES[engine])
    return kind(fedavg, population, fraction=job.cohort / job.clients, device=job.device, **how), fedavg


def copied_a_second(device: str) -> float:
    """Bytes that a copy on this GPU moves in a second, read and written: the median of twenty copies of a gibibyte."""
    import torch

    source = torch.zeros(2**30, dtype=torch.uint8, device=device)
    target, seconds = torch.empty_like(source), []
    for _ in range(20):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        target.copy_(source)
        ended.record()
        torch.cuda.synchronize()
        seconds.append(began.elapsed_time(ended) / 1000)
    return float(2 * 2**30 / sorted(seconds)[10])


if __name__ == "__main__":
    drive(start)
