"""What FLT's relatedness finds: groups, silhouette, ARI, precision and recall by partition, k, distance and tuning.

    python benchmarks/relatedness.py signatures --data-dir DATA --out SIGNATURES [--device cuda] [--only scenario-1]
    python benchmarks/relatedness.py table SIGNATURES [--device cuda]

The first command computes all signatures of each scenario (the encoder is pre-trained on Fashion-MNIST, or read with
--encoder FILE); the second relates them by every distance and prints a Markdown table.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kinfed.clustering.hierarchy import silhouette
from kinfed.data import Population, build_population, load
from kinfed.data.partitions import DisjointClasses, SharedClass, Structured
from kinfed.engines import Vectorised
from kinfed.federation import Offer
from kinfed.methods import FLT
from kinfed.metrics import agreement, pair_quality
from kinfed.models import encoder_of, make_model
from kinfed.params import Params
from kinfed.relatedness import Relatedness
from kinfed.signatures import EncoderCentroids, Pretraining, Signatures

SCENARIOS = {
    "scenario-1": ("mnist", DisjointClasses(100, 5), 2),
    "scenario-2": ("mnist", SharedClass(100, 5), 3),
    "scenario-4-600": ("emnist47", Structured(600, 10), 5),
    "scenario-4-2400": ("emnist47", Structured(2400, 10), 5),
}
DISTANCES = ("kernel", "transport", "matching", "min")


def compute_signatures(population: Population, flt: FLT, weights: Params, device: str, seed: int) -> Signatures:
    """The signatures of all clients."""
    fed = Vectorised(flt, population, seed=seed, device=device)
    offered = weights if flt.signature.tuning == "own_copy" else encoder_of(weights)
    replies = fed.run(flt.compute_signature, fed.clients, Offer(shared={"encoder": offered}))
    return Signatures.none(fed.count, flt.signature.k, flt.signature.latent, fed.device).update(replies)


def write_signatures(options: argparse.Namespace) -> None:
    """One file of signatures for each scenario, tuning, rule for k and seed."""
    options.out.mkdir(parents=True, exist_ok=True)
    source = options.encoder or "fashion_mnist"
    signature = EncoderCentroids(pretraining=Pretraining(source, options.data_dir))
    network = signature.network(torch.Size((1, 28, 28)))
    weights = signature.pretraining(network, torch.zeros(0, 1, 28, 28, device=options.device))
    save_file({name: w.cpu() for name, w in weights.items()}, options.out / "encoder.safetensors")
    for scenario in options.only or SCENARIOS:
        dataset, partition, labels = SCENARIOS[scenario]
        rows = load(dataset, options.data_dir)
        for seed in options.seeds:
            population = build_population(rows, partition, seed)
            for tuning in ("none", "own_copy"):
                for k, by_labels in ((5, False), (labels, True)):
                    began = time.perf_counter()
                    asked = replace(signature, tuning=tuning, k=k, k_by_labels=by_labels)
                    flt = FLT(
                        make_model("mlp_200", (1, 28, 28), rows.classes), signature=asked, relatedness=Relatedness()
                    )
                    known = compute_signatures(population, flt, weights, options.device, seed)
                    name = f"{scenario}.{tuning}.{'labels' if by_labels else 5}.{seed}.safetensors"
                    assert population.true_clusters is not None
                    save_file(
                        {
                            "centroids": known.centroids.cpu(),
                            "shares": known.shares.cpu(),
                            "clusters": population.true_clusters.contiguous(),
                        },
                        options.out / name,
                    )
                    print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)


def row(distance: str, known: Signatures, planted: Tensor) -> str:
    """Groups found, their silhouette, ARI, precision and recall of one distance."""
    began = time.perf_counter()
    rule = Relatedness(distance=distance)  # type: ignore[arg-type]
    apart = rule.distances(known)
    clusters = rule.clusters(apart).cpu()
    found, clear = agreement(clusters, planted.cpu()), silhouette(apart, clusters)
    precision, recall = pair_quality(rule.related(apart), planted)
    seconds = time.perf_counter() - began
    return (
        f"{found['clusters']:.0f} | {clear:.2f} | {found['ari']:.3f} | {precision:.3f} | {recall:.3f} | {seconds:.1f}"
    )


def print_table(options: argparse.Namespace) -> None:
    """A Markdown table of all signature files of a folder."""
    print("| partition | encoder | k | seed | distance | groups | silhouette | ARI | precision | recall | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for path in sorted(options.folder.glob("*.*.*.*.safetensors")):
        scenario, tuning, k, seed, _ = path.name.split(".")
        parts = load_file(path, device=options.device)
        known = Signatures(parts["centroids"], parts["shares"])
        for distance in options.distances or DISTANCES:
            found = row(distance, known, parts["clusters"])
            print(f"| {scenario} | {tuning} | {k} | {seed} | {distance} | {found} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    signatures = commands.add_parser("signatures")
    signatures.add_argument("--data-dir", required=True)
    signatures.add_argument("--out", type=Path, required=True)
    signatures.add_argument("--device", default="cpu")
    signatures.add_argument("--encoder")
    signatures.add_argument("--only", nargs="*")
    signatures.add_argument("--seeds", nargs="*", type=int, default=[0])
    signatures.set_defaults(run=write_signatures)
    table = commands.add_parser("table")
    table.add_argument("folder", type=Path)
    table.add_argument("--distances", nargs="*")
    table.add_argument("--device", default="cpu")
    table.set_defaults(run=print_table)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
