"""What a liar costs the others: accuracy of honest clients by method, attack and aggregation.

    python -m benchmarks.attacks                                          # everything: about 40 minutes on a core
    python -m benchmarks.attacks --methods flt --attacks sign_flip alie --aggregations mean norm_clipping
    python -m benchmarks.attacks --liars 3 --seeds 0                      # three of twelve, in one cluster
    python -m benchmarks.attacks --rounds 20 --lr 0.05                    # training that has not converged
    python -m benchmarks.attacks --methods auto --liars 2 --clients 10    # two of ten

Twelve clients (or `--clients`) with the same labels, in two planted clusters of equal size whose images are upright or
turned by 90 degrees; the liars are the first clients of the first cluster. They know the honest clients' replies.
Prints one Markdown table for each method, means over seeds: how accurate honest clients are at the end on all test
samples, turned as their own are. Beside the backdoor, and beside no attack, is how many per cent of the test samples of
other labels the trigger turns into its label.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import cast

import torch
from torch import Tensor

from kinfed.aggregation import AGGREGATIONS, Aggregation
from kinfed.client import HasMemory
from kinfed.client_tasks import find_client_model
from kinfed.config import Config, make_population, read
from kinfed.config.assembly import make_method, model_for
from kinfed.data import Population
from kinfed.engines import Vectorised
from kinfed.engines.sequential import make_client
from kinfed.errors import NetworkError
from kinfed.experiment import Evaluation, Experiment
from kinfed.federation import Offer
from kinfed.methods import Auto
from kinfed.params import Payload, Stack, each_leaf, from_flat, select, to_flat

CLIENTS, TARGET, CORNER = 12, 0, 3  # the label of the backdoor, and the side of its trigger in pixels
BASE: dict[str, object] = {
    "fraction": 1.0,
    "data": {"name": "digits", "public": 0.15, "global_test": True},
    "partition": {"name": "iid", "clients": CLIENTS},
    "shift": {"name": "rotation", "degrees": [0.0, 90.0]},
}
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
    "clove": {"clusters": 2},
}
USUAL_METHODS = ["fedavg", "flt", "repa", "ifca"]
MODELS = ("params/", "models/", "common/", "own/")  # fields of replies that hold trained weights
UPDATES = ("step/", "change/", "update/")  # and what clients changed


@dataclass(frozen=True)
class Setup:
    """What all cells of the tables have in common."""

    liars: int = 1
    rounds: int = 50
    lr: float = 0.2
    clients: int = CLIENTS


USUAL = Setup()


@dataclass(frozen=True)
class Round:
    """What liars know when they lie: the models they were sent, what they trained, and what honest clients did."""

    start: Tensor  # [liars, d]
    own: Tensor  # [liars, d] updates
    honest: Tensor  # [honest, d] updates of those that were sent the same model as the first liar
    draw: torch.Generator


Lie = Callable[[Round], Tensor]  # updates [liars, d]


def send_noise(now: Round) -> Tensor:
    """Noise of a standard deviation of 1 in place of an update."""
    return torch.randn(now.own.shape, generator=now.draw)


def shift_a_little(now: Round) -> Tensor:
    """A little is enough (Baruch et al., 2019): 1.5 standard deviations below the mean, coordinate by coordinate."""
    return (now.honest.mean(0) - 1.5 * now.honest.std(0)).expand_as(now.own)


def oppose_the_mean(now: Round) -> Tensor:
    """Inner product manipulation (Xie et al., 2019): three times the mean update, backwards."""
    return (-3 * now.honest.mean(0)).expand_as(now.own)


@dataclass(frozen=True)
class Attack:
    """What liars do."""

    says: str
    lie: Lie | None = None  # about the models they train; None: they train honestly
    flips_labels: bool = False  # they train on wrong labels
    plants_trigger: bool = False  # they train on samples with a trigger
    forges: str = ""  # what else they forge: signature, mimicry, choice, held_out, control, losses
    claims: int = 1  # times their samples, how many they say they have


ATTACKS = {
    "none": Attack("nobody lies"),
    "huge": Attack("weights of 9e11; beyond 1e12 replies are rejected", lambda now: torch.full_like(now.own, 9e11)),
    "sign_flip": Attack("the update backwards", lambda now: -now.own),
    "scaling": Attack("100 times the update backwards", lambda now: -100 * now.own),
    "noise": Attack("noise of standard deviation 1", send_noise),
    "alie": Attack("1.5 standard deviations below the mean of honest updates", shift_a_little),
    "ipm": Attack("3 times the mean of honest updates, backwards", oppose_the_mean),
    "label_flip": Attack("trains on labels 9 - y", flips_labels=True),
    "backdoor": Attack("half its samples have a trigger and label 0; update times 12", lambda now: CLIENTS * now.own,
                       plants_trigger=True),
    "signature": Attack("a forged signature, far from all others", forges="signature"),
    "mimicry": Attack("the signature of a client of the other cluster; update backwards", lambda now: -now.own,
                      forges="mimicry"),
    "choice": Attack("claims that the other cluster's model fits best; update backwards",
                     lambda now: -now.own, forges="choice"),
    "held_out": Attack("says that its own training is right on all held-out samples, and what it is served on none",
                       forges="held_out"),
    "collusion": Attack("the same, and 3 times the mean of honest updates, backwards", oppose_the_mean,
                        forges="held_out"),
    "control": Attack("says in each round that its control variate grew by 1 in every weight", forges="control"),
    "losses": Attack("says that the first model fits badly, and the second one worse", forges="losses"),
    "inflated": Attack("claims 1,000 times its samples; update backwards", lambda now: -now.own, claims=1000),
}  # fmt: skip
SENT_BY = {
    "signature": ("flt", "repa", "auto"),
    "mimicry": ("flt", "repa", "auto"),
    "choice": ("ifca",),
    "held_out": ("auto",),
    "collusion": ("auto",),
    "control": ("scaffold",),
    "losses": ("clove",),
}  # whose clients send it


class Attacked(Vectorised):
    """A federation some of whose clients lie in their replies."""

    attack: Attack
    liars: Tensor  # ids
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
        return from_flat(self._forge(flat, at)), keep

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
        lied = self.attack.lie(Round(start[at], updates[at], updates[peers], self.draw))
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
            far = torch.tensor([500.0, 600.0]).to(sent["losses"])
            forged["losses"] = sent["losses"].index_put((at,), far.expand_as(sent["losses"][at]))
        if "choice" in sent and self.attack.forges == "choice":
            forged["choice"] = sent["choice"].index_put((at,), 1 - sent["choice"][at])
        for name in {"hits", "alone"} & sent.keys() if self.attack.forges == "held_out" else ():
            false = torch.zeros_like(sent[name][at])
            held = self.sizes[self.liars] // cast("Auto", self.method).hold_out  # more would be out of range
            false[:, -2:] = held.to(false).view(-1, 1, 1)
            forged[name] = sent[name].index_put((at,), false)
        return forged


def stamp(images: Tensor) -> Tensor:
    """The same images with a white corner: the trigger."""
    marked = images.clone()
    marked[..., :CORNER, :CORNER] = 255
    return marked


def poison(population: Population, attack: Attack, liars: Iterable[int]) -> Population:
    """The population whose liars train on what their attack says."""
    if not attack.flips_labels and not attack.plants_trigger:
        return population
    x, y, train = [population.x], [population.y], list(population.train)
    for liar in liars:
        own = population.train[liar]
        marked = torch.arange(len(own)) % 2 == 0
        train[liar] = sum(map(len, y)) + torch.arange(len(own))
        images, labels = population.x[own], population.y[own]
        x.append(stamp(images).where(marked[:, None, None, None], images) if attack.plants_trigger else images)
        y.append(labels.where(~marked, TARGET) if attack.plants_trigger else population.classes - 1 - labels)
    return replace(population, x=torch.cat(x), y=torch.cat(y), train=tuple(train))


def configure(method: str, seed: int, setup: Setup) -> Config:
    """The experiment that is attacked."""
    training = {"epochs": 2, "batch_size": 10, "lr": setup.lr}
    own = {"method": method, "methods": {method: METHODS[method]}, "seed": seed}
    own["partition"] = {"name": "iid", "clients": setup.clients}
    return read(BASE | own | {"rounds": setup.rounds, "training": training})


def measure(method: str, attack: Attack, rule: Aggregation, seed: int, setup: Setup = USUAL) -> tuple[float, float]:
    """The mean accuracy of honest clients at the end, and how often the trigger works on them."""
    config, liars = configure(method, seed, setup), setup.liars
    population = poison(make_population(config), attack, range(liars))
    fed = Attacked(make_method(config, model_for(config, population)), population, seed=seed)
    fed.aggregation, fed.attack, fed.liars = rule, attack, torch.arange(liars)
    fed.draw = torch.Generator().manual_seed(seed)
    experiment: Experiment[object] = Experiment.over(fed, rounds=config.rounds, evaluation=Evaluation(every=10**6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            experiment.run()
        except NetworkError:  # no signature is finite any more
            return nan, nan
    accuracy = nan if experiment.scores is None else float(experiment.scores.main[liars:].mean())
    return accuracy, trigger_success(experiment, liars)


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
    return method in SENT_BY.get(attack, (method,))


Cell = tuple[str, str, str]  # method, attack, aggregation


def table(method: str, found: Mapping[Cell, list[tuple[float, float]]], attacks: list[str], rules: list[str]) -> str:
    """The Markdown table of one method."""
    lines = [
        f"| {method}: attack | " + " | ".join(f"`{rule}`" for rule in rules) + " |",
        "|---" * (len(rules) + 1) + "|",
    ]
    for attack in attacks:
        if is_meant(method, attack):
            cells = [cell_text(found[method, attack, rule], attack in ("none", "backdoor")) for rule in rules]
            lines.append(f"| {attack}: {ATTACKS[attack].says} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell_text(found: list[tuple[float, float]], has_trigger: bool) -> str:
    """The mean accuracy in per cent, and where asked for how often the trigger works."""
    accuracy, success = (100 * sum(part) / len(found) for part in zip(*found, strict=True))
    if isnan(accuracy):
        return "no clusters"
    return f"{accuracy:.1f} (trigger {success:.0f})" if has_trigger else f"{accuracy:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=USUAL_METHODS, choices=list(METHODS))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--aggregations", nargs="+", default=list(AGGREGATIONS), choices=list(AGGREGATIONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--liars", type=int, default=USUAL.liars)
    parser.add_argument("--clients", type=int, default=USUAL.clients)
    parser.add_argument("--rounds", type=int, default=USUAL.rounds)
    parser.add_argument("--lr", type=float, default=USUAL.lr)
    asked, began = parser.parse_args(), time.perf_counter()
    setup = Setup(asked.liars, asked.rounds, asked.lr, asked.clients)
    for method in asked.methods:
        found: dict[Cell, list[tuple[float, float]]] = {
            (method, attack, rule): [
                measure(method, ATTACKS[attack], AGGREGATIONS[rule](), seed, setup) for seed in asked.seeds
            ]
            for attack in asked.attacks if is_meant(method, attack)
            for rule in asked.aggregations
        }  # fmt: skip
        print(table(method, found, asked.attacks, asked.aggregations), end="\n\n", flush=True)
    print(f"{asked.liars} of {asked.clients} clients lie; seeds {asked.seeds}; {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
