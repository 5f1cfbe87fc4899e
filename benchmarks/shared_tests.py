"""Evaluation where clients share test samples: each sample once for each model, beside each client's own.

    python -m benchmarks.shared_tests --data-dir DATA
    python -m benchmarks.shared_tests --data-dir DATA --methods fedavg --partitions dirichlet --settings model=lenet5

After a round of training both ways evaluate all clients by turns, with as many threads. A table shows the median
seconds of the round's training and of both ways, and the median and range of their ratios.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import TypeVar

import torch

from kinfed.client_tasks import evaluate
from kinfed.config import load_config, make_population
from kinfed.config.assembly import make_method, model_for
from kinfed.engines import Vectorised, shared_outputs

Result = TypeVar("Result")
WARM_UP = 2  # rounds that are not counted: in the second one a GPU captures its graphs
HEADER = (
    "| method | partition | test samples | different | training, s | each client's own, s | together, s | times as fast"
    " |\n|---|---|---:|---:|---:|---:|---:|---:|"
)


def main() -> None:
    """Prints a table of all methods and partitions asked for."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--methods", default="fedavg,ifca,local", help="comma-separated")
    asked.add_argument("--partitions", default="dirichlet,label_skew", help="comma-separated")
    asked.add_argument("--data", default="fashion_mnist")
    asked.add_argument("--data-dir", default="", help="folder with the datasets")
    asked.add_argument("--settings", nargs="*", default=[], help="further settings, as of kinfed run")
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--threads", type=int, default=1)
    asked.add_argument("--device", default="cpu")
    said = asked.parse_args()
    torch.set_num_threads(said.threads)
    print(HEADER)
    for partition in said.partitions.split(","):
        for method in said.methods.split(","):
            common = [f"data={said.data}", f"data.dir={said.data_dir}", f"partition={partition}", "fraction=0.2"]
            beta = ["partition.beta=0.1"] if partition == "dirichlet" else []
            settings = [f"method={method}", *common, "partition.clients=100", *beta, *said.settings]
            print(row(settings, method, partition, said.repeats, said.device), flush=True)


@torch.no_grad()
def row(settings: list[str], method: str, partition: str, repeats: int, device: str) -> str:
    """What evaluations of one run cost, both ways."""
    config = load_config(None, settings)
    population = make_population(config)
    made = make_method(config, model_for(config, population))
    fed = Vectorised(made, population, fraction=config.fraction, device=device, workers=torch.get_num_threads())
    state, trained, taken = made.init(fed), [], []
    for t in range(WARM_UP + repeats):
        fed.begin(t)
        state, seconds = measure(lambda: made.round(state, t, fed), device)  # noqa: B023 - called at once
        trained.append(seconds)
        offer = made.offer(state, fed.real, fed)
        with evaluate_alone():
            alone, before = measure(lambda: fed.run(evaluate, fed.real, offer).send, device)  # noqa: B023 - called at once
        together, now = measure(lambda: fed.run(evaluate, fed.real, offer).send, device)  # noqa: B023 - called at once
        torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-2)
        taken.append((before, now))
    ratios = sorted(before / now for before, now in taken[WARM_UP:])
    times = [median(column) for column in (trained[WARM_UP:], *zip(*taken[WARM_UP:], strict=True))]
    tested, different = sum(map(len, population.test)), len(torch.cat(population.test).unique())
    shown = " | ".join(f"{value:.3f}" if device != "cpu" else f"{value:.2f}" for value in times)
    said = f"{median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
    return f"| {method} | {partition} | {tested} | {different} | {shown} | {said} |"


@contextmanager
def evaluate_alone() -> Iterator[None]:
    """Inside it each client evaluates its own test samples."""
    often, shared_outputs.OFTEN = shared_outputs.OFTEN, 10**9
    try:
        yield
    finally:
        shared_outputs.OFTEN = often


def measure(run: Callable[[], Result], device: str) -> tuple[Result, float]:
    """What it gives, and the seconds that it takes."""
    began = time.perf_counter()
    result = run()
    if device != "cpu":
        torch.cuda.synchronize()
    return result, time.perf_counter() - began


if __name__ == "__main__":
    main()
