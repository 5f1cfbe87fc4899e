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


FLT_SIGNATURE = {"name": "encoder_centroids", "k": 5, "tuning": "own_copy"}
PRESETS = {
    "flt_paper": Preset(
        "flt",
        {"signature": FLT_SIGNATURE, "relatedness": {"name": "relatedness", "distance": "min", "threshold": 1.0}},
        "FLT as printed: k = 5 centroids of an encoder that clients tune, UMAP, nearest centroids, γ = 1.",
    ),
    "flt_code": Preset(
        "flt",
        {
            "signature": FLT_SIGNATURE | {"k_by_labels": True},
            "relatedness": {"name": "relatedness", "distance": "matching"},
        },
        "FLT as in its authors' code: as many centroids as a client has labels, UMAP, matched centroids, γ = 1.",
    ),
    "flt_calibrated": Preset(
        "flt",
        {"signature": {"name": "part_means"}, "relatedness": {"name": "calibrated"}, "stale": "exclude"},
        "FLT without an oracle: clients are compared by the measured noise of their signatures.",
    ),
    "fedsem": Preset(
        "fesem", {"assignment": "kmeans"}, "FeSEM as FLT's authors compare with it: k-means of all models."
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
