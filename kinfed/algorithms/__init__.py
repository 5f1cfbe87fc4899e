"""The methods, by name. A new one is a file in this folder and a line here."""

from kinfed.algorithm import Algorithm
from kinfed.algorithms.fedavg import FedAvg
from kinfed.algorithms.flt import FLT
from kinfed.algorithms.local import Local

ALGORITHMS: dict[str, type[Algorithm]] = {  # type: ignore[type-arg]
    "fedavg": FedAvg,
    "local": Local,
    "flt": FLT,
}

__all__ = ["ALGORITHMS", "FLT", "FedAvg", "Local"]
