"""Milliseconds of one local step of all clients of a round, training alone: no sampling, no averaging.

    python benchmarks/steps.py --device cuda

`kinfed bench` measures whole rounds against other simulators; this says what the training in them costs, in full
precision and with TF32, and how much of the memory's speed it reaches.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from kinfed.bench.peers.kinfed import copied_a_second, prepared
from kinfed.bench.workloads import WORKLOADS, Workload

HEADER = "| workload | clients | steps | TF32 | ms a step | of bandwidth |\n|---|---:|---:|---|---:|---:|"


def main() -> None:
    """Prints a table of all workloads asked for."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--workloads", default="flt4,leaf,lenet", help="of kinfed bench, comma-separated")
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--repeats", type=int, default=10, help="trainings of which the median is shown")
    asked.add_argument("--scale", type=float, default=1.0, help="share of the clients")
    said = asked.parse_args()
    bandwidth = copied_a_second(said.device) if said.device != "cpu" else None
    print(HEADER)
    for name in said.workloads.split(","):
        for tf32 in (False, True) if bandwidth else (False,):
            workload = WORKLOADS[name].scaled(said.scale)
            seconds = training_seconds(workload, said.device, tf32, said.repeats)
            share = f"{workload.least_bytes / seconds / bandwidth:.0%}" if bandwidth else "–"
            each, digits = 1000 * seconds / workload.steps_each, "yes" if tf32 else "no"
            print(
                f"| {name} | {workload.cohort} | {workload.steps_each} | {digits} | {each:.3f} | {share} |", flush=True
            )


def training_seconds(workload: Workload, device: str, tf32: bool, repeats: int) -> float:
    """The median seconds of the task `train` for a cohort, after it was recorded."""
    with tempfile.TemporaryDirectory() as folder:
        job = workload.job(Path(folder), torch.get_num_threads(), device)
        fed, fedavg = prepared(job, "vectorised", {"tf32": tf32, "workers": job.threads})
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
