"""Drivers: processes that run rounds of FedAvg one at a time, for the race. This file needs numpy alone to be imported.

A driver gets its job as JSON. It waits for the line `go` on its standard input, runs one round, and writes how long
that took as a marked line to its standard output. Between its turns it must not work. Here are kinfed's own driver and
that of a plain PyTorch loop; drivers of other simulators are in `benchmarks/peers` of the repository.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

    from kinfed.federation import Federation
    from kinfed.methods import FedAvg
    from kinfed.models import Model

MARK = "@bench "
COLOUR = (3, 32, 32)
NETWORKS = {  # the model of kinfed, and the shape of its samples
    "mlp": ("mlp_200", (1, 28, 28)), "cnn": ("flhc_cnn", (1, 28, 28)), "lenet": ("lenet5", COLOUR),
    "dropout": ("lenet5_dropout", COLOUR), "batchnorm": ("resnet20", COLOUR), "vit": ("vit", COLOUR),
    "lstm": ("lstm", COLOUR), "resnet9": ("resnet9", COLOUR), "tuning": ("residual_ae", COLOUR),
}  # fmt: skip
Round = Callable[[int], object]  # runs the round of this number


@dataclass(frozen=True)
class Job:
    """A workload as drivers see it."""

    folder: str  # of the samples
    network: str  # one of NETWORKS
    clients: int
    samples: int  # of each client, or of the one with most
    classes: int
    cohort: int  # clients in a round
    batch: int
    lr: float
    epochs: int
    momentum: float
    optimiser: str
    lengths: list[int]  # samples of each client: the first of its images
    threads: int
    device: str

    def images(self) -> NDArray[np.uint8]:
        """All clients' images: [clients, samples, pixels] bytes, read from the disk when they are used."""
        images: NDArray[np.uint8] = np.load(Path(self.folder) / "x.npy", mmap_mode="r")
        return images

    def floats(self) -> NDArray[np.float32]:
        """The same in [0, 1], for drivers that do not take bytes; converted once, outside of all rounds."""
        return self.images().astype(np.float32) / np.float32(255)

    def labels(self) -> NDArray[np.int64]:
        """[clients, samples]"""
        labels: NDArray[np.int64] = np.load(Path(self.folder) / "y.npy")
        return labels

    def sample_cohort(self, round: int) -> list[int]:
        """The clients of a round, the same for all contenders that let us choose."""
        draw = np.random.default_rng(round).choice(self.clients, self.cohort, replace=False)
        return [int(client) for client in np.sort(draw)]


def read_job() -> Job:
    """The job this process was started with."""
    return Job(**json.loads(sys.argv[1]))


def send(**facts: object) -> None:
    """Sends facts to the race."""
    print(MARK + json.dumps(facts), flush=True)


def wait_for_turn() -> bool:
    """Waits for the next turn; false when there is none."""
    return sys.stdin.readline().strip() == "go"


def drive(start: Callable[[Job], Round]) -> None:
    """Serves turns: `start` prepares everything and gives back a function that runs round t."""
    try:
        run = start(read_job())
    except ImportError as error:
        exit_without(error)
    send(ready=True)
    round = 0
    while wait_for_turn():
        began = time.perf_counter()
        run(round)
        send(seconds=time.perf_counter() - began)
        round += 1


def exit_without(error: ImportError) -> NoReturn:
    """Names the package that is missing, and ends the process."""
    send(missing=str(error))
    sys.exit(0)


class Clock:
    """Turns for simulators that run their rounds themselves: call `begin` before a round and `end` after it."""

    def __init__(self) -> None:
        self.began = 0.0
        send(ready=True)

    def begin(self) -> None:
        """Waits for the turn; ends the process when there is none."""
        if not wait_for_turn():
            sys.exit(0)
        self.began = time.perf_counter()

    def end(self) -> None:
        """Sends how long the round took."""
        send(seconds=time.perf_counter() - self.began)


def make_network(name: str, classes: int) -> "nn.Module":
    """MLP-200, FL+HC's CNN (two 5x5 convolutions with "same" padding, 512 units), LeNet-5, or kinfed's; flat images."""
    from torch import nn

    if name not in ("mlp", "cnn", "lenet"):
        from kinfed.models import AUTOENCODERS, MODELS

        model, shape = NETWORKS[name]
        own = AUTOENCODERS[model](shape, 128) if name == "tuning" else MODELS[model](shape, classes)
        return nn.Sequential(nn.Unflatten(1, shape), own)

    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, classes))
    if name == "lenet":
        return nn.Sequential(
            nn.Unflatten(1, (3, 32, 32)),
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
        )  # fmt: skip
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


