"""Every registered method with settings for the tiny population. A new method must be added here, or a test fails."""

from dataclasses import replace

import pytest
import torch

from kinfed.methods import (
    APFL,
    CFL,
    FLHC,
    FLISDC,
    FLISHC,
    FLSC,
    FLT,
    FLUX,
    IFCA,
    METHODS,
    PACFL,
    REPA,
    WD,
    Auto,
    Centralised,
    CLoVE,
    Ditto,
    FedALA,
    FedAvg,
    FedAvgFT,
    FedBABU,
    FedBN,
    FedClust,
    FedDrift,
    FedEM,
    FedGroup,
    FedNova,
    FedPer,
    FedProx,
    FedRC,
    FedRep,
    FedSoft,
    FeSEM,
    LGFedAvg,
    Local,
    Oracle,
    PCAKMeansHC,
    PerFedAvg,
    PFedMe,
    Scaffold,
    StoCFL,
)
from kinfed.methods.split_tree import SplitRule
from kinfed.relatedness import Relatedness
from kinfed.signatures import EmbeddingStatistics, EncoderCentroids, PartMeans, Pretraining
from kinfed.training import LocalTraining
from tests.problems import norm_net, small_net, tiny_population

LOCAL = LocalTraining(epochs=2, batch_size=5, lr=0.05)
KERNEL = "flt, kernel"  # a second case of FLT: the paper's signature, and the kernel distance
SHORT = LocalTraining(epochs=1, batch_size=8, lr=0.05)
BRISK = replace(SHORT, lr=0.3)
SLOW = {"ditto", "apfl", "pfedme", "fedala", "fedrep", "fedbabu", "fedbn"}  # their gradients are not for the fast path
OWN = dict.fromkeys(SLOW, SHORT) | dict.fromkeys(("fedem", "fedrc", "fedsoft"), BRISK)
EAGER = SplitRule(mean_below=9.0, some_above=0.1)


FEW = (6, 15, 12, 16, 7, 11, 8, 10, 14, 5, 13, 9)
MORE = (7, 23, 12, 31, 9, 18, 11, 13, 26, 8, 17, 21)  # moments of fewer samples do not tell the groups apart


def population(sizes=FEW, **more):
    """Twelve clients in two planted groups, and the server's own rows."""
    whole = tiny_population(sizes, **more)
    served, at = tiny_population((10, 10)), len(whole.y)
    public = torch.arange(at, at + len(served.y))
    return replace(whole, x=torch.cat([whole.x, served.x]), y=torch.cat([whole.y, served.y]), public=public)


def signature(**more) -> EncoderCentroids:
    settings = {"k": 3, "tuning": "none", "latent": 8, "restarts": 2, "pretraining": Pretraining("digits", epochs=1)}
    return EncoderCentroids(**(settings | more))


def part_means() -> PartMeans:
    return PartMeans(latent=8, pretraining=Pretraining("digits"))


def statistics(**more) -> EmbeddingStatistics:
    training = LocalTraining(epochs=1, batch_size=16, lr=1e-3, optimiser="adam")
    return EmbeddingStatistics(**({"encoder_rounds": 1, "training": training} | more))


def make(name: str, local: LocalTraining | None = None, **more):
    model, local = small_net(), local or OWN.get(name, LOCAL)
    return {
        "auto": lambda: Auto(model, local, **({"average": 0.4} | more)),
        "fedavg": lambda: FedAvg(model, local, **more),
        "fedavg_ft": lambda: FedAvgFT(model, local, **more),
        "fedprox": lambda: FedProx(model, local, **more),
        "fednova": lambda: FedNova(model, local, **more),
        "scaffold": lambda: Scaffold(model, local, **more),
        "lg_fedavg": lambda: LGFedAvg(model, local, **({"shared_tensors": 2} | more)),
        "fedper": lambda: FedPer(model, local, **more),
        "per_fedavg": lambda: PerFedAvg(model, local, **({"alpha": 0.1, "beta": 0.1} | more)),
        "ditto": lambda: Ditto(model, local, **more),
        "apfl": lambda: APFL(model, local, **more),
        "pfedme": lambda: PFedMe(model, local, **({"pull": 2.0, "inner_steps": 2} | more)),
        "fedala": lambda: FedALA(model, local, **more),
        "fedrep": lambda: FedRep(model, local, **({"head_epochs": 1} | more)),
        "fedbabu": lambda: FedBABU(model, local, **more),
        "fedbn": lambda: FedBN(norm_net(), local, **more),
        "local": lambda: Local(model, local, **more),
        "flt": lambda: FLT(model, local, **({"signature": part_means()} | more)),
        KERNEL: lambda: FLT(model, local, **({"signature": signature(), "relatedness": Relatedness()} | more)),
        "pca_km_hc": lambda: PCAKMeansHC(model, local, **({"k": 3, "threshold": 0.5, "restarts": 2} | more)),
        "ifca": lambda: IFCA(model, local, **more),
        "fesem": lambda: FeSEM(model, local, **({"clusters": 2} | more)),
        "cfl": lambda: CFL(model, local, **({"rule": EAGER, "after": 1} | more)),
        "repa": lambda: REPA(model, local, **({"clusters": 2, "signature": statistics()} | more)),
        "pacfl": lambda: PACFL(model, local, **more),
        "wd": lambda: WD(model, local, **({"clusters": 2, "rounds_before": 1} | more)),
        "fedclust": lambda: FedClust(model, local, **more),
        "fedgroup": lambda: FedGroup(model, local, **({"clusters": 2} | more)),
        "clove": lambda: CLoVE(model, local, **more),
        "stocfl": lambda: StoCFL(model, local, **({"threshold": 0.3, "anchor_epochs": 2} | more)),
        "flux": lambda: FLUX(model, local, **({"rounds_before": 1} | more)),
        "feddrift": lambda: FedDrift(model, local, **({"step_rounds": 1, "first": "own"} | more)),
        "fedem": lambda: FedEM(model, local, **({"components": 2} | more)),
        "fedrc": lambda: FedRC(model, local, **({"components": 2} | more)),
        "fedsoft": lambda: FedSoft(model, local, **more),
        "flsc": lambda: FLSC(model, local, **more),
        "oracle": lambda: Oracle(model, local, **more),
        "centralised": lambda: Centralised(model, local, **more),
        "flhc": lambda: FLHC(model, local, **({"rounds_before": 1} | more)),
        "flis_dc": lambda: FLISDC(model, local, **more),
        "flis_hc": lambda: FLISHC(model, local, **more),
    }[name]()


CASES = [*METHODS, KERNEL]


def mark_alike(*members: str) -> list:
    """All cases; of those that have all these members in common, all but the first on demand."""
    have = [tuple(getattr(type(make(name)), member) for member in members) for name in CASES]
    later = [[pytest.mark.on_demand] if own in have[:at] else [] for at, own in enumerate(have)]
    return [pytest.param(name, marks=[pytest.mark.xdist_group(name), *later[at]]) for at, name in enumerate(CASES)]
