"""What FLT's relatedness finds: groups, silhouette, ARI, precision and recall by partition, k, distance and tuning.

    python benchmarks/relatedness.py signatures --data-dir DATA --out SIGNATURES [--device cuda] [--only scenario-1]
    python benchmarks/relatedness.py table SIGNATURES [--device cuda]
    python benchmarks/relatedness.py thresholds SIGNATURES [--distances matching] [--umap-seeds 0 1 2 3 4]

The first command computes all signatures of each scenario. The encoder is pre-trained on Fashion-MNIST, or for CIFAR-10
on the datasets of FLT's Enc1; or --encoder names others or a file. The second relates them by every distance and prints
a Markdown table. The third prints the ARI by threshold and seed of UMAP, and what cuts into the true number of
clusters would have: of the same distances, of those without UMAP, and of the clients' mean embeddings by Ward.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from scipy.cluster.hierarchy import fcluster, linkage
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
from kinfed.relatedness.set_distances import set_distances
from kinfed.signatures import EncoderCentroids, Pretraining, Signatures

SCENARIOS = {
    "scenario-1": ("mnist", DisjointClasses(100, 5), 2),
    "scenario-2": ("mnist", SharedClass(100, 5), 3),
    "scenario-4-600": ("emnist47", Structured(600, 10), 5),
    "scenario-4-2400": ("emnist47", Structured(2400, 10), 5),
    "cifar-1": ("cifar10", DisjointClasses(100, 5), 2),
    "cifar-2": ("cifar10", SharedClass(100, 5), 3),
}
DISTANCES = ("kernel", "transport", "matching", "min")
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0)


def compute_signatures(population: Population, flt: FLT, weights: Params, device: str, seed: int) -> Signatures:
    """The signatures of all clients."""
    fed = Vectorised(flt, population, seed=seed, device=device)
    offered = weights if flt.signature.tuning == "own_copy" else encoder_of(weights)
    replies = fed.run(flt.compute_signature, fed.clients, Offer(shared={"encoder": offered}))
    return Signatures.none(fed.count, flt.signature.k, flt.signature.latent, fed.device).update(replies)


def pretrain(options: argparse.Namespace, shape: torch.Size) -> tuple[EncoderCentroids, Params]:
    """The signature for samples of this shape, and its encoder's weights, which are also written beside the others."""
    source = options.encoder or ("fashion_mnist" if shape[0] == 1 else "enc1")
    pretraining = Pretraining(source, options.data_dir, epochs=options.epochs, samples=options.samples)
    signature = EncoderCentroids(pretraining=pretraining)
    weights = pretraining(signature.network(shape), torch.zeros(0, *shape, device=options.device))
    kept = {name: w.cpu().contiguous() for name, w in weights.items()}
    save_file(kept, options.out / f"encoder-{shape[0]}.safetensors")
    return signature, weights


def write_signatures(options: argparse.Namespace) -> None:
    """One file of signatures for each scenario, tuning, rule for k and seed."""
    options.out.mkdir(parents=True, exist_ok=True)
    for scenario in options.only or SCENARIOS:
        dataset, partition, labels = SCENARIOS[scenario]
        rows = load(dataset, options.data_dir)
        shape = torch.Size(rows.x_train.shape[1:])
        signature, weights = pretrain(options, shape)
        model = make_model("mlp_200", tuple(shape), rows.classes)
        for seed in options.seeds:
            population = build_population(rows, partition, seed)
            for tuning in options.tuning:
                for k, by_labels in ((5, False), (labels, True)):
                    began = time.perf_counter()
                    asked = replace(signature, tuning=tuning, k=k, k_by_labels=by_labels)
                    flt = FLT(model, signature=asked, relatedness=Relatedness())
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


def print_thresholds(options: argparse.Namespace) -> None:
    """A Markdown table of the ARI by threshold for each seed of UMAP, and of a cut into the true number."""
    heads = " | ".join([*(f"{threshold:g}" for threshold in THRESHOLDS), "cut into C", "without UMAP", "means"])
    print(f"| partition | encoder | k | seed | distance | neighbours | UMAP seed | {heads} |")
    print("|---" * (10 + len(THRESHOLDS)) + "|")
    for path in sorted(options.folder.glob("*.*.*.*.safetensors")):
        scenario, tuning, k, seed, _ = path.name.split(".")
        parts = load_file(path)
        known, planted = Signatures(parts["centroids"], parts["shares"]), parts["clusters"]
        means = cut_into(known.means(), len(planted.unique()), "ward")
        for distance in options.distances or ("matching", "min"):
            for neighbours in options.neighbours:
                for start in options.umap_seeds:
                    rule = Relatedness(distance=distance, neighbours=neighbours, seed=start)
                    cuts = [*cut_by_thresholds(rule, known, len(planted.unique())), means]
                    found = " | ".join(
                        f"{a['ari']:.2f} ({a['clusters']:.0f})" for a in (agreement(c, planted) for c in cuts)
                    )
                    head = f"| {scenario} | {tuning} | {k} | {seed} | {distance} | {neighbours} | {start} |"
                    print(f"{head} {found} |", flush=True)


def cut_by_thresholds(rule: Relatedness, known: Signatures, clusters: int) -> list[Tensor]:
    """The clusters by each threshold, and cuts into so many of the same distances and of those without UMAP."""
    apart = rule.distances(known)
    cuts = [replace(rule, threshold=threshold).clusters(apart) for threshold in THRESHOLDS]
    latent = set_distances(rule.distance, known.centroids, known.shares, known.centroids, known.shares)
    return [*cuts, *(cut_into(pairs_of(d), clusters, "average") for d in (apart, latent))]


def pairs_of(apart: Tensor) -> Tensor:
    """Distances of all pairs, one after the other."""
    return torch.maximum(apart, apart.T)[*torch.triu_indices(len(apart), len(apart), 1)]


def cut_into(points: Tensor, clusters: int, how: str) -> Tensor:
    """So many clusters of points, or by distances of pairs."""
    return torch.from_numpy(fcluster(linkage(points.double().numpy(), how), clusters, "maxclust")).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    signatures = commands.add_parser("signatures")
    signatures.add_argument("--data-dir", required=True)
    signatures.add_argument("--out", type=Path, required=True)
    signatures.add_argument("--device", default="cpu")
    signatures.add_argument("--encoder", help="a file, or what it is trained on: enc1, enc2, fashion_mnist")
    signatures.add_argument("--epochs", type=int, default=25)
    signatures.add_argument("--samples", type=int, default=0, help="of the encoder's datasets; 0: all")
    signatures.add_argument("--tuning", nargs="*", default=["none", "own_copy"])
    signatures.add_argument("--only", nargs="*")
    signatures.add_argument("--seeds", nargs="*", type=int, default=[0])
    signatures.set_defaults(run=write_signatures)
    table = commands.add_parser("table")
    table.add_argument("folder", type=Path)
    table.add_argument("--distances", nargs="*")
    table.add_argument("--device", default="cpu")
    table.set_defaults(run=print_table)
    thresholds = commands.add_parser("thresholds")
    thresholds.add_argument("folder", type=Path)
    thresholds.add_argument("--distances", nargs="*")
    thresholds.add_argument("--neighbours", nargs="*", type=int, default=[15])
    thresholds.add_argument("--umap-seeds", nargs="*", type=int, default=[42, 0, 1, 2, 3])
    thresholds.set_defaults(run=print_thresholds)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