def start_plain(job: Job) -> Round:
    """The yardstick: each client trains one module from the global weights, which are then averaged; nothing else.

    Products have torch's usual precision, where convolutions on a GPU are in TF32, unless "float32" is an argument.
    """
    import torch

    torch.set_num_threads(job.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32 and "float32" not in sys.argv[3:]
    module = make_network(job.network, job.classes).to(job.device)
    x, y = (torch.from_numpy(samples).to(job.device) for samples in (job.floats(), job.labels()))
    server = [w.detach().clone() for w in module.parameters()]

    def compute_loss(output: "torch.Tensor", images: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        if job.network == "tuning":
            return (output.flatten(1) - images).square().mean()
        return torch.nn.functional.cross_entropy(output, labels)

    def run(round: int) -> None:
        total = [torch.zeros_like(w) for w in server]
        for client in job.sample_cohort(round):
            with torch.no_grad():
                torch._foreach_copy_(list(module.parameters()), server)
            train(client)
            torch._foreach_add_(total, [w.detach() for w in module.parameters()], alpha=1 / job.cohort)
        server[:] = total
        if job.device != "cpu":
            torch.cuda.synchronize()

    def train(client: int) -> None:
        weights, is_adam = module.parameters(), job.optimiser == "adam"
        sgd = torch.optim.SGD
        optimiser = torch.optim.Adam(weights, job.lr) if is_adam else sgd(weights, job.lr, job.momentum)
        for _ in range(job.epochs):
            for pick in torch.randperm(job.lengths[client], device=job.device).split(job.batch):
                optimiser.zero_grad(set_to_none=True)
                compute_loss(module(x[client, pick]), x[client, pick], y[client, pick]).backward()
                optimiser.step()

    return run


def start_kinfed(job: Job) -> Round:
    """A round of FedAvg as experiments run it, without evaluation, on the engine that the arguments name."""
    import torch

    torch.set_num_threads(job.threads)
    if job.device != "cpu":
        send(copy_bandwidth=measure_bandwidth(job.device))
    engine, *options = sys.argv[3:]
    settings = (
        {"workers": job.threads, "precision": options[0] if options else "float32"} if engine == "vectorised" else {}
    )
    fed, fedavg = make_federation(job, engine, settings)
    state = fedavg.init(fed)

    def run(round: int) -> None:
        nonlocal state
        fed.begin(round)
        state = fedavg.round(state, round, fed)
        if job.device != "cpu":
            torch.cuda.synchronize()

    if job.device != "cpu":
        run(0)  # the engine captures what comes a second time: the round that warms up
    return run


def make_federation(job: Job, engine: str, settings: Mapping[str, object]) -> "tuple[Federation, FedAvg]":
    """The clients of a job on an engine, and FedAvg."""
    import torch

    from kinfed.data import Population
    from kinfed.engines import ENGINES
    from kinfed.methods import FedAvg
    from kinfed.models import make_autoencoder, make_model
    from kinfed.training import LocalTraining

    name, shape = NETWORKS[job.network]
    x, y = torch.from_numpy(job.images().copy()).view(-1, *shape), torch.from_numpy(job.labels()).flatten()
    train = tuple(own[:n] for own, n in zip(torch.arange(len(x)).split(job.samples), job.lengths, strict=True))
    test = torch.tensor([len(x)])  # nothing is tested, but each client must have a test sample
    x, y = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    population = Population(x, y, train, (test,) * job.clients, job.classes)
    local = LocalTraining(
        job.epochs, job.batch, job.lr, momentum=job.momentum, optimiser=cast("Literal['sgd', 'adam']", job.optimiser)
    )
    is_encoder = job.network == "tuning"
    network = make_autoencoder(name, shape) if is_encoder else make_model(name, shape, job.classes)
    fedavg = FedAvg(cast("Model", network), local)
    kind = cast("Callable[..., Federation]", ENGINES[engine])
    return kind(fedavg, population, fraction=job.cohort / job.clients, device=job.device, **settings), fedavg


def measure_bandwidth(device: str) -> float:
    """Bytes a second that a copy on this GPU reads and writes: the median of twenty copies of a gibibyte."""
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


DRIVERS = {"kinfed": start_kinfed, "plain": start_plain}

if __name__ == "__main__":
    drive(DRIVERS[sys.argv[2]])
