"""What calibrated relatedness finds: clusters, ARI, and whether unseen clients fit, by dataset and partition.

    python -m benchmarks.calibrated --data-dir DATA                                   # all cases
    python -m benchmarks.calibrated --only demo --seeds 30 31 32
    python -m benchmarks.calibrated --data-dir DATA --only mnist-1 mnist-2 --device cuda
    python -m benchmarks.calibrated --clients 100000                                  # how long it takes
    python -m benchmarks.calibrated --data-dir DATA --few fashion_mnist               # three to seven clients

Each run prints one row of a Markdown table. Clients compute their signatures as in a run of FLT. "Never seen" clients
are those of one planted cluster at a time, which the server does not get to know; "genuine" ones are a fifth of the
others, held out as well. Encoders are trained once for each source and kept in the cache folder.
"""

import argparse
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from kinfed.data import OwnSettings, Partition, Population, build_population, from_clients, load
from kinfed.data.partitions import IID, Dirichlet, DisjointClasses, SharedClass, Structured
from kinfed.engines import Vectorised
from kinfed.methods import FLT
from kinfed.metrics import agreement
from kinfed.models import make_model
from kinfed.relatedness import Calibrated
from kinfed.signatures import PartMeans, Pretraining, Signatures


@dataclass(frozen=True)
class Case:
    """One dataset, how it is split, and what the encoder is trained on."""

    dataset: str
    partition: Partition
    source: str
    public: float = 0.0


ENC1 = "cifar10+cifar100[11,20,22,31,37,51,54,65,86,90]"  # FLT's encoders for CIFAR-10
ENC2 = "cifar100[3,8,13,15,20,22,25,29,31,37,43,46,51,54,65,84,85,86,90,92]"
CASES = {
    "demo": Case("digits", DisjointClasses(20, 5), "public", 0.15),
    "mnist-1": Case("mnist", DisjointClasses(100, 5), "fashion_mnist"),
    "mnist-2": Case("mnist", SharedClass(100, 5), "fashion_mnist"),
    "fashion-1": Case("fashion_mnist", DisjointClasses(100, 5), "mnist"),
    "fashion-2": Case("fashion_mnist", SharedClass(100, 5), "mnist"),
    "cifar10-1": Case("cifar10", DisjointClasses(100, 5), "cifar100"),
    "cifar10-2": Case("cifar10", SharedClass(100, 5), "cifar100"),
    "cifar10-1-enc1": Case("cifar10", DisjointClasses(100, 5), ENC1),
    "cifar10-1-enc2": Case("cifar10", DisjointClasses(100, 5), ENC2),
    "cifar10-2-enc1": Case("cifar10", SharedClass(100, 5), ENC1),
    "cifar10-2-enc2": Case("cifar10", SharedClass(100, 5), ENC2),
    "emnist47-600": Case("emnist47", Structured(600, 10), "fashion_mnist"),
    "emnist47-2400": Case("emnist47", Structured(2400, 10), "fashion_mnist"),
    "mnist-iid": Case("mnist", IID(100), "fashion_mnist"),
    "mnist-dirichlet": Case("mnist", Dirichlet(100, 0.5), "fashion_mnist"),
}
COMPOSITIONS = (
    (3,),
    (2, 1),
    (1, 1, 1),
    (2, 2),
    (3, 1),
    (2, 1, 1),
    (1, 1, 1, 1),
    (5,),
    (4, 1),
    (2, 2, 1),
    (2, 2, 2),
    (2, 2, 1, 1),
    (7,),
    (6, 1),
)
HEADER = (
    "| case | seed | found | ARI | genuine: fit nowhere | never seen: fit nowhere | genuine: in their cluster |\n"
    "|---|---|---|---|---|---|---|"
)


def compute_signatures(population: Population, case: Case, options: argparse.Namespace, seed: int) -> Signatures:
    """The signatures of all clients, as FLT collects them."""
    pretraining = Pretraining(case.source, options.data_dir, options.epochs, samples=options.samples)
    signature = PartMeans(embedding=options.embedding, pretraining=pretraining)
    shape = tuple(population.x.shape[1:])
    flt = FLT(make_model("mlp_200", shape, population.classes), signature=signature, relatedness=Calibrated())
    fed = Vectorised(flt, population, seed=seed, device=options.device)
    return flt.collect(flt.no_signatures(fed), signature.encoder(fed), fed.clients, fed)[0]


