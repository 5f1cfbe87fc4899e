"""Evaluation of clients with a model each: kinfed's engine beside a plain loop over them.

    python -m benchmarks.evaluation
    python -m benchmarks.evaluation --device cuda --networks lenet,cnn,mlp,resnet9 --clients 100 --samples 50,2000

`kinfed bench` measures rounds of training; this, what scores of all clients after a round cost. Both do the same by
turns, on the same samples, with as many threads: the loss and the right predictions of each client's test samples. A
table shows the median of both, and the median and range of their ratios.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from kinfed.bench.drivers import NETWORKS
from kinfed.client_tasks import evaluate
from kinfed.data import Population
from kinfed.engines import Vectorised
from kinfed.federation import Offer
from kinfed.methods import FedAvg
from kinfed.models import Model, make_model
from kinfed.params import stack

HEADER = (
    "| network | clients | test samples | plain loop, ms | kinfed, ms | times as fast |\n|---|---:|---:|---:|---:|---:|"
)
PLAIN = "mlp,lenet,cnn,dropout,batchnorm,vit,lstm,resnet9"
BATCH, CLASSES = 256, 10


def main() -> None:
    """Prints a table of all networks asked for."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--networks", default=PLAIN, help="of kinfed bench, comma-separated")
    asked.add_argument("--samples", default="5,50", help="test samples of a client, comma-separated")
    asked.add_argument("--clients", type=int, default=20)
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--threads", type=int, default=1)
    asked.add_argument("--device", default="cpu")
    said = asked.parse_args()
    torch.set_num_threads(said.threads)
    print(HEADER)
    for name in said.networks.split(","):
        for samples in map(int, said.samples.split(",")):
            print(row(name, said.clients, samples, said.repeats, said.device), flush=True)


@torch.no_grad()
def row(name: str, clients: int, samples: int, repeats: int, device: str) -> str:
    """What one network costs."""
    kind, shape = NETWORKS[name]
    model, population = make_model(kind, shape, CLASSES), make_population(shape, clients, samples)
    ways = start_plain(model, population, device), start_kinfed(model, population, device)
    for way in ways:
        way()  # kernels are compiled, and the second call is captured
    torch.testing.assert_close(*(way() for way in ways), rtol=1e-3, atol=1e-3)
    taken = [[measure(way) for way in ways] for _ in range(repeats)]
    plain, ours = (1000 * median(column) for column in zip(*taken, strict=True))
    ratios = sorted(loop / own for loop, own in taken)
    said = f"{median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
    return f"| {name} | {clients} | {samples} | {plain:.1f} | {ours:.1f} | {said} |"


def make_population(shape: tuple[int, ...], clients: int, samples: int) -> Population:
    """Clients with one training sample each, and so many test samples, all drawn by chance."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (clients * (samples + 1), *shape), generator=draw, dtype=torch.uint8)
    y = torch.randint(CLASSES, (len(x),), generator=draw)
    own = torch.arange(len(x)).split(samples + 1)
    return Population(x, y, tuple(rows[:1] for rows in own), tuple(rows[1:] for rows in own), CLASSES)


def start_plain(model: Model, population: Population, device: str) -> Callable[[], Tensor]:
    """A loop over clients: a module gets the weights of each, and sees its samples in batches."""
    module, weights = model.module_with(model.init()).to(device).eval(), [model.init() for _ in population.test]
    weights = [{name: w.to(device) for name, w in own.items()} for own in weights]
    x, targets = population.x.to(device), population.y.to(device)

    def run() -> Tensor:
        losses = []
        for own, rows in zip(weights, population.test, strict=True):
            module.load_state_dict(own, strict=False)
            loss, right = torch.zeros((), device=device), torch.zeros((), dtype=torch.long, device=device)
            for part in rows.to(device).split(BATCH):
                y = targets[part]
                output = module(model.inputs(x[part]))
                loss += torch.nn.functional.cross_entropy(output, y, reduction="sum")
                right += (output.argmax(1) == y).sum()
            losses.append(loss)
        return torch.stack(losses).cpu()

    return run


def start_kinfed(model: Model, population: Population, device: str) -> Callable[[], Tensor]:
    """The client task that every method has, of clients that are served a model each."""
    fed = Vectorised(FedAvg(model), population, device=device)
    models = {name: w.to(device) for name, w in stack([model.init() for _ in population.test]).items()}
    return lambda: fed.run(evaluate, fed.clients, Offer(each={"params": models}))["loss"].cpu()


def measure(way: Callable[[], Tensor]) -> float:
    """Seconds of one evaluation of all clients."""
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
