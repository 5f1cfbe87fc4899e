"""Milliseconds of one local step of all clients of a round, training alone: no sampling, no averaging.

    python benchmarks/steps.py --device cuda

`kinfed bench` measures whole rounds against other simulators; this says what the training in them costs, in full
precision and with TF32, and how much of the memory's speed it reaches. Trainings of the workload's epochs and of twice
as many are timed: a step costs what the longer ones take longer, and what is left is the cost of asking the clients
and of taking their answers, whatever their number of steps.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from kinfed.bench.drivers import make_federation, measure_bandwidth
from kinfed.bench.workloads import WORKLOADS, Workload

HEADER = (
    "| workload | clients | steps | TF32 | ms a step | of bandwidth | ms a call beside |\n"
    "|---|---:|---:|---|---:|---:|---:|"
)


def main() -> None:
    """Prints a table of all workloads asked for."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--workloads", default="flt4,leaf,lenet", help="of kinfed bench, comma-separated")
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--repeats", type=int, default=10, help="trainings of which the median is shown")
    asked.add_argument("--scale", type=float, default=1.0, help="share of the clients")
    said = asked.parse_args()
    bandwidth = measure_bandwidth(said.device) if said.device != "cpu" else None
    print(HEADER)
    for name in said.workloads.split(","):
        for tf32 in (False, True) if bandwidth else (False,):
            print(row(name, WORKLOADS[name].scale(said.scale), said, tf32, bandwidth), flush=True)


def row(name: str, workload: Workload, said: argparse.Namespace, tf32: bool, bandwidth: float | None) -> str:
    """What one workload costs."""
    longer = replace(workload, epochs=2 * workload.epochs)
    once, twice = (training_seconds(which, said.device, tf32, said.repeats) for which in (workload, longer))
    each = (twice - once) / workload.steps_each
    share = f"{workload.least_bytes / workload.steps_each / each / bandwidth:.0%}" if bandwidth else "–"
    beside = once - each * workload.steps_each
    cells = (name, workload.cohort, int(workload.steps_each), "yes" if tf32 else "no", f"{1000 * each:.3f}", share,
            f"{1000 * beside:.2f}")  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def training_seconds(workload: Workload, device: str, tf32: bool, repeats: int) -> float:
    """The median seconds of the task `train` for a cohort, after its CUDA graph was captured."""
    with tempfile.TemporaryDirectory() as folder:
        job = workload.make_job(Path(folder), torch.get_num_threads(), device)
        fed, fedavg = make_federation(
            job, "vectorised", {"precision": "tf32" if tf32 else "float32", "workers": job.threads}
        )
    cohort, taken = fed.sample(), []
    offer = fedavg.offer(fedavg.init(fed), cohort, fed)
    for _ in range(repeats + 3):
        began = time.perf_counter()
        fed.run(fedavg.train, cohort, offer)
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken[3:])[repeats // 2]


if __name__ == "__main__":
    main()
