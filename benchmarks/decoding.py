"""What an honest-but-curious server reads in signatures: centroids decoded to images, and clients re-identified.

    python -m benchmarks.decoding --data-dir DATA                           # the table, by samples per client
    python -m benchmarks.decoding --data-dir DATA --images decoded.png      # decoded centroids
    python -m benchmarks.decoding --data-dir DATA --curve epsilon.png       # attacks and ARI against ε, scenario 1

The server decodes every point of a signature with its own decoder. Two attacks name the client that sent it:
decoding   the owner of the sample nearest to a decoded point, among the samples of all candidates
matching   the candidate whose mean embedding without noise is nearest: the attacker has all samples of all candidates
Candidates are all clients, or those of the sender's ground-truth cluster, which relatedness is meant to find: among
them chance is one over their number. Clients have two digits of MNIST each; encoders are trained on Fashion-MNIST.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call

from kinfed.data import Population, build_population, load
from kinfed.data.partitions import DisjointClasses
from kinfed.engines import Vectorised
from kinfed.methods import FLT
from kinfed.metrics import agreement
from kinfed.models import make_model
from kinfed.params import Params
from kinfed.privacy import SignaturePrivacy
from kinfed.relatedness import Calibrated, Relatedness
from kinfed.signatures import EncoderCentroids, PartMeans, Pretraining, Signature, Signatures

SHAPE = (1, 28, 28)
SAMPLES = {5: 1000, 20: 1000, 60: 1000, 600: 100}  # of a client -> clients
EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.35, 0.25)
EXACT = SignaturePrivacy(epsilon=1000.0)  # clipped as private ones are, almost without noise
AT_ONCE = 500  # decoded points


@dataclass(frozen=True)
class Hits:
    """Shares of clients that an attack names."""

    decoding: float
    matching: float
    decoding_in_cluster: float
    matching_in_cluster: float

    def __str__(self) -> str:
        cells = (self.decoding, self.matching, self.decoding_in_cluster, self.matching_in_cluster)
        return " | ".join(f"{100 * share:.1f}" for share in cells)


@dataclass(frozen=True)
class Case:
    """One kind of signature and how it is protected."""

    name: str
    signature: Signature
    privacy: SignaturePrivacy = SignaturePrivacy()

    def collect(self, population: Population, seed: int, privacy: SignaturePrivacy) -> tuple[Signatures, Params]:
        """The signatures of all clients as FLT collects them, and the encoder with what the server decodes by."""
        signature = self.signature.protect(privacy)
        by = Calibrated() if signature.has_parts() else Relatedness()
        flt = FLT(make_model("mlp_200", SHAPE, 10), signature=signature, relatedness=by)
        fed = Vectorised(flt, population, seed=seed)
        encoder = signature.encoder(fed)
        none = Signatures.none(fed.count, *signature.size(SHAPE), fed.device)
        return flt.collect(none, encoder, fed.clients, fed)[0], encoder

    def decode(self, points: Tensor, encoder: Params, population: Population) -> Tensor:
        """Points [n, d] as images [n, 784]; what was clipped is first made as long as the server's samples are."""
        if self.privacy.is_private:
            points = points / points.norm(dim=1, keepdim=True).clamp(min=1e-9) * self.usual_length(encoder, population)
        if isinstance(self.signature, PartMeans):
            return encoder["mean"] + points @ encoder["directions"].mT
        network = self.signature.network(SHAPE)
        whole = self.signature.pretraining(network, population.x[:0])
        own = {name.removeprefix("decoder."): w for name, w in whole.items() if name.startswith("decoder.")}
        with network.borrow(network.evaluation_template) as module, torch.no_grad():
            return functional_call(module.get_submodule("decoder"), own, (points,)).flatten(1)

    def usual_length(self, encoder: Params, population: Population) -> float:
        """The median length of embedded samples of the server."""
        x = self.signature.pretraining.load(population.x[:0])[:500]
        embed = self.signature.embed if isinstance(self.signature, PartMeans) else self.signature.network(SHAPE).embed
        return float(embed(encoder, x).norm(dim=1).median())


