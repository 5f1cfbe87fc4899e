"""What a liar costs the others: accuracy of honest clients by method, attack and aggregation.

    python -m benchmarks.attacks                                          # everything: about 40 minutes on a core
    python -m benchmarks.attacks --methods flt --attacks sign_flip alie --aggregations mean norm_clipping
    python -m benchmarks.attacks --liars 3 --seeds 0                      # three of twelve, in one cluster
    python -m benchmarks.attacks --rounds 20 --lr 0.05                    # training that has not converged
    python -m benchmarks.attacks --methods auto --liars 2 --clients 10    # two of ten
    python -m benchmarks.attacks --methods clove --attacks none under --shift label_swap --clusters 3 --clients 15
    python -m benchmarks.attacks --attacks none scaling --data emnist47 --data-dir DATA --by-cluster
    python -m benchmarks.attacks --methods fesem fesem_updates --attacks none --clients 30 --fraction 0.3

Twelve clients (or `--clients`) with the same labels, in two planted clusters of equal size (or `--clusters`) whose
images are upright or turned by 90 degrees, or which swap two labels each; the liars are the first clients of the first
cluster. They know the honest clients' replies. Prints one Markdown table for each method, means over seeds: how
accurate honest clients are at the end on all test samples, turned as their own are. Beside the backdoor, and beside no
attack, is how many per cent of the test samples of other labels the trigger turns into its label. `--by-cluster` prints
honest clients of the liars' own cluster / those of the others, and the ARI of the clusters found for honest clients;
`--spread` adds to each accuracy its standard deviation over seeds.
"""

import argparse
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan, prod
from statistics import fmean, stdev
from typing import NamedTuple, cast

import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn

from benchmarks.lies import (
    ATTACKS,
    CLUSTERED_BY,
    SENT_BY,
    TARGET,
    USUAL_ATTACKS,
    Attack,
    Round,
    copy_first,
    move_half_way,
    move_to_middle,
    poison,
    stamp,
)
from kinfed.aggregation import AGGREGATIONS, Aggregation
from kinfed.capabilities import FindsClusters
from kinfed.client import HasMemory
from kinfed.client_tasks import find_client_model
from kinfed.config import Config, make_population, read
from kinfed.config.assembly import make_method, model_for
from kinfed.engines import Vectorised
from kinfed.engines.sequential import make_client
from kinfed.errors import NetworkError
from kinfed.experiment import Evaluation, Experiment
from kinfed.federation import Offer
from kinfed.methods import Auto
from kinfed.params import Payload, Stack, each_leaf, from_flat, select, to_flat

SHIFTS = {"rotation": 4, "label_swap": 5}  # and the clusters they plant at most
METHODS: dict[str, dict[str, object]] = {
    "fedavg": {},
    "flt": {  # its default has no threshold, and is not what the tables were measured with
        "signature": {"name": "encoder_centroids", "tuning": "none", "latent": 32},
        "relatedness": {"name": "relatedness"},
        "stale": "aggregated",
    },
    "repa": {"clusters": 2, "signature": {"reconstruction": 0.5, "encoder_rounds": 2}},
    "ifca": {"clusters": 2, "least_share": 0.2},
    "fedem": {"components": 2},
    "auto": {},
    "scaffold": {},
    "cfl": {"after": 5},
    "oracle": {},
    "fesem": {"clusters": 2},
    "fesem_updates": {"clusters": 2, "start": "updates"},
    "clove": {"clusters": 2},
    "flt_default": {},
    "fednova": {},
    "pacfl": {},
    "fedclust": {},
    "flis_hc": {"beta_by": "silhouette"},
    "fedgroup": {"clusters": 2},
    "wd": {"clusters": 2},
    "stocfl": {},
    "flhc": {"rounds_before": 3},
    "flux": {},
    "fedrc": {"components": 2},
    "pca_km_hc": {"clusters": 2},
}
VARIANTS = {"flt_default": "flt", "fesem_updates": "fesem"}  # methods with other settings
USUAL_METHODS = ["fedavg", "flt", "repa", "ifca"]
MODELS = ("params/", "models/", "common/", "own/")  # fields of replies that hold trained weights
STATISTICS = ("running_mean", "running_var")
UPDATES = ("step/", "change/", "update/")  # and what clients changed


def make_norm_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """An MLP of 100 units with BatchNorm."""
    first = nn.Linear(prod(shape), 100)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, classes))


