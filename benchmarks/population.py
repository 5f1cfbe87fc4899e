"""What a round of FedAvg costs by the number of clients in the population, at a fixed cohort: seconds and memory.

    python benchmarks/population.py [--clients 1000 10000 100000] [--cohort 1000] [--samples 50] [--side 28]
                                    [--channels 1] [--model mlp_200] [--batch 10] [--device cpu] [--rounds 5]
                                    [--plot docs/population.png] [--profile]

Every client has samples of its own. Training alone is measured, after a round that warms up; seconds on a CPU are those
of the processor. "Beside samples" is the peak of memory in a round less what the samples take, which grows with the
population by definition. With --profile two more rounds run under torch's profiler, and the operations that took
most time on the CPU and on the GPU are printed.
"""

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kinfed.data import Population
from kinfed.engines import Vectorised
from kinfed.methods import FedAvg
from kinfed.models import make_model
from kinfed.report.vega import Chart, Spec, number
from kinfed.training import LocalTraining

HEADER = "| clients | cohort | s a round | MiB of samples | MiB beside samples |\n|---:|---:|---:|---:|---:|"


def make_population(clients: int, samples: int, channels: int, side: int) -> Population:
    """Clients with random images of their own, and one test sample that all share."""
    draw = torch.Generator().manual_seed(0)
    count = clients * samples
    x = torch.randint(0, 256, (count + 1, channels, side, side), dtype=torch.uint8, generator=draw)
    y = torch.randint(0, 10, (count + 1,), generator=draw)
    train = torch.arange(count).split(samples)
    return Population(x, y, tuple(train), (torch.tensor([count]),) * clients, 10)


def measure(clients: int, said: argparse.Namespace) -> dict[str, float]:
    """Seconds of a round, and bytes."""
    population, rounds = make_population(clients, said.samples, said.channels, said.side), said.rounds
    method = FedAvg(make_model(said.model, tuple(population.x.shape[1:]), 10), LocalTraining(1, said.batch, 0.01))
    fed = Vectorised(method, population, fraction=said.cohort / clients, device=said.device)
    state, taken = method.init(fed), list[float]()

    def run_round(t: int) -> None:
        nonlocal state
        fed.begin(t)
        state = method.round(state, t, fed)

    for t in range(rounds + 1):
        began = read_clock(fed.x)
        run_round(t)
        taken.append(read_clock(fed.x) - began)
    if said.profile:
        profile_rounds(run_round, range(rounds + 1, rounds + 3), clients)
    held = population.x.numel() + 16 * population.y.numel()  # images, labels, and sample numbers
    return {"clients": clients, "cohort": said.cohort, "seconds": sorted(taken[1:])[rounds // 2],
            "samples": held, "beside": max(0, peak_bytes(fed.x) - held)}  # fmt: skip


def profile_rounds(run_round: Callable[[int], None], rounds: range, clients: int) -> None:
    """Prints the operations of these rounds that took most time."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with torch.profiler.profile(activities=kinds) as profiler:
        for t in rounds:
            with torch.profiler.record_function("round"):
                run_round(t)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    for order in ("self_cpu_time_total", "self_device_time_total")[: len(kinds)]:
        print(f"{clients:,} clients, {len(rounds)} rounds, by {order}")
        print(profiler.key_averages().table(sort_by=order, row_limit=15, max_name_column_width=70))


def read_clock(x: Tensor) -> float:
    """Seconds: on a GPU of the clock when it is done, on a CPU of the processor."""
    if x.is_cuda:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def peak_bytes(x: Tensor) -> int:
    """The peak of a GPU's memory, or of this process's."""
    return torch.cuda.max_memory_allocated() if x.is_cuda else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def table_row(found: dict[str, float]) -> str:
    """One row of the table."""
    sizes = " | ".join(f"{found[name] / 2**20:,.0f}" for name in ("samples", "beside"))
    return f"| {found['clients']:,} | {found['cohort']:,} | {found['seconds']:.3f} | {sizes} |"


def plot(table: list[dict[str, float]], path: Path) -> None:
    """Seconds of a round against clients, on logarithmic axes."""
    shown, powers = sorted(found["clients"] for found in table), [10.0**n for n in range(-3, 3)]
    x = number("clients", title="clients in the population", scale={"type": "log"}, axis={"values": shown})
    y = number(
        "seconds", title="seconds of a round", scale={"type": "log", "domain": [1e-3, 1e2]}, axis={"values": powers}
    )
    panel: Spec = {"data": {"name": "rounds"}, "mark": {"type": "line", "point": True}, "encoding": {"x": x, "y": y}}
    Chart((panel | {"width": 420, "height": 220},), {"rounds": [dict(found) for found in table]}).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="*", type=int, default=[1000, 10_000, 100_000])
    for name, usual in (("cohort", 1000), ("samples", 50), ("side", 28), ("channels", 1), ("batch", 10), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--model", default="mlp_200")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--profile", action="store_true")
    said = parser.parse_args()
    table = []
    print(HEADER)
    for clients in said.clients:
        table.append(measure(clients, said))
        print(table_row(table[-1]), flush=True)
    if said.plot:
        plot(table, said.plot)


if __name__ == "__main__":
    main()
