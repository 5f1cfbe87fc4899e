"""What the mean of Auto's last models has beyond the last one, by case of the regret table.

    python -m benchmarks.averaging --data-dir DATA --device cuda --jobs 16 --seeds 0 1 2 3 4 --out averaging.jsonl
    python -m benchmarks.averaging --show --out averaging.jsonl        # the table of what has run

Each run is a line of --out: by model the accuracy that its clients have with the mean of the last k models, and the
inner products of its successive updates. By these two rules were tried that serve the last model where it still learns.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from benchmarks.regret import as_markdown, make_method, make_population, read_lines
from benchmarks.regret_cases import CASES
from kinfed.experiment import Evaluation, Experiment, RoundResult, Summary
from kinfed.methods import Auto
from kinfed.methods.auto import AutoState
from kinfed.metrics import score_clients
from kinfed.params import Stack, flatten, select, stack

COUNTS = (1, 2, 3, 4, 5, 6, 8, 12)  # models in the mean
MEAN = 4  # of 50 rounds: Auto's
RULES: dict[str, Callable[[np.ndarray], bool]] = {  # whether a model with these products [rounds] is averaged
    "settled": lambda products: products.sum() < 0,  # Pflug 1990: updates undo each other
    "not faster": lambda products: (
        products.sum() < 0 or products @ (np.arange(len(products)) - (len(products) - 1) / 2) < 0
    ),
}


@dataclass
class KeepsModels:
    """An observer that keeps so many of the last models."""

    number: int
    models: list[Stack] = field(default_factory=list)
    run: Experiment[AutoState] | None = None

    def on_start(self, rounds: int, done: int) -> None: ...

    def on_round(self, result: RoundResult) -> None:
        """The experiment has the state of the round before."""
        if self.run is not None and self.run.state is not None:
            self.keep(self.run.state)

    def on_end(self, summary: Summary) -> None:
        if self.run is not None and self.run.state is not None:
            self.keep(self.run.state)

    def keep(self, state: AutoState) -> None:
        self.models = [*self.models, state.served.models][-self.number :]


def measure(case: str, seed: int, options: argparse.Namespace) -> dict[str, object]:
    """One run of Auto without a mean, and what means of its last models would have had."""
    began, kind = time.perf_counter(), CASES[case]
    population = make_population(kind, seed, options.data_dir)
    method = replace(cast("Auto", make_method("auto", kind, population, options.data_dir, seed)), average=0.0)
    kept = KeepsModels(1 + options.rounds - round(method.judge * options.rounds))
    run = kept.run = Experiment(
        method, population, rounds=options.rounds, fraction=kind.fraction, seed=seed, device=options.device,
        evaluation=Evaluation(every=10**6, signatures="none"), observers=[kept],
    )  # fmt: skip
    summary = run.run()
    used, clients = method.cluster_assignment(cast("AutoState", run.state)).unique(return_counts=True)
    return {
        "last": 100 * float(summary["accuracy"] or 0),
        "clients": clients.tolist(),
        "accuracy": {str(k): score_mean(run, used, kept.models[-k:]) for k in COUNTS},
        "products": multiply_updates([select(models, used) for models in kept.models]),
        "seconds": round(time.perf_counter() - began, 1),
    }


def score_mean(run: Experiment[AutoState], used: Tensor, models: list[Stack]) -> list[float]:
    """The accuracy, in per cent, of the clients of each model in use with the mean of these."""
    state, mean = cast("AutoState", run.state), {name: weight.mean(0) for name, weight in stack(models).items()}
    state = replace(state, served=replace(state.served, models=mean))
    scores = score_clients(run.method, state, run.fed, adapt=False).main
    return [100 * float(scores[(state.served.assignment == model).cpu()].mean()) for model in used]


def multiply_updates(models: list[Stack]) -> list[list[float]]:
    """For each model the inner products of successive updates, in rounds in which somebody trained it."""
    points = torch.stack([flatten(each).double() for each in models], 1)
    moved = [updates[updates.any(1)] for updates in points.diff(dim=1)]
    return [(updates[1:] * updates[:-1]).sum(1).tolist() for updates in moved]


def run_case(job: tuple[str, int, argparse.Namespace]) -> None:
    name, seed, options = job
    torch.set_num_threads(1)
    if any((line["case"], line["seed"]) == (name, seed) for line in read_lines(options.out)):
        return
    result = {"case": name, "seed": seed, **measure(name, seed, options)}
    with options.out.open("a") as file:
        file.write(json.dumps(result) + "\n")


def average_clients(line: dict[str, Any], counts: list[int]) -> float:
    """The accuracy of all clients, where each model is the mean of so many of the last ones ([models])."""
    own = [line["accuracy"][str(k)][model] for model, k in enumerate(counts)]
    return float(np.average(own, weights=line["clients"]))


def count_averaged(line: dict[str, Any], rule: str) -> list[int]:
    """How many models are in the mean by a rule: [models]"""
    return [MEAN if RULES[rule](np.array(products)) else 1 for products in line["products"]]


def find_lines(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    found = defaultdict(list)
    for line in read_lines(path):
        found[str(line["case"])].append(line)
    return ((name, found[name]) for name in CASES if name in found)


def show(path: Path) -> str:
    """The last model's accuracy, and what means of more have beyond it; the mean over seeds."""
    rows = []
    for name, lines in find_lines(path):
        ways = [[[k] * len(line["clients"]) for line in lines] for k in COUNTS]
        ways += [[count_averaged(line, rule) for line in lines] for rule in RULES]
        means = [np.mean([average_clients(*each) for each in zip(lines, way, strict=True)]) for way in ways]
        rows.append([name, str(len(lines)), f"{means[0]:.2f}", *(f"{mean - means[0]:+.2f}" for mean in means[1:])])
    return as_markdown(["case", "seeds", "last model", *(f"k = {k}" for k in COUNTS[1:]), *RULES], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="folder with the datasets")
    parser.add_argument("--only", nargs="*", default=["*"], help="some of the cases, by name or pattern")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes: runs at once")
    parser.add_argument("--out", type=Path, default=Path("averaging.jsonl"))
    parser.add_argument("--show", action="store_true", help="only the table of what has run")
    options = parser.parse_args()
    cases = [
        name for name, case in CASES.items()
        if case.fraction < 1 and case.task.has_classes() and any(fnmatch(name, w) for w in options.only)
    ]  # fmt: skip
    if not options.show:
        jobs = [(name, seed, options) for seed in options.seeds for name in cases]
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            for _ in pool.imap_unordered(run_case, jobs):
                pass
    print(show(options.out))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