@dataclass(frozen=True)
class Setup:
    """What all cells of the tables have in common."""

    liars: int = 1
    rounds: int = 50
    lr: float = 0.2
    clients: int = 12
    clusters: int = 2
    shift: str = "rotation"
    data: str = "digits"
    data_dir: str = ""
    fraction: float = 1.0
    model: str = "mlp_200"

    def table(self) -> dict[str, object]:
        """The sections of a config about samples; of larger datasets clients have 120."""
        pairs = [[2 * cluster, 2 * cluster + 1] for cluster in range(self.clusters)]
        turned = [90.0 * cluster for cluster in range(self.clusters)]
        few: dict[str, object] = {"public": 0.01, "train_samples": 120, "test_samples": 300, "dir": self.data_dir}
        return {
            "fraction": self.fraction,
            "model": self.model,
            "data": {"name": self.data, "global_test": True} | ({"public": 0.15} if self.data == "digits" else few),
            "partition": {"name": "iid", "clients": self.clients},
            "shift": {"name": self.shift} | ({"pairs": pairs} if self.shift == "label_swap" else {"degrees": turned}),
        }

    def settings(self, method: str) -> dict[str, object]:
        """The method's settings, with as many models as there are planted clusters."""
        own = METHODS[method]
        models = {name: self.clusters for name in ("clusters", "components") if name in own}
        return own | models | ({"least_share": 0.4 / self.clusters} if "least_share" in own else {})


USUAL = Setup()


class Result(NamedTuple):
    """What honest clients have at the end, as shares of test samples."""

    accuracy: float  # mean over honest clients
    trigger: float = nan  # how often the trigger works
    own: float = nan  # mean over those of the liars' own cluster
    others: float = nan
    ari: float = nan  # of the clusters found, where there are any


class Attacked(Vectorised):
    """A federation some of whose clients lie in their replies."""

    attack: Attack
    liars: Tensor  # ids
    models: int  # that IFCA offers
    draw: torch.Generator

    @property
    def weights(self) -> Tensor:
        claimed = self.sizes.index_put((self.liars,), self.attack.claims * self.sizes[self.liars])
        return self.aggregation.cap(claimed, self.clients)

    def _run(self, name: str, cohort: Tensor, keys: Tensor, offer: Offer) -> tuple[Payload, Payload]:
        send, keep = super()._run(name, cohort, keys, offer)
        at = torch.isin(cohort, self.liars)
        if not bool(at.any()) or name.startswith("evaluate"):
            return send, keep
        flat = self._lie_about_models(to_flat(send), to_flat(offer.shared) | self.offers_to(offer), at)
        flat = self._forge(flat, at)
        if self.attack.forges == "copy":
            flat = copy_first(flat, at)
        if self.attack.forges == "half_way" and name in CLUSTERED_BY:
            clusters = cast("Tensor", self.true_clusters)[cohort]
            flat = {n: move_half_way(v, at, clusters) if v.is_floating_point() else v for n, v in flat.items()}
        if self.attack.forges == "middle" and name in CLUSTERED_BY:
            flat = {n: move_to_middle(v, at) if v.is_floating_point() else v for n, v in flat.items()}
        return from_flat(flat), keep

    def offers_to(self, offer: Offer) -> Stack:
        """What each client of a cohort is offered beside the others."""
        each = to_flat(offer.each)
        return each if offer.pick is None else each_leaf(lambda w: w[offer.pick], each) if each else {}

    def _lie_about_models(self, sent: Stack, offered: Stack, at: Tensor) -> Stack:
        """The replies with the liars' models changed."""
        names = [name for name in sent if name.startswith(MODELS + UPDATES)]
        if self.attack.lie is None or not names:
            return sent
        start = torch.cat([self._start(name, sent, offered).flatten(1) for name in names], 1)
        updates = torch.cat([sent[name].flatten(1) for name in names], 1) - start
        peers = ~at & (start == start[at][:1]).all(1)
        peers = peers if bool(peers.any()) else ~at
        kinds = [torch.full((sent[name][0].numel(),), name.endswith(STATISTICS)) for name in names]
        layer = names[-1].rpartition(".")[0]
        ends = [torch.full((sent[name][0].numel(),), name.rpartition(".")[0] == layer) for name in names]
        now = Round(start[at], updates[at], updates[peers], self.draw, torch.cat(kinds), torch.cat(ends))
        lied = self.attack.lie(now)
        parts = (start[at] + lied).split([sent[name][0].numel() for name in names], 1)
        return sent | {n: sent[n].index_put((at,), p.view_as(sent[n][at])) for n, p in zip(names, parts, strict=True)}

    def _start(self, name: str, sent: Stack, offered: Stack) -> Tensor:
        """The weights of this name that each client started from."""
        if name.startswith(UPDATES):
            return torch.zeros_like(sent[name])
        if name in offered:
            start = offered[name]
            return start if start.dim() == sent[name].dim() else start.expand_as(sent[name])
        return offered[name.replace("params/", "models/")][sent["choice"]]  # IFCA offers all models

    def _forge(self, sent: Stack, at: Tensor) -> Stack:
        """The replies with the liars' signatures or choices changed."""
        forged = dict(sent)
        for name in ("centroids", "statistics"):
            if name in sent and self.attack.forges == "signature":
                far = 100 * sent[name].std() * torch.randn(sent[name][at].shape, generator=self.draw)
                forged[name] = sent[name].index_put((at,), far)
            if name in sent and self.attack.forges == "mimicry":
                forged[name] = sent[name].index_put((at,), sent[name][-1].expand_as(sent[name][at]))
        for name in [name for name in sent if name.startswith("change/") and self.attack.forges == "control"]:
            forged[name] = sent[name].index_put((at,), torch.ones_like(sent[name][at]))
        if "losses" in sent and self.attack.forges == "losses":
            far = 500 + 100 * torch.arange(sent["losses"].shape[1]).to(sent["losses"])
            forged["losses"] = sent["losses"].index_put((at,), far.expand_as(sent["losses"][at]))
        if "choice" in sent and self.attack.forges == "choice":
            forged["choice"] = sent["choice"].index_put((at,), (sent["choice"][at] + 1) % self.models)
        for name in {"hits", "alone"} & sent.keys() if self.attack.forges == "held_out" else ():
            false = torch.zeros_like(sent[name][at])
            held = self.sizes[self.liars] // cast("Auto", self.method).hold_out  # more would be out of range
            false[:, -2:] = held.to(false).view(-1, 1, 1)
            forged[name] = sent[name].index_put((at,), false)
        return forged


