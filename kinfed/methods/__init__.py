"""The methods, by name. A new one is a file in this folder and a line here."""

from typing import Any, NamedTuple

from kinfed.method import Method
from kinfed.methods.apfl import APFL
from kinfed.methods.auto import Auto
from kinfed.methods.centralised import Centralised
from kinfed.methods.cfl import CFL
from kinfed.methods.clove import CLoVE
from kinfed.methods.ditto import Ditto
from kinfed.methods.fedala import FedALA
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedavg_ft import FedAvgFT
from kinfed.methods.fedbabu import FedBABU
from kinfed.methods.fedbn import FedBN
from kinfed.methods.fedclust import FedClust
from kinfed.methods.feddrift import FedDrift
from kinfed.methods.fedem import FedEM
from kinfed.methods.fedgroup import FedGroup
from kinfed.methods.fednova import FedNova
from kinfed.methods.fedper import FedPer
from kinfed.methods.fedprox import FedProx
from kinfed.methods.fedrc import FedRC
from kinfed.methods.fedrep import FedRep
from kinfed.methods.fedsoft import FedSoft
from kinfed.methods.fesem import FeSEM
from kinfed.methods.flhc import FLHC
from kinfed.methods.flis_dc import FLISDC
from kinfed.methods.flis_hc import FLISHC
from kinfed.methods.flsc import FLSC
from kinfed.methods.flt import FLT
from kinfed.methods.flux import FLUX
from kinfed.methods.ifca import IFCA
from kinfed.methods.lg_fedavg import LGFedAvg
from kinfed.methods.local import Local
from kinfed.methods.oracle import Oracle
from kinfed.methods.pacfl import PACFL
from kinfed.methods.pca_km_hc import PCAKMeansHC
from kinfed.methods.per_fedavg import PerFedAvg
from kinfed.methods.pfedme import PFedMe
from kinfed.methods.repa import REPA
from kinfed.methods.scaffold import Scaffold
from kinfed.methods.stocfl import StoCFL
from kinfed.methods.wd import WD

METHODS: dict[str, type[Method[Any]]] = {
    "auto": Auto,
    "fedavg": FedAvg,
    "fedavg_ft": FedAvgFT,
    "fedprox": FedProx,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "lg_fedavg": LGFedAvg,
    "fedper": FedPer,
    "per_fedavg": PerFedAvg,
    "ditto": Ditto,
    "apfl": APFL,
    "pfedme": PFedMe,
    "fedala": FedALA,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "fedbn": FedBN,
    "local": Local,
    "flt": FLT,
    "pca_km_hc": PCAKMeansHC,
    "ifca": IFCA,
    "fesem": FeSEM,
    "cfl": CFL,
    "flhc": FLHC,
    "flis_dc": FLISDC,
    "flis_hc": FLISHC,
    "repa": REPA,
    "pacfl": PACFL,
    "wd": WD,
    "fedclust": FedClust,
    "fedgroup": FedGroup,
    "clove": CLoVE,
    "stocfl": StoCFL,
    "flux": FLUX,
    "feddrift": FedDrift,
    "fedem": FedEM,
    "fedrc": FedRC,
    "fedsoft": FedSoft,
    "flsc": FLSC,
    "oracle": Oracle,
    "centralised": Centralised,
}


class Family(NamedTuple):
    """Methods of one kind."""

    says: str
    papers: dict[str, str]  # method -> its reference


FAMILIES = {
    "one model": Family(
        "Everybody uses the same model.",
        {
            "fedavg": "McMahan et al., AISTATS 2017",
            "fedprox": "Li et al., MLSys 2020",
            "fednova": "Wang et al., NeurIPS 2020",
            "scaffold": "Karimireddy et al., ICML 2020",
        },
    ),
    "personalised": Family(
        "Each client has a model, or layers, of its own beside what all share.",
        {
            "fedavg_ft": "baseline",
            "per_fedavg": "Fallah et al., NeurIPS 2020",
            "pfedme": "T. Dinh et al., NeurIPS 2020",
            "ditto": "Li et al., ICML 2021",
            "apfl": "Deng et al., 2020",
            "fedala": "Zhang et al., AAAI 2023",
            "fedper": "Arivazhagan et al., 2019",
            "lg_fedavg": "Liang et al., 2020",
            "fedrep": "Collins et al., ICML 2021",
            "fedbabu": "Oh et al., ICLR 2022",
            "fedbn": "Li et al., ICLR 2021",
        },
    ),
    "clustered before training": Family(
        "Clusters are found once, by signatures of clients' samples.",
        {
            "flt": "Jamali-Rad et al., TNNLS 2022",
            "pca_km_hc": "baseline of FLT",
            "repa": "Radovič and Pejović, 2023",
            "pacfl": "Vahidian et al., AAAI 2023",
        },
    ),
    "clustered while training": Family(
        "Clusters are found by what clients train, or by how well models fit them.",
        {
            "ifca": "Ghosh et al., NeurIPS 2020",
            "fesem": "Xie et al., WWW 2023",
            "cfl": "Sattler et al., TNNLS 2021",
            "flhc": "Briggs et al., IJCNN 2020",
            "flis_dc": "Morafah et al., OJCS 2023",
            "flis_hc": "Morafah et al., OJCS 2023",
            "wd": "baseline of REPA",
            "fedclust": "Islam et al., 2024",
            "fedgroup": "Duan et al., 2020",
            "clove": "Bhatia et al., 2025",
            "stocfl": "Zeng et al., 2023",
            "flux": "Fenoglio et al., NeurIPS 2025",
            "feddrift": "Jothimurugesan et al., AISTATS 2023",
        },
    ),
    "mixtures": Family(
        "Clients belong to several clusters, each in shares of its own.",
        {
            "fedem": "Marfoq et al., NeurIPS 2021",
            "fedrc": "Guo et al., ICML 2024",
            "fedsoft": "Ruan and Joe-Wong, AAAI 2022",
            "flsc": "Li et al., IEEE IoT Journal 2021",
        },
    ),
    "decided by the data": Family("Clusters, one model or personalised ones: what does best.", {"auto": "kinfed"}),
    "reference points": Family(
        "What a federation is held against.", {"local": "baseline", "centralised": "baseline", "oracle": "baseline"}
    ),
}


