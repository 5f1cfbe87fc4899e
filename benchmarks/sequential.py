"""Training of networks that no block of clients can train at once: kinfed's engine beside a plain loop over clients.

    python -m benchmarks.sequential

Such networks draw random numbers of their own, branch on their data or change a tensor in place. Both ways do the same
by turns with one thread: mini-batches of 10 in an order drawn anew, SGD with momentum, and the weights of all clients
at the end. A table shows the median of both, and the median and range of their ratios.
"""

import argparse
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.evaluation import make_population, measure
from kinfed.data import Population
from kinfed.engines import Vectorised
from kinfed.methods import FedAvg
from kinfed.models import Model
from kinfed.params import Params, stack
from kinfed.training import LocalTraining

HEADER = "| network | samples | plain loop, ms | kinfed, ms | times as fast |\n|---|---:|---:|---:|---:|"
BATCH, LR, MOMENTUM, CLASSES = 10, 0.01, 0.5, 10


class DrawsNoise(nn.Module):
    """An MLP that adds noise to its samples, as large as a number that it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.body(x + torch.randn(x.shape) * float(torch.rand(())) / 100)


class AddsInPlace(DrawsNoise):
    """The same MLP, which adds its layer to a tensor of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        hidden = torch.zeros(len(x), 16)
        hidden += self.body[1](x.flatten(1))
        return self.body[2:](hidden)


class Branches(nn.Module):
    """A network that branches on its samples: an MLP with BatchNorm, or two convolutions."""

    def __init__(self, body: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.body = body()

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.body(-x if float(x.mean()) < 0 else x)


def with_batch_norm() -> nn.Module:
    """An MLP with BatchNorm."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))


def with_convolutions() -> nn.Module:
    """Two convolutions and a layer."""
    layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, CLASSES)
    return nn.Sequential(*layers)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MLP that draws": DrawsNoise,
    "MLP that adds in place": AddsInPlace,
    "MLP with BatchNorm that branches": partial(Branches, with_batch_norm),
    "convolutions that branch": partial(Branches, with_convolutions),
}


def main() -> None:
    """Prints a table of all networks."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--samples", default="10,50,200", help="training samples of a client, comma-separated")
    asked.add_argument("--clients", type=int, default=20)
    asked.add_argument("--repeats", type=int, default=15)
    said = asked.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # that clients train sequentially
    print(HEADER)
    for name, build in NETWORKS.items():
        for samples in map(int, said.samples.split(",")):
            print(row(name, build, said.clients, samples, said.repeats), flush=True)


def row(name: str, build: Callable[[], nn.Module], clients: int, samples: int, repeats: int) -> str:
    """What one network costs."""
    population = make_population((1, 8, 8), clients, samples)
    population = replace(population, train=population.test, test=population.train)
    model = Model(build, classes=CLASSES)
    ways = train_plainly(model, population), start_federation(model, population)
    for way in ways * 2:
        way()
    taken = [[measure(way) for way in ways] for _ in range(repeats)]
    plain, ours = (1000 * median(column) for column in zip(*taken, strict=True))
    ratios = sorted(loop / own for loop, own in taken)
    said = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return f"| {name} | {samples} | {plain:.1f} | {ours:.1f} | {said} |"


def train_plainly(model: Model, population: Population) -> Callable[[], Params]:
    """A loop over clients: one module trains from the same weights on the samples of each."""
    module, loss_of = model.build_module(), nn.CrossEntropyLoss()
    start = {name: w.clone() for name, w in module.state_dict().items()}
    own = [(model.inputs(population.x[rows]), population.y[rows]) for rows in population.train]

    def run() -> Params:
        ends = []
        for x, y in own:
            module.load_state_dict(start)
            optimiser = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
            for part in torch.randperm(len(x)).split(BATCH):
                optimiser.zero_grad()
                loss_of(module(x[part]), y[part]).backward()
                optimiser.step()
            ends.append({name: w.clone() for name, w in module.state_dict().items()})
        return stack(ends)

    return run


def start_federation(model: Model, population: Population) -> Callable[[], object]:
    """FedAvg's client task, asked of all clients."""
    method = FedAvg(model, LocalTraining(1, BATCH, LR, MOMENTUM))
    fed = Vectorised(method, population)
    state = method.init(fed)
    return lambda: fed.run(method.train, fed.clients, method.offer(state, fed.clients, fed))


if __name__ == "__main__":
    main()