def score_unseen(known: Signatures, planted: Tensor, seed: int) -> tuple[float, float, float]:
    """Shares of genuine and of never-seen clients that fit nowhere, and of genuine ones in their own cluster."""
    genuine, strange, right, draw = [], [], [], torch.Generator().manual_seed(seed)
    for cluster in planted.unique():
        others = (planted != cluster).nonzero()[:, 0]
        others = others[torch.randperm(len(others), generator=draw)]
        held, members = others[: len(others) // 5], others[len(others) // 5 :].sort().values
        labels = Calibrated().compare(known.of(members)).clusters()
        fit = Calibrated().fit_unseen(known.of(members), labels, known.of(held))
        mates = torch.stack([planted[members[labels == label]].mode().values for label in fit.clusters])
        right.append(mates == planted[held])
        genuine.append(~fit.fits)
        strange.append(~Calibrated().fit_unseen(known.of(members), labels, known.of(planted == cluster)).fits)
    first, second, third = (float(torch.cat(part).double().mean()) for part in (genuine, strange, right))
    return first, second, third


def make_rows(options: argparse.Namespace) -> Iterator[str]:
    """One row of the table for each case and seed."""
    for name in options.only or CASES:
        case = CASES[name]
        dataset = load(case.dataset, options.data_dir or None)
        for seed in options.seeds:
            population = build_population(dataset, case.partition, seed, public_fraction=case.public)
            known = compute_signatures(population, case, options, seed)
            found = Calibrated().fit(known)
            cells = [name, str(seed), found.summary()]
            if population.true_clusters is not None:
                ari = agreement(found.label(known).cpu(), population.true_clusters.cpu())["ari"]
                cells.append(f"{ari:.3f}")
                cells += [
                    f"{share:.3f}" for share in score_unseen(known, population.true_clusters.to(options.device), seed)
                ]
            yield "| " + " | ".join([*cells, *["–"] * (7 - len(cells))]) + " |"


def deal_few(x: np.ndarray, y: np.ndarray, sizes: Sequence[int], samples: int, seed: int) -> Population:
    """So many clients of each source, every source with two labels of its own."""
    draw = np.random.default_rng(seed)
    labels, order, clients = draw.permutation(int(y.max()) + 1), draw.permutation(len(y)), []
    for source, number in enumerate(sizes):
        own = order[np.isin(y[order], labels[2 * source : 2 * source + 2])]
        clients += [own[client * samples : (client + 1) * samples] for client in range(number)]
    return from_clients([(x[own], y[own]) for own in clients], OwnSettings(seed=seed))


def make_few_rows(options: argparse.Namespace) -> Iterator[str]:
    """One row for each composition of a few clients: in how many federations its sources are found."""
    dataset = load(options.few, options.data_dir or None)
    for sizes in COMPOSITIONS:
        planted, found = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)), []
        for samples, seed in product((40, 200), options.seeds):
            population = deal_few(dataset.x_train, dataset.y_train, sizes, samples, seed)
            known = compute_signatures(population, Case(options.few, IID(len(planted)), "public"), options, seed)
            labels = Calibrated().fit(known).label(known)
            found.append(agreement(labels, planted)["ari"] == 1 if max(sizes) > 1 else int(labels.max()) == 0)
        yield f"| {' + '.join(map(str, sizes))} | {sum(found)} of {len(found)} |"


def time_clients(clients: int, width: int = 128, clusters: int = 20) -> str:
    """How long it takes to relate so many clients in planted clusters, each with 12 to 240 samples."""
    draw = torch.Generator().manual_seed(0)
    centres, planted = (
        torch.randn(clusters, width, generator=draw) / 2,
        torch.randint(clusters, (clients,), generator=draw),
    )
    counts = torch.randint(3, 61, (clients, 4), generator=draw).float()
    noise = torch.randn(clients, 4, width, generator=draw) / counts.sqrt()[..., None]
    known = Signatures(noise + centres[planted][:, None], counts)
    began, used = time.perf_counter(), time.process_time()
    found = agreement(Calibrated().compare(known).clusters(), planted)
    wall, used = time.perf_counter() - began, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return (
        f"{clients} clients: {found['clusters']:.0f} clusters, ARI {found['ari']:.3f}, {wall:.1f} s "
        f"({used:.1f} s of CPU), {peak} MB at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="folder with the datasets")
    parser.add_argument("--only", nargs="*", choices=CASES, help="some of the cases")
    parser.add_argument("--seeds", nargs="*", type=int, default=[30, 31, 32], help="of the splits")
    parser.add_argument("--embedding", default="auto", choices=["auto", "pca", "autoencoder", "random"])
    parser.add_argument("--epochs", type=int, default=15, help="of the auto-encoder")
    parser.add_argument("--samples", type=int, default=20_000, help="that the encoder is trained on, at most")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, help="relate so many synthetic clients instead")
    parser.add_argument("--few", help="federations of three to seven clients of this dataset instead")
    options = parser.parse_args()
    if options.clients:
        print(time_clients(options.clients))
        return
    if options.few:
        print("| clients of each source | right |\n|---|---|")
    else:
        print(HEADER)
    for row in make_few_rows(options) if options.few else make_rows(options):
        print(row, flush=True)


if __name__ == "__main__":
    main()