def configure(method: str, seed: int, setup: Setup) -> Config:
    """The experiment that is attacked."""
    training = {"epochs": 2, "batch_size": 10, "lr": setup.lr}
    name = VARIANTS.get(method, method)
    own = {"method": name, "methods": {name: setup.settings(method)}, "seed": seed}
    return read(setup.table() | own | {"rounds": setup.rounds, "training": training})


def measure(method: str, attack: Attack, rule: Aggregation, seed: int, setup: Setup = USUAL) -> Result:
    """What honest clients have at the end."""
    config, liars = configure(method, seed, setup), setup.liars
    population = poison(make_population(config), attack, range(liars))
    attacked = make_method(config, model_for(config, population))
    fed = Attacked(attacked, population, seed=seed, fraction=setup.fraction)
    fed.aggregation, fed.attack, fed.liars = rule, attack, torch.arange(liars)
    fed.models = setup.clusters
    fed.draw = torch.Generator().manual_seed(seed)
    experiment: Experiment[object] = Experiment.over(fed, rounds=config.rounds, evaluation=Evaluation(every=10**6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            experiment.run()
        except NetworkError:  # no signature is finite any more
            return Result(nan)
    return compare_clusters(experiment, trigger_success(experiment, liars), liars)


def compare_clusters(experiment: Experiment[object], trigger: float, liars: int) -> Result:
    """The accuracy of honest clients, by whether they are of the liars' own cluster."""
    fed, clusters = experiment.fed, cast("Tensor", experiment.fed.true_clusters)
    if experiment.scores is None:
        return Result(nan)
    accuracy, own = experiment.scores.main[liars:], (clusters == clusters[0])[liars:]
    ari = nan
    if isinstance(experiment.method, FindsClusters):
        found = experiment.method.cluster_assignment(experiment.state)[liars : fed.count]
        ari = float(adjusted_rand_score(clusters[liars:].tolist(), found.tolist()))
    parts = [float(part.mean()) for part in (accuracy, accuracy[own], accuracy[~own])]
    return Result(parts[0], trigger, parts[1], parts[2], ari)


def trigger_success(experiment: Experiment[object], liars: int) -> float:
    """The share of honest clients' test samples of other labels that the trigger turns into the backdoor's."""
    fed, method = cast("Attacked", experiment.fed), experiment.method
    hits, asked = 0, 0
    for honest in range(liars, fed.count):
        cohort = torch.tensor([honest])
        offer = method.offer(experiment.state, cohort, fed)
        served = to_flat(offer.shared) | select(fed.offers_to(offer), 0) if offer.each else to_flat(offer.shared)
        memory = method.initial_memory() if isinstance(method, HasMemory) else {}
        params = method.personalise(make_client(fed, honest, torch.tensor(0), memory), from_flat(served))
        test = fed.test[honest][fed.y[fed.test[honest]] != TARGET]
        said = find_client_model(method).logits(params, stamp(fed.x[test])).argmax(1)
        hits, asked = hits + int((said == TARGET).sum()), asked + len(test)
    return hits / asked


def is_meant(method: str, attack: str) -> bool:
    """Whether clients of this method send what the attack forges."""
    name = VARIANTS.get(method, method)
    return name in SENT_BY.get(attack, (name,))


Cell = tuple[str, str, str]  # method, attack, aggregation


def table(method: str, found: Mapping[Cell, list[Result]], asked: argparse.Namespace) -> str:
    """The Markdown table of one method."""
    lines = [
        f"| {method}: attack | " + " | ".join(f"`{rule}`" for rule in asked.aggregations) + " |",
        "|---" * (len(asked.aggregations) + 1) + "|",
    ]
    for attack in asked.attacks:
        if is_meant(method, attack):
            results = [found[method, attack, rule] for rule in asked.aggregations]
            has_trigger = attack in ("none", "backdoor")
            cells = [
                by_cluster(r, asked.spread) if asked.by_cluster else cell_text(r, has_trigger, asked.spread)
                for r in results
            ]
            lines.append(f"| {attack}: {ATTACKS[attack].says} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell_text(found: list[Result], has_trigger: bool, has_spread: bool = False) -> str:
    """The mean accuracy in per cent, and where asked for how often the trigger works."""
    mean = average(found)
    if isnan(mean.accuracy):
        return "no clusters"
    trigger = f" (trigger {100 * mean.trigger:.0f})" if has_trigger else ""
    return percent([r.accuracy for r in found], has_spread) + trigger


def by_cluster(found: list[Result], has_spread: bool = False) -> str:
    """The mean accuracies in per cent of the liars' own cluster and of the others, and the ARI."""
    ari = average(found).ari
    own, others = percent([r.own for r in found], has_spread), percent([r.others for r in found], has_spread)
    return f"{own} / {others}" + ("" if isnan(ari) else f", ARI {ari:.2f}")


def percent(shares: Sequence[float], has_spread: bool) -> str:
    """The mean of shares over seeds in per cent, and where asked for their standard deviation."""
    spread = f" ± {100 * stdev(shares):.1f}" if has_spread and len(shares) > 1 else ""
    return f"{100 * fmean(shares):.1f}{spread}"


def average(found: list[Result]) -> Result:
    """The mean over seeds."""
    return Result(*(sum(part) / len(found) for part in zip(*found, strict=True)))


def main() -> None:
    meanings = "\n".join(f"  {name:12} {attack.says}" for name, attack in ATTACKS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"attacks:\n{meanings}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", default=USUAL_METHODS, choices=list(METHODS))
    parser.add_argument("--attacks", nargs="+", default=list(USUAL_ATTACKS), choices=list(ATTACKS), metavar="ATTACK")
    parser.add_argument("--aggregations", nargs="+", default=list(AGGREGATIONS), choices=list(AGGREGATIONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--liars", type=int, default=USUAL.liars)
    parser.add_argument("--clients", type=int, default=USUAL.clients)
    parser.add_argument("--rounds", type=int, default=USUAL.rounds)
    parser.add_argument("--lr", type=float, default=USUAL.lr)
    parser.add_argument("--clusters", type=int, default=USUAL.clusters, help="planted clusters")
    parser.add_argument("--shift", default=USUAL.shift, choices=list(SHIFTS), help="how clusters differ")
    parser.add_argument("--data", default=USUAL.data, help="digits, mnist, fashion_mnist, emnist47 or another dataset")
    parser.add_argument("--data-dir", default="", help="folder with the datasets")
    parser.add_argument("--fraction", type=float, default=USUAL.fraction, help="of the clients that train in a round")
    parser.add_argument("--model", default=USUAL.model, help="mlp_200, benchmarks.attacks:make_norm_net or another")
    parser.add_argument("--by-cluster", action="store_true", help="the liars' own cluster, the others, and the ARI")
    parser.add_argument("--spread", action="store_true", help="the standard deviation over seeds beside each accuracy")
    asked, began = parser.parse_args(), time.perf_counter()
    if not 2 <= asked.clusters <= SHIFTS[asked.shift]:
        parser.error(f"--clusters must be 2..{SHIFTS[asked.shift]} with {asked.shift}, got {asked.clusters}")
    setup = Setup(
        asked.liars, asked.rounds, asked.lr, asked.clients, asked.clusters, asked.shift, asked.data, asked.data_dir,
        asked.fraction, asked.model,
    )  # fmt: skip
    for method in asked.methods:
        found: dict[Cell, list[Result]] = {
            (method, attack, rule): [
                measure(method, ATTACKS[attack], AGGREGATIONS[rule](), seed, setup) for seed in asked.seeds
            ]
            for attack in asked.attacks if is_meant(method, attack)
            for rule in asked.aggregations
        }  # fmt: skip
        print(table(method, found, asked), end="\n\n", flush=True)
    print(f"{asked.liars} of {asked.clients} clients lie; seeds {asked.seeds}; {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