def make_cases(options: argparse.Namespace) -> Iterator[Case]:
    """All signatures and protections of the table."""
    pretraining = Pretraining("fashion_mnist", options.data_dir, options.epochs, samples=options.samples)
    centroids = EncoderCentroids(tuning="none", restarts=2, pretraining=pretraining)
    parts = PartMeans(latent=16, pretraining=pretraining)
    yield Case("centroids", centroids)
    yield Case("centroids, at least 10 samples each", centroids, SignaturePrivacy(min_samples=10))
    yield Case("centroids, ε = 8", centroids, SignaturePrivacy(epsilon=8.0))
    yield Case("part means", parts)
    for epsilon in (8.0, 2.0, 0.5):
        yield Case(f"part means, ε = {epsilon:g}", parts, SignaturePrivacy(epsilon=epsilon))


def make_population(options: argparse.Namespace, clients: int, samples: int, seed: int) -> Population:
    """Clients of scenario 1 with so many training samples at most."""
    dataset = load("mnist", options.data_dir or None)
    return build_population(dataset, DisjointClasses(clients, 5), seed, train_samples=samples)


def attack(case: Case, population: Population, seed: int) -> tuple[Hits, Signatures]:
    """How often the two attacks name the sender of a signature; one that sent none is not named."""
    known, encoder = case.collect(population, seed, case.privacy)
    exact, _ = case.collect(population, seed + 1000, EXACT if case.privacy.is_private else SignaturePrivacy())
    mates = population.true_clusters[:, None] == population.true_clusters
    nearest = find_nearest_samples(case, known, encoder, population)
    apart = torch.cdist(known.means().double(), exact.means().double())
    sent = known.exist()
    found = [count_hits(table, sent, mates, alone) for alone in (False, True) for table in (nearest, apart)]
    return Hits(*found), known


def count_hits(distances: Tensor, sent: Tensor, mates: Tensor, in_cluster: bool) -> float:
    """The share of senders whose own distance is the least, of all candidates or of those in their cluster."""
    some = distances.masked_fill(~mates, torch.inf) if in_cluster else distances
    named = some.argmin(1) == torch.arange(len(some))
    return float((named & sent).double().mean())


def find_nearest_samples(case: Case, known: Signatures, encoder: Params, population: Population) -> Tensor:
    """The least distance from any decoded point of a client to any sample of each candidate: [clients, clients]."""
    images = population.x.flatten(1).float() / 255
    owner = torch.repeat_interleave(torch.arange(len(population.train)), torch.tensor([*map(len, population.train)]))
    pool = images[torch.cat(list(population.train))]
    clients, k, width = known.centroids.shape
    decoded = case.decode(known.centroids.reshape(-1, width), encoder, population)
    rows = torch.full((clients * k, clients), torch.inf)
    for start in range(0, len(decoded), AT_ONCE):
        apart = torch.cdist(decoded[start : start + AT_ONCE], pool)
        some = rows[start : start + AT_ONCE]
        some.scatter_reduce_(1, owner.expand_as(apart), apart, "amin")
    rows[(known.shares <= 0).flatten()] = torch.inf
    return rows.view(clients, k, clients).amin(1)


