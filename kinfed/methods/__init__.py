"""The methods, by name. A new one is a file in this folder and a line here."""

from typing import Any

from kinfed.method import Method
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

__all__ = [
    "CFL",
    "FLHC",
    "FLISDC",
    "FLISHC",
    "FLT",
    "IFCA",
    "METHODS",
    "REPA",
    "WD",
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
