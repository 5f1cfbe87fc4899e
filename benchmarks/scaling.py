"""How the server's part of FLT grows with the number of clients: seconds, memory and what it finds.

    OMP_NUM_THREADS=1 python benchmarks/scaling.py [--clients 1000 10000 100000] [--noise 1.0] [--clusters 50]
                                                   [--distance kernel] [--plot docs/scaling.png]

Signatures are planted (clusters, each of 4 out of 100 classes; k=5 centroids in 128 dimensions that fall on the
cluster's classes at random), so no client is asked: what is measured is which clients are related, and which clusters
there are. Every size runs in a process of its own. Seconds are those of the processor.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from kinfed.relatedness import Relatedness
from kinfed.signatures import Signatures

CLUSTERS, HELD, CLASSES, K, LATENT = 50, 4, 100, 5, 128
STEPS = ("map", "clusters", "neighbours")


def planted(clients: int, seed: int, noise: float = 1.0, number: int = CLUSTERS) -> tuple[Signatures, Tensor]:
    """Signatures of clients in planted clusters, and the clusters."""
    draw = torch.Generator().manual_seed(seed)
    classes = 3 * torch.randn(CLASSES, LATENT, generator=draw)
    held = torch.stack([torch.randperm(CLASSES, generator=draw)[:HELD] for _ in range(number)])
    clusters = torch.randint(number, (clients,), generator=draw)
    more = torch.randint(HELD, (clients, K - HELD), generator=draw)
    place = torch.cat([torch.arange(HELD).expand(clients, HELD), more], 1)  # every class at least once
    times = (place[:, :, None] == place[:, None]).sum(2)
    points = classes[held[clusters][torch.arange(clients)[:, None], place]]
    points += noise * torch.randn(points.shape, generator=draw)
    return Signatures(points, 1 / (HELD * times)), clusters


def measure(clients: int, seed: int, noise: float, number: int, distance: str) -> dict[str, float]:
    """Seconds of each step, the peak of memory, and how well clusters and neighbours fit the planted clusters."""
    from sklearn.metrics import adjusted_rand_score

    known, clusters = planted(clients, seed, noise, number)
    marks = [time.process_time()]
    compared = Relatedness(distance=distance).compare(known)  # type: ignore[arg-type]
    marks.append(time.process_time())
    found = compared.clusters()
    marks.append(time.process_time())
    neighbours = compared.neighbours()
    marks.append(time.process_time())
    seconds = {step: after - before for step, before, after in zip(STEPS, marks, marks[1:], strict=False)}
    right = torch.zeros(len(neighbours.rows), number).index_add(1, clusters, neighbours.rows.float())
    related, own = right.sum(1)[neighbours.whose], right[neighbours.whose, clusters]
    return {
        "clients": clients,
        **seconds,
        "GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "found": len(found.unique()),
        "ari": float(adjusted_rand_score(clusters, found)),
        "sets": len(neighbours.rows),
        "precision": float(own.sum() / related.sum()),
        "recall": float(own.sum() / torch.bincount(clusters)[clusters].sum()),
    }


def in_a_process(clients: int, words: list[str]) -> dict[str, float]:
    """What `measure` says in a fresh process, whose memory holds nothing else."""
    done = subprocess.run([sys.executable, __file__, "--one", str(clients), *words], check=True, stdout=subprocess.PIPE)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def table_row(found: dict[str, float]) -> str:
    seconds = " | ".join(f"{found[step]:.1f}" for step in STEPS)
    quality = f"{found['found']:.0f} | {found['ari']:.3f} | {found['sets']:.0f} | {found['precision']:.3f}"
    return f"| {found['clients']:,} | {seconds} | {found['GiB']:.1f} | {quality} | {found['recall']:.3f} |"


def plot(rows: list[dict[str, float]], path: Path) -> None:
    """A small picture of seconds against clients."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    clients = [row["clients"] for row in rows]
    axes.loglog(clients, [sum(row[step] for step in STEPS) for row in rows], "o-", color="black", label="all")
    for step, marker in zip(STEPS, "s^v", strict=True):
        axes.loglog(clients, [row[step] for row in rows], marker + "--", label=step, linewidth=1, markersize=4)
    axes.set(xlabel="clients", ylabel="seconds of one core")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="*", type=int, default=[1000, 10_000, 100_000])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--clusters", type=int, default=CLUSTERS)
    parser.add_argument("--distance", default="kernel")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.seed, options.noise, options.clusters, options.distance)))
        return
    print("| clients | map, s | clusters, s | neighbours, s | peak, GiB | clusters | ARI | sets | precision | recall |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for clients in options.clients:
        rows.append(in_a_process(clients, sys.argv[1:]))
        print(table_row(rows[-1]), flush=True)
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