def print_table(options: argparse.Namespace) -> None:
    """Prints how often clients are re-identified, in percent."""
    print("| signature | samples | clients | chance | decoding | matching | chance in cluster | decoding | matching |")
    print("|---|---|---|---|---|---|---|---|---|")
    for samples in options.per_client:
        clients = SAMPLES.get(samples, 100)
        population = make_population(options, clients, samples, options.seeds[0])
        for case in make_cases(options):
            hits, _ = attack(case, population, options.seeds[0])
            first, second = str(hits).split(" | ")[:2], str(hits).split(" | ")[2:]
            cells = [case.name, samples, clients, f"{100 / clients:g}", *first, f"{500 / clients:g}", *second]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def draw_images(options: argparse.Namespace, path: Path) -> None:
    """Draws samples of some clients of five samples, and under them what the server decodes, by protection."""
    from PIL import Image, ImageDraw

    population = make_population(options, 1000, 5, options.seeds[0])
    clients, size = range(0, 1000, 250), 56
    blocks = [
        (
            "samples of four clients",
            (population.x.flatten(1).float() / 255)[torch.cat([population.train[c] for c in clients])],
        )
    ]
    for case in make_cases(options):
        if case.name not in (
            "part means",
            "part means, ε = 8",
            "part means, ε = 2",
            "centroids, at least 10 samples each",
        ):
            known, encoder = case.collect(population, options.seeds[0], case.privacy)
            points = known.centroids[list(clients)]
            decoded = case.decode(points.flatten(0, 1), encoder, population)
            k = points.shape[1]
            blocks.append(
                (f"decoded: {case.name}", decoded.view(4, k, -1)[:, [*range(k)] + [0] * (5 - k)].flatten(0, 1))
            )
    sheet = Image.new("L", (4 * (5 * size + 16), len(blocks) * (size + 20)), 255)
    pen = ImageDraw.Draw(sheet)
    for row, (title, images) in enumerate(blocks):
        pen.text((2, row * (size + 20) + 4), title.replace("ε", "epsilon"), fill=0)
        for i, image in enumerate(images.clamp(0, 1)):
            tile = Image.fromarray((255 * (1 - image)).byte().view(28, 28).numpy()).resize((size, size))
            sheet.paste(tile, (i // 5 * (5 * size + 16) + i % 5 * size, row * (size + 20) + 18))
    sheet.save(path)


def draw_curve(options: argparse.Namespace, path: Path) -> None:
    """Prints and draws ARI and re-identification against ε, for part means on MNIST's scenario 1."""
    from kinfed.report.vega import Chart

    case, points = next(c for c in make_cases(options) if c.name == "part means"), list[dict[str, object]]()
    print("| ε | z | ARI, by seed | decoding in cluster, % | matching in cluster, % |\n|---|---|---|---|---|")
    for epsilon in EPSILONS:
        private = Case(case.name, case.signature, SignaturePrivacy(epsilon=epsilon))
        found = [measure(private, make_population(options, 100, 10**6, seed), seed) for seed in options.seeds]
        aris, hits = [ari for ari, _ in found], [hit for _, hit in found]
        means = (
            sum(aris) / len(aris),
            sum(hit.decoding_in_cluster for hit in hits) / len(hits),
            sum(hit.matching_in_cluster for hit in hits) / len(hits),
        )
        names = ("ARI of the clusters found", "re-identified by decoding", "re-identified by matching")
        points += [{"ε": epsilon, "value": value, "what": name} for name, value in zip(names, means, strict=True)]
        points.append({"ε": epsilon, "value": 0.05, "what": "chance"})
        cells = [f"{epsilon:g}", f"{private.privacy.multiplier:.2f}", " ".join(f"{ari:.3f}" for ari in aris)]
        print("| " + " | ".join([*cells, *(f"{100 * mean:.1f}" for mean in means[1:])]) + " |", flush=True)
    panel = {
        "data": {"name": "points"}, "width": 420, "height": 260, "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "ε", "type": "quantitative", "scale": {"type": "log"}, "title": "ε, δ = 1e-5"},
            "y": {"field": "value", "type": "quantitative", "title": "share, or ARI"},
            "color": {"field": "what", "type": "nominal", "title": None, "legend": {"orient": "bottom", "columns": 2}},
        },
    }  # fmt: skip
    Chart((panel,), {"points": points}).save(path)


def measure(case: Case, population: Population, seed: int) -> tuple[float, Hits]:
    """The ARI of the clusters that calibrated relatedness finds, and how often clients are re-identified."""
    hits, known = attack(case, population, seed)
    return agreement(Calibrated().compare(known).clusters(), population.true_clusters)["ari"], hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="folder with the datasets")
    parser.add_argument("--per-client", nargs="*", type=int, default=[*SAMPLES], help="samples of a client")
    parser.add_argument(
        "--seeds", nargs="*", type=int, default=[30, 31, 32], help="of the splits; tables use the first"
    )
    parser.add_argument("--epochs", type=int, default=25, help="of the auto-encoder")
    parser.add_argument("--samples", type=int, default=10_000, help="that encoders are trained on, at most")
    parser.add_argument("--images", type=Path, help="draw decoded centroids there")
    parser.add_argument("--curve", type=Path, help="draw attacks and ARI against ε there")
    options = parser.parse_args()
    if options.images:
        draw_images(options, options.images)
    if options.curve:
        draw_curve(options, options.curve)
    if not options.images and not options.curve:
        print_table(options)


if __name__ == "__main__":
    main()
