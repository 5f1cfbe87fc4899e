"""The methods, by name. A new one is a file in this folder and a line here."""

from kinfed.algorithm import Algorithm
from kinfed.algorithms.cfl import CFL
from kinfed.algorithms.fedavg import FedAvg
from kinfed.algorithms.fednova import FedNova
from kinfed.algorithms.fedper import FedPer
from kinfed.algorithms.fedprox import FedProx
from kinfed.algorithms.fesem import FeSEM
from kinfed.algorithms.fine_tuned import FineTuned
from kinfed.algorithms.flhc import FLHC
from kinfed.algorithms.flis_dc import FLISDC
from kinfed.algorithms.flis_hc import FLISHC
from kinfed.algorithms.flt import FLT
from kinfed.algorithms.ifca import IFCA
from kinfed.algorithms.lg_fedavg import LGFedAvg
from kinfed.algorithms.local import Local
from kinfed.algorithms.pca_km_hc import PCAKMeansHC
from kinfed.algorithms.per_fedavg import PerFedAvg
from kinfed.algorithms.repa import REPA
from kinfed.algorithms.scaffold import Scaffold
from kinfed.algorithms.wd import WD

ALGORITHMS: dict[str, type[Algorithm]] = {  # type: ignore[type-arg]
    "fedavg": FedAvg,
    "fedavg_ft": FineTuned,
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
    "ALGORITHMS",
    "CFL",
    "FLHC",
    "FLISDC",
    "FLISHC",
    "FLT",
    "IFCA",
    "REPA",
    "WD",
    "FeSEM",
    "FedAvg",
    "FedNova",
    "FedPer",
    "FedProx",
    "FineTuned",
    "LGFedAvg",
    "Local",
    "PCAKMeansHC",
    "PerFedAvg",
    "Scaffold",
]