class Preset(NamedTuple):
    """A method with the settings of a paper."""

    method: str
    settings: dict[str, Any]  # as a config has them
    says: str


CENTROIDS: dict[str, Any] = {"name": "encoder_centroids", "k": 5, "tuning": "own_copy"}
BY_LABELS = CENTROIDS | {"k_by_labels": True}
MATCHED = {"name": "relatedness", "distance": "matching", "threshold": 1.0}
PRESETS = {
    "flt_paper": Preset(
        "flt",
        {
            "signature": CENTROIDS,
            "relatedness": {"name": "relatedness", "distance": "min", "threshold": 1.0},
            "stale": "aggregated",
        },
        "FLT as printed: k = 5 centroids of an encoder that clients tune, UMAP, nearest centroids, γ = 1.",
    ),
    "flt_code": Preset(
        "flt",
        {"signature": BY_LABELS, "relatedness": MATCHED, "stale": "aggregated"},
        "FLT as in its authors' code: as many centroids as a client has labels, UMAP, matched centroids, γ = 1.",
    ),
    "flt_enc1": Preset(
        "flt",
        {
            "signature": BY_LABELS | {"tuning": "none", "pretraining": {"source": "enc1"}},
            "relatedness": MATCHED,
            "stale": "aggregated",
        },
        "flt_code with Enc1 of the paper: an encoder that has seen the clients' kind of images, and stays as it is.",
    ),
    "flt_enc2": Preset(
        "flt",
        {
            "signature": BY_LABELS | {"pretraining": {"source": "enc2"}},
            "relatedness": MATCHED,
            "stale": "aggregated",
        },
        "flt_code with Enc2 of the paper: an encoder trained on other images, which each client tunes.",
    ),
    "flt_kernel": Preset(
        "flt",
        {"signature": CENTROIDS, "relatedness": {"name": "relatedness", "distance": "kernel"}},
        "FLT with the kernel distance of centroids, kinfed's default before `calibrated`.",
    ),
    "flt_calibrated": Preset(
        "flt",
        {"signature": {"name": "part_means"}, "relatedness": {"name": "calibrated"}, "stale": "exclude"},
        "FLT's default by name: clients are compared by the measured noise of their signatures.",
    ),
    "fedavgm": Preset("fedavg", {"server": {"momentum": 0.9}}, "FedAvg whose server has momentum (Hsu et al., 2019)."),
    "fedadam": Preset(
        "fedavg",
        {"server": {"name": "adam", "lr": 0.01, "momentum": 0.9}},
        "FedAvg whose server steps by Adam (Reddi et al., ICLR 2021).",
    ),
    "fedyogi": Preset(
        "fedavg",
        {"server": {"name": "yogi", "lr": 0.01, "momentum": 0.9}},
        "FedAvg whose server steps by Yogi (Reddi et al., ICLR 2021).",
    ),
    "fedsem": Preset(
        "fesem",
        {"assignment": "kmeans", "stale": "aggregated"},
        "FeSEM as FLT's authors compare with it: k-means of all models, stale ones too.",
    ),
}

__all__ = [
    "APFL",
    "CFL",
    "FAMILIES",
    "FLHC",
    "FLISDC",
    "FLISHC",
    "FLSC",
    "FLT",
    "FLUX",
    "IFCA",
    "METHODS",
    "PACFL",
    "PRESETS",
    "REPA",
    "TITLES",
    "WD",
    "Auto",
    "CLoVE",
    "Centralised",
    "Ditto",
    "FeSEM",
    "FedALA",
    "FedAvg",
    "FedAvgFT",
    "FedBABU",
    "FedBN",
    "FedClust",
    "FedDrift",
    "FedEM",
    "FedGroup",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRC",
    "FedRep",
    "FedSoft",
    "LGFedAvg",
    "Local",
    "Oracle",
    "PCAKMeansHC",
    "PFedMe",
    "PerFedAvg",
    "Scaffold",
    "StoCFL",
    "title_of",
]
TITLES = {  # as the field writes them, where that is not the name of the class
    "fedavg_ft": "FedAvg + fine-tuning", "scaffold": "SCAFFOLD", "lg_fedavg": "LG-FedAvg", "per_fedavg": "Per-FedAvg",
    "pfedme": "pFedMe", "pca_km_hc": "PCA+kM+HC", "flhc": "FL+HC", "flis_dc": "FLIS-DC", "flis_hc": "FLIS-HC",
    "fedavgm": "FedAvgM", "fedadam": "FedAdam", "fedyogi": "FedYogi", "fedsem": "FeSEM (k-means)",
}  # fmt: skip


def title_of(name: str) -> str:
    """A method's name as the field writes it, that of a preset with what sets it apart; an own method's as it is."""
    if name in TITLES:
        return TITLES[name]
    if name in PRESETS:
        method = PRESETS[name].method
        return f"{title_of(method)} ({name.removeprefix(method).lstrip('_')})"
    return METHODS[name].__name__ if name in METHODS else name
