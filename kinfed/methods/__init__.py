"""The methods, by name. A new one is a file in this folder and a line here."""

from typing import Any, NamedTuple

from kinfed.method import Method
from kinfed.methods.auto import Auto
from kinfed.methods.cfl import CFL
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedavg_ft import FedAvgFT
from kinfed.methods.fednova import FedNova
from kinfed.methods.fedper import FedPer
from kinfed.methods.fedprox import FedProx
from kinfed.methods.fesem import FeSEM
from kinfed.methods.flhc import FLHC
from kinfed.methods.flis_dc import FLISDC
from kinfed.methods.flis_hc import FLISHC
from kinfed.methods.flt import FLT
from kinfed.methods.ifca import IFCA
from kinfed.methods.lg_fedavg import LGFedAvg
from kinfed.methods.local import Local
from kinfed.methods.pca_km_hc import PCAKMeansHC
from kinfed.methods.per_fedavg import PerFedAvg
from kinfed.methods.repa import REPA
from kinfed.methods.scaffold import Scaffold
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
    "wd": WD,
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
    "fedsem": Preset(
        "fesem",
        {"assignment": "kmeans", "stale": "aggregated"},
        "FeSEM as FLT's authors compare with it: k-means of all models, stale ones too.",
    ),
}

__all__ = [
    "CFL",
    "FLHC",
    "FLISDC",
    "FLISHC",
    "FLT",
    "IFCA",
    "METHODS",
    "PRESETS",
    "REPA",
    "WD",
    "Auto",
    "FeSEM",
    "FedAvg",
    "FedAvgFT",
    "FedNova",
    "FedPer",
    "FedProx",
    "LGFedAvg",
    "Local",
    "PCAKMeansHC",
    "PerFedAvg",
    "Scaffold",
]
